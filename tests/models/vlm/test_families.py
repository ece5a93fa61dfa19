"""Every family of models, as tiny checkpoints of its real classes, through the same questions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Probe, Response
from flipbench.models.chat.messages import ChatRequest
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.loading import capabilities
from flipbench.models.vlm.local_chat import LocalChat
from flipbench.models.vlm.scoring import unpack_state
from flipbench.prompting.prompts import choice_prompt
from tests.fixtures.tiny_families import FAMILIES, save

pytestmark = pytest.mark.slow

WRITERS = ("blip-2 (T5)",)  # these only write
ONE_IMAGE = ("blip-2", "blip-2 (T5)", "instructblip")
NO_TEXT_ALONE = (*ONE_IMAGE, "paligemma")
CHOOSERS = [family for family in FAMILIES if family not in WRITERS]
TOLERANCE = 2e-5  # nats, float32, between a batch and one at a time


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], HuggingFaceVLM]:
    """Build and load a family once."""
    loaded: dict[str, HuggingFaceVLM] = {}

    def loader(family: str) -> HuggingFaceVLM:
        if family == "smolvlm":
            pytest.importorskip("num2words")
        if family not in loaded:
            folder = save(family, tmp_path_factory.mktemp("families") / "model")
            loaded[family] = HuggingFaceVLM(str(folder), family)
        return loaded[family]

    return loader


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    return ImageStore(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def pictures(store: ImageStore) -> list[ImageRef]:
    """Return pictures of unlike sizes and shapes."""
    rng = np.random.default_rng(0)
    sizes = [(40, 40), (70, 32), (30, 61), (56, 56)]
    return [
        store.put_image(
            Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)), "a test"
        )
        for width, height in sizes
    ]


def probe(number: int, images: tuple[ImageRef, ...], **changes: Any) -> Probe:
    questions = [
        "What color is the star?",
        "How many red squares are there?",
        "Look at the picture with care, and then say: is the circle left of the cross?",
    ]
    options = ("red", "blue", "green", "white")[: 2 + number % 3]
    asked = {"ask": "choose", "options": options, "n_options": len(options)} | changes
    prompt = choice_prompt(questions[number % 3], options)
    return Probe(item_id=str(number), variant="original", images=images, prompt=prompt, **asked)


def answered(vlm: HuggingFaceVLM, probes: list[Probe], images: ImageStore) -> list[Response]:
    found = vlm.ask(probes, images)
    for response in found:
        if isinstance(response, Exception):
            raise response
    return [response for response in found if isinstance(response, Response)]


def plain_inputs(vlm: HuggingFaceVLM, asked: Probe, images: ImageStore) -> dict[str, Any]:
    """Return one probe's inputs, by the processor alone."""
    rendered = vlm.conversation.render(asked.prompt, len(asked.images))
    bos = vlm.tokenizer.bos_token
    inputs = vlm.processor(
        text=rendered,
        images=[images.open(ref) for ref in asked.images] or None,
        return_tensors="pt",
        add_special_tokens=not (bos and rendered.startswith(bos)),
    )
    return {name: value for name, value in inputs.items() if name != "labels"}


def with_token(inputs: dict[str, Any], token: int) -> dict[str, Any]:
    """Return a prompt's inputs with one token of the reply behind it."""
    more = {"input_ids": token, "attention_mask": 1, "token_type_ids": 1, "mm_token_type_ids": 0}
    return inputs | {
        name: torch.cat([inputs[name], torch.tensor([[value]])], 1)
        for name, value in more.items()
        if name in inputs
    }


@torch.no_grad()
def next_log_probs(vlm: HuggingFaceVLM, inputs: dict[str, Any]) -> torch.Tensor:
    return vlm.model(**inputs).logits[0, -1].log_softmax(-1)


@torch.no_grad()
def greedy(vlm: HuggingFaceVLM, inputs: dict[str, Any], n_tokens: int) -> str:
    """Write token by token, each by a whole forward."""
    written: list[int] = []
    for _ in range(n_tokens):
        more = {}
        if vlm.name in WRITERS:
            more["decoder_input_ids"] = torch.tensor([[0, *written]])
        token = int(vlm.model(**inputs, **more).logits[0, -1].argmax())
        if token == vlm.tokenizer.eos_token_id:
            break
        written.append(token)
        if not more:
            inputs = with_token(inputs, token)
    return str(vlm.tokenizer.decode(written, skip_special_tokens=True))


