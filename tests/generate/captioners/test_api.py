"""Captions from a chat model: what its prompts contain, and how replies are stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flipbench.config.chat import ChatSpec
from flipbench.core.errors import ConfigError, DataError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Failure, Flip, Item
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, run_stage
from flipbench.generate.caption import CaptionStage
from flipbench.generate.captioners.api import PROMPTS, APICaptioner, caption_prompt
from flipbench.generate.flip import FlipStage
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.batch_api import BatchAPI
from flipbench.models.chat.prompt_files import load_prompt
from flipbench.models.protocols import CaptionText
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.local_chat import LocalChat
from tests.fixtures.openai_server import CAPTION, KEY, OpenAIServer

SHIPPED = sorted(
    p.stem
    for p in PROMPTS.glob("*.txt")
    if not p.stem.startswith(("counterfactual", "choose-picture", "template"))
)
QUESTION = "Which fruit lies on the {table}?"
SHOWN = {
    "question": QUESTION,
    "options": "A. a quince\nB. a medlar\nC. a damson",
    "old_answer": "a quince",
    "new_answer": "a damson",
}


def spec(server: OpenAIServer, **settings: Any) -> ChatSpec:
    chosen: dict[str, Any] = {"model": "gpt-4o-2024-08-06", "max_retries": 1, "timeout": 5}
    return ChatSpec(base_url=server.base_url, **(chosen | settings))


@pytest.fixture
def candidate(shapes_items: list[Item]) -> Candidate:
    """Return a question whose words stand nowhere in the prompts themselves."""
    options = ("a quince", "a medlar", "a damson")
    item = shapes_items[0].model_copy(
        update={"id": "", "question": QUESTION, "options": options, "answer": 0}
    )
    item = Item.model_validate(item.model_dump() | {"answer_text": options[0]})
    flip = Flip(item_id=item.id, method="m", seed=0, new_answer=2, new_text=options[2])
    return Candidate(item, flip)


def flipped(items: list[Item]) -> list[Candidate]:
    flips = FlipStage()(items)
    return [Candidate(i, f) for i, f in zip(items, flips, strict=True) if isinstance(f, Flip)]


# prompts


def test_the_shipped_prompts() -> None:
    assert SHIPPED == [
        "caption-paper-v1",
        "caption-question-free-v1",
        "caption-release-v1",
        "caption-release-without-options-v1",
        "caption-without-old-answer-v1",
        "instruction-v1",
    ]


@pytest.mark.parametrize("name", SHIPPED)
def test_prompts_are_called_what_their_files_are_called(name: str) -> None:
    prompt = caption_prompt(name)
    assert f"{prompt.name}-v{prompt.version}" == name
    assert prompt.id == f"{name} {prompt.sha256[:12]}" and prompt.about


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("caption-paper-v1", {"question", "options", "old_answer", "new_answer"}),
        ("caption-release-v1", {"question", "options", "old_answer", "new_answer"}),
        ("caption-release-without-options-v1", {"question", "old_answer", "new_answer"}),
        ("instruction-v1", {"question", "options", "old_answer", "new_answer"}),
        ("caption-without-old-answer-v1", {"question", "options", "new_answer"}),
        ("caption-question-free-v1", {"old_answer", "new_answer"}),
    ],
)
def test_prompt_ablations_omit_what_they_should(
    server: OpenAIServer,
    shapes_store: ImageStore,
    candidate: Candidate,
    name: str,
    shown: set[str],
) -> None:
    APICaptioner(ChatAPI(spec(server)), name)([candidate], shapes_store)
    (body,) = server.chats()
    item = body["messages"][1]["content"][-1]["text"]
    everything = body["messages"][0]["content"] + item
    for field in ("question", "options"):
        assert (SHOWN[field] in everything) == (field in shown)
    # the old answer is one of the options wherever these are shown; named alone, it is shown
    for field in ("old_answer", "new_answer"):
        assert (SHOWN[field] in item.replace(SHOWN["options"], "")) == (field in shown)
    assert "medlar" not in everything.replace(SHOWN["options"], "")
    assert "quince" not in body["messages"][0]["content"]


def test_the_instruction_is_the_same_for_every_item(
    server: OpenAIServer, shapes_store: ImageStore, shapes_items: list[Item]
) -> None:
    captioner = APICaptioner(ChatAPI(spec(server)))
    captioner(flipped(shapes_items[:4]), shapes_store)
    firsts = {body["messages"][0]["content"] for body in server.chats()}
    lasts = {body["messages"][1]["content"][-1]["text"] for body in server.chats()}
    assert len(firsts) == 1 and len(lasts) == 4


HEAD = "name: own\nversion: 2\nabout: mine\nplaceholders: [question, new_answer]\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Draw {new_answer}.", "three parts"),
        (HEAD + "---\nDraw.\n---\n{question}\n", "{new_answer} is declared but not used"),
        (HEAD + "---\nDraw.\n---\n{question} {new_anser}\n", "did you mean 'new_answer'"),
        (
            HEAD + "---\nDraw.\n---\n{question} {new_answer} {options}\n",
            "{options} is used but not declared",
        ),
        (HEAD + "---\nDraw {new_answer}.\n---\n{question} {new_answer}\n", "is in the instruction"),
        (HEAD + "---\n\n---\n{question} {new_answer}\n", "empty"),
        (HEAD.replace("2", "two") + "---\nDraw.\n---\n{question} {new_answer}\n", "version"),
        (HEAD.replace("about: mine", "") + "---\nDraw.\n---\n{question} {new_answer}\n", "keys"),
        (
            HEAD.replace(", new_answer", "") + "---\nDraw.\n---\n{question}\n",
            "does not use {new_ans",
        ),
        ("a: [\n---\nb\n---\nc", "not YAML"),
    ],
)
def test_a_wrong_prompt_names_its_file(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "own.txt"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        caption_prompt(path)
    assert str(path) in str(caught.value) and says in str(caught.value)


def test_an_unknown_prompt_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'caption-release-v1'"):
        caption_prompt("caption-relaese-v1")


def test_braces_in_a_question_stay(tmp_path: Path, candidate: Candidate) -> None:
    path = tmp_path / "own.txt"
    path.write_text(HEAD + '---\nDraw {"x": 1}.\n---\n{question} {new_answer}\n')
    request = load_prompt(path, PROMPTS).request(candidate)
    assert request.text == "Which fruit lies on the {table}? a damson"


VERBATIM = """name: theirs
version: 1
about: an author's own words
placeholders: [question, options, old_answer, new_answer]
verbatim: true
---
 Rewrite {question}