@pytest.mark.parametrize("family", CHOOSERS)
def test_choosing_matches_the_plain_model(
    family: str,
    load: Callable[[str], HuggingFaceVLM],
    store: ImageStore,
    pictures: list[ImageRef],
) -> None:
    vlm = load(family)
    probes = [probe(i, (pictures[i % 4],)) for i in range(6)]
    batched = answered(vlm, probes, store)
    backwards = answered(vlm, probes[::-1], store)[::-1]
    for asked, a, b in zip(probes, batched, backwards, strict=True):
        (alone,) = answered(vlm, [asked], store)
        assert a.choice == b.choice == alone.choice
        assert a.option_log_probs == pytest.approx(alone.option_log_probs, abs=TOLERANCE)
        assert b.option_log_probs == pytest.approx(alone.option_log_probs, abs=TOLERANCE)
        log_probs = next_log_probs(vlm, plain_inputs(vlm, asked, store))
        # the letter as this tokenizer writes it where a reply goes on from a prompt
        after = {"paligemma": "{}", "instructblip": "so {}", "llava": "so {}", "idefics2": "so {}"}
        letter = after.get(family, " {}" if family in ("blip-2", "idefics3", "smolvlm") else "{}")
        ids = [
            vlm.tokenizer.convert_tokens_to_ids(vlm.tokenizer.tokenize(letter.format(x))[-1])
            for x in "ABCD"[: asked.n_options]
        ]
        assert a.option_log_probs == pytest.approx(log_probs[ids].tolist(), abs=TOLERANCE)
    assert len({response.option_log_probs for response in batched}) == len(batched)
    first = vlm.tokenizer("?")["input_ids"][0]
    inputs = vlm.conversation.encode([vlm.conversation.render("?", 1)], [[store.open(pictures[0])]])
    begins_with_bos = first == vlm.tokenizer.bos_token_id
    assert (inputs["input_ids"] == first).sum() == 1 or not begins_with_bos