as {"json": {caption}}.

---
Options: {options}; {old_answer} -> {new_answer}
---
  Only {{the}} caption!
"""


def test_an_author_s_exact_words_are_sent_as_they_stand(
    server: OpenAIServer, shapes_store: ImageStore, candidate: Candidate, tmp_path: Path
) -> None:
    path = tmp_path / "theirs.txt"
    path.write_text(VERBATIM)
    APICaptioner(ChatAPI(spec(server)), path)([candidate], shapes_store)
    (body,) = server.chats()
    system, user = body["messages"]
    assert system["content"] == f' Rewrite {SHOWN["question"]}\nas {{"json": {{caption}}}}.\n'
    assert user["content"][-1]["text"] == (
        f"Options: {SHOWN['options']}; {SHOWN['old_answer']} -> {SHOWN['new_answer']}\n---\n"
        "  Only {{the}} caption!"
    )


def test_an_author_s_words_without_a_system_message(
    server: OpenAIServer, shapes_store: ImageStore, candidate: Candidate, tmp_path: Path
) -> None:
    path = tmp_path / "theirs.txt"
    path.write_text(HEAD + "verbatim: true\n---\n---\n{question} {new_answer} {old_answer}\n")
    APICaptioner(ChatAPI(spec(server)), path)([candidate], shapes_store)
    (body,) = server.chats()
    (user,) = body["messages"]
    text = f"{SHOWN['question']} {SHOWN['new_answer']} {{old_answer}}"
    assert user["role"] == "user" and user["content"][-1]["text"] == text
    path.write_text(HEAD + "verbatim: true\n---\n---\n{question}\n")
    with pytest.raises(ConfigError, match="new_answer} is declared but not used"):
        caption_prompt(path)
    path.write_text(HEAD + "verbatim: exactly\n---\n---\n{question} {new_answer}\n")
    with pytest.raises(ConfigError, match="verbatim in its header must be a bool"):
        caption_prompt(path)


def test_an_edited_prompt_makes_other_ids(
    server: OpenAIServer, shapes_store: ImageStore, candidate: Candidate, tmp_path: Path
) -> None:
    path = tmp_path / "own.txt"
    ids = set()
    for text in ("Draw.", "Draw!", "Draw!"):
        path.write_text(HEAD + f"---\n{text}\n---\n{{question}} {{new_answer}}\n")
        captioner = APICaptioner(ChatAPI(spec(server)), path)
        ids.add(CaptionStage(captioner, shapes_store).id_of(candidate))
    assert len(ids) == 2


def test_line_endings_do_not_change_a_prompt(tmp_path: Path) -> None:
    text = HEAD + "---\nDraw.\n---\n{question} {new_answer}\n"
    (tmp_path / "unix.txt").write_bytes(text.encode())
    (tmp_path / "dos.txt").write_bytes(text.replace("\n", "\r\n").encode())
    assert caption_prompt(tmp_path / "unix.txt") == caption_prompt(tmp_path / "dos.txt")


# the captioner


def test_the_stage_records_text_usage_and_failures(
    server: OpenAIServer, shapes_store: ImageStore, shapes_items: list[Item], tmp_path: Path
) -> None:
    server.script.extend(["sorry", "refusal", "empty", "length", "ok", "ok"])
    chat = ChatAPI(spec(server, n_concurrent=1, price_in=2.5, price_out=10.0))
    stage = CaptionStage(APICaptioner(chat), shapes_store)
    candidates = flipped(shapes_items[:6])
    with Run(tmp_path / "run") as run:
        report = run_stage(
            stage, candidates, run, options=StageOptions(batch_size=3, progress=False)
        )
        assert (report.n_done, report.n_failed) == (2, 4)
        assert {f.error for f in run.read(Failure)} == {"ServiceError"}
        for caption in run.read(Caption):
            assert caption.text == CAPTION
            assert caption.captioner == "gpt-4o-2024-08-06"
            assert caption.prompt.startswith("caption-release-v1 ")
            assert caption.settings["temperature"] == 0.3
            assert caption.usage["cost_usd"] == pytest.approx(0.003)
            assert caption.usage["image_tokens_estimated"] == 255
        again = run_stage(
            stage, candidates, run, options=StageOptions(batch_size=3, progress=False)
        )
        assert (again.n_done, again.n_skipped, again.n_failed) == (4, 2, 0)
    assert len(server.chats()) == 6 + 4
    for path in (tmp_path / "run").rglob("*.json*"):
        assert KEY not in path.read_text()


def test_captions_through_the_batch_api(
    server: OpenAIServer, shapes_store: ImageStore, shapes_items: list[Item], tmp_path: Path
) -> None:
    candidates = flipped(shapes_items[:4])
    chat = ChatAPI(spec(server))
    batch = BatchAPI(chat, tmp_path / "batches")
    batch.poll_seconds = 0.01
    (by_batch, direct) = (APICaptioner(backend) for backend in (batch, chat))
    stages = [CaptionStage(captioner, shapes_store) for captioner in (by_batch, direct)]
    assert [stages[0].id_of(c) for c in candidates] == [stages[1].id_of(c) for c in candidates]
    assert [c.text for c in by_batch(candidates, shapes_store) if isinstance(c, CaptionText)] == (
        [CAPTION] * 4
    )
    assert not server.chats()


def test_the_first_of_several_images_is_named(
    server: OpenAIServer, shapes_store: ImageStore, shapes_items: list[Item]
) -> None:
    two = shapes_items[0].images + shapes_items[1].images
    item = Item.model_validate(shapes_items[0].model_dump() | {"id": "", "images": two})
    APICaptioner(ChatAPI(spec(server)))(flipped([item]), shapes_store)
    *pictures, text = server.chats()[0]["messages"][1]["content"]
    assert len(pictures) == 2 and text["text"].startswith("There are 2 pictures")


def test_unusable_items_fail_alone(
    server: OpenAIServer, shapes_store: ImageStore, shapes_items: list[Item]
) -> None:
    blind = Item.model_validate(shapes_items[0].model_dump() | {"id": "", "images": ()})
    candidates = [*flipped([blind]), Candidate(shapes_items[1]), *flipped([shapes_items[2]])]
    replies = APICaptioner(ChatAPI(spec(server)))(candidates, shapes_store)
    assert [type(reply) for reply in replies] == [DataError, DataError, CaptionText]
    assert len(server.chats()) == 1


# on this machine


@pytest.fixture(params=["llava", "qwen2_vl"])
def ending_vlm(
    request: pytest.FixtureRequest,
    tiny_vlm: Callable[[str], HuggingFaceVLM],
    monkeypatch: pytest.MonkeyPatch,
) -> HuggingFaceVLM:
    """Return an untrained model that ends its reply where it must: by itself it never would."""
    vlm = tiny_vlm(request.param)
    ends = vlm.model.generation_config.eos_token_id
    monkeypatch.setattr(vlm.model.generation_config, "forced_eos_token_id", ends)
    return vlm


def captions(captioner: APICaptioner, candidates: list[Candidate], store: ImageStore) -> Any:
    return [c.text for c in captioner(candidates, store) if isinstance(c, CaptionText)]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_local_captions_do_not_depend_on_order_or_batch(
    ending_vlm: HuggingFaceVLM,
    shapes_store: ImageStore,
    shapes_items: list[Item],
    temperature: float,
) -> None:
    candidates = flipped(shapes_items[:3])

    def local_captioner(seed: int) -> APICaptioner:
        chat = LocalChat(ending_vlm, 8, temperature, seed)
        return APICaptioner(chat, "caption-question-free-v1")

    local = local_captioner(0)
    together = captions(local, candidates, shapes_store)
    assert len(together) == 3
    assert captions(local, candidates[::-1], shapes_store)[::-1] == together
    assert [captions(local, [c], shapes_store)[0] for c in candidates] == together
    other = local_captioner(1)
    same = captions(other, candidates, shapes_store) == together
    assert same == (temperature == 0), "a seed counts where something is sampled, and only there"
    assert (other.settings == local.settings) == (temperature == 0)


def test_a_local_caption_that_is_cut_off_is_a_failure(
    tiny_vlm: Callable[[str], HuggingFaceVLM], shapes_store: ImageStore, shapes_items: list[Item]
) -> None:
    chat = LocalChat(tiny_vlm("qwen2_vl"), 2)
    local = APICaptioner(chat, "caption-question-free-v1")
    (reply,) = local(flipped(shapes_items[:1]), shapes_store)
    assert isinstance(reply, ServiceError) and "cut off after 2 tokens" in str(reply)
    assert local.settings["fingerprint"] == tiny_vlm("qwen2_vl").fingerprint