@pytest.mark.parametrize("family", CHOOSERS)
def test_the_image_changes_the_answer(
    family: str,
    load: Callable[[str], HuggingFaceVLM],
    store: ImageStore,
    pictures: list[ImageRef],
) -> None:
    answers = answered(load(family), [probe(2, (picture,)) for picture in pictures], store)
    for i, a in enumerate(answers):
        for b in answers[:i]:
            assert a.option_log_probs != pytest.approx(b.option_log_probs, abs=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_generated_text_matches_greedy_decoding(
    family: str,
    load: Callable[[str], HuggingFaceVLM],
    store: ImageStore,
    pictures: list[ImageRef],
) -> None:
    vlm = load(family)
    how = {"ask": "generate", "max_new_tokens": 4}
    probes = [probe(i, (pictures[i % 4],), **how) for i in range(4)]
    batched = answered(vlm, probes, store)
    for asked, response in zip(probes, batched, strict=True):
        assert answered(vlm, [asked], store)[0].text == response.text
        assert response.text == greedy(vlm, plain_inputs(vlm, asked, store), 4)
    assert len({response.text for response in batched}) > 1


@pytest.mark.parametrize("family", CHOOSERS)
def test_scores_match_the_plain_model(
    family: str,
    load: Callable[[str], HuggingFaceVLM],
    store: ImageStore,
    pictures: list[ImageRef],
) -> None:
    vlm = load(family)
    replies = ["red", "the answer is: B", "A picture of 3 objects.", "no"]
    probes = [
        probe(i, (pictures[i],), ask="score", continuation=reply, options=(), n_options=0)
        for i, reply in enumerate(replies)
    ]
    batched = answered(vlm, probes, store)
    for asked, response in zip(probes, batched, strict=True):
        inputs, expected = plain_inputs(vlm, asked, store), []
        (tail,) = vlm.conversation.reply_ids([asked.continuation])
        assert vlm.tokenizer.decode(tail).strip() == asked.continuation
        for token in tail:
            expected.append(float(next_log_probs(vlm, inputs)[token]))
            inputs = with_token(inputs, token)
        assert response.token_log_probs == pytest.approx(expected, abs=5 * TOLERANCE)
        (alone,) = answered(vlm, [asked], store)
        assert response.token_log_probs == pytest.approx(alone.token_log_probs, abs=5 * TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("before", ["", "What color is the star?"])
def test_greedy_tokens_of_raw_text_are_those_that_generation_produces(
    family: str, before: str, load: Callable[[str], HuggingFaceVLM], store: ImageStore
) -> None:
    vlm = load(family)
    texts = [" A. red B. blue", " A. green B. a dark red star", " no"]
    probes = [
        Probe(item_id="i", variant="v", prompt=before, ask="score_text", continuation=f"{text} end")
        for text in texts
    ]
    if "raw_text" not in vlm.can:
        assert family in NO_TEXT_ALONE
        (refusal,) = vlm.ask(probes[:1], store)
        assert isinstance(refusal, DataError)
        return
    for asked, response in zip(probes, answered(vlm, probes, store), strict=True):
        context, ids = vlm.conversation.raw_ids(asked.prompt, asked.continuation)
        assert vlm.tokenizer.decode([*context, *ids], skip_special_tokens=True).endswith("end")
        assert response.n_tokens == len(ids) == len(response.is_greedy)
        (alone,) = answered(vlm, [asked], store)
        assert response.is_greedy == alone.is_greedy
        for place, (token, is_greedy) in enumerate(zip(ids, response.is_greedy, strict=True)):
            inputs = torch.tensor([[*context, *ids[:place]]])
            log_probs = next_log_probs(vlm, {"input_ids": inputs})
            assert (int(log_probs.argmax()) == token) is is_greedy
            assert response.token_log_probs[place] == pytest.approx(
                float(log_probs[token]), abs=5 * TOLERANCE
            )


def state_of(answer: Response | Exception) -> torch.Tensor:
    assert isinstance(answer, Response), answer
    return torch.tensor(unpack_state(answer.state))


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_match_one_by_one(
    family: str,
    load: Callable[[str], HuggingFaceVLM],
    store: ImageStore,
    pictures: list[ImageRef],
) -> None:
    vlm = load(family)
    probes = [
        probe(i, (pictures[i],), ask="score", continuation=reply, options=(), n_options=0)
        for i, reply in enumerate(["red", "a red star", "no"])
    ]
    if family in ONE_IMAGE:
        assert "hidden_states" not in vlm.can
        (refusal,) = vlm.ask([probes[0].model_copy(update={"ask": "embed"})], store)
        assert isinstance(refusal, DataError) and "not hidden_states" in str(refusal)
        return
    asked = [p.model_copy(update={"ask": "embed"}) for p in probes]
    batched = torch.stack([state_of(answer) for answer in vlm.ask(asked, store)])
    alone = torch.stack([state_of(vlm.ask([p], store)[0]) for p in asked])
    assert torch.allclose(batched, alone, atol=1e-4)
    assert torch.cdist(batched, batched).fill_diagonal_(1).min() > 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_probes_with_zero_and_several_images(
    family: str,
    load: Callable[[str], HuggingFaceVLM],
    store: ImageStore,
    pictures: list[ImageRef],
) -> None:
    """What a family cannot read is refused for that probe alone; what it can is read whole."""
    vlm = load(family)
    how: dict[str, Any] = {}
    if family in WRITERS:
        how = {"ask": "generate", "max_new_tokens": 2}
    one, two, other = pictures[0], (pictures[0], pictures[1]), (pictures[1], pictures[0])
    counts = {"one": (one,), "none": (), "two": two, "swapped": other, "three": (*two, pictures[2])}
    probes = {name: probe(2, images, **how) for name, images in counts.items()}
    found = dict(zip(probes, vlm.ask(list(probes.values()), store), strict=True))
    refused = {name for name, answer in found.items() if isinstance(answer, DataError)}
    expected = {"none"} if family in NO_TEXT_ALONE else set()
    assert refused == expected | ({"two", "swapped", "three"} if family in ONE_IMAGE else set())
    for name in refused:
        assert "1 image, not" in str(found[name]) and family in str(found[name])
    answers = {name: a for name, a in found.items() if isinstance(a, Response)}
    for name, answer in answers.items():
        (alone,) = answered(vlm, [probes[name]], store)
        assert (answer.text, answer.choice) == (alone.text, alone.choice)
        assert answer.option_log_probs == pytest.approx(alone.option_log_probs, abs=TOLERANCE)
    if family in WRITERS:
        assert all(not answer.option_log_probs for answer in answers.values())
    else:
        for one, two in combinations(answers.values(), 2):
            assert one.option_log_probs != pytest.approx(two.option_log_probs, abs=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_capabilities_are_known_before_loading_weights(
    family: str, load: Callable[[str], HuggingFaceVLM], tmp_path: Path
) -> None:
    vlm = load(family)
    folder = Path(vlm.model.name_or_path)
    alone = tmp_path / "config-only"
    alone.mkdir()
    (alone / "config.json").write_text((folder / "config.json").read_text())
    assert capabilities(str(alone)) == vlm.can
    assert ("choose" in vlm.can) == (family not in WRITERS)


def test_a_chat_with_a_local_model_reads_the_first_token_once(
    load: Callable[[str], HuggingFaceVLM], store: ImageStore, pictures: list[ImageRef]
) -> None:
    """Llama 3's template and its tokenizer would both write one."""
    vlm = load("idefics3")
    chat = LocalChat(vlm, 1)
    first, seen = vlm.tokenizer.bos_token_id, []
    hook = vlm.model.register_forward_pre_hook(
        lambda _, __, inputs: seen.append(inputs["input_ids"]), with_kwargs=True
    )
    try:
        chat.ask([ChatRequest("Describe it.", "A star.", (pictures[0],))], store)
    finally:
        hook.remove()
    assert (seen[0] == first).sum() == 1
