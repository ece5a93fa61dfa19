"""A judge model: what it is told, how its reply is read, and that nothing unclear is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flipbench.config.chat import ChatSpec
from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Edit, Flip, Item, Verdict
from flipbench.core.run import Run
from flipbench.filters.judges.api import APIJudge, read_verdict
from flipbench.filters.pipeline import keep_valid
from flipbench.models.chat.api import ChatAPI
from flipbench.models.protocols import JudgeDecision
from tests.fixtures.openai_server import OpenAIServer
from tests.fixtures.options import QUIET


def chat(server: OpenAIServer, **settings: Any) -> ChatAPI:
    chosen: dict[str, Any] = {"model": "o3", "max_retries": 0, "timeout": 5}
    return ChatAPI(ChatSpec(base_url=server.base_url, **(chosen | settings)))


def edited(item: Item, picture_of: Item, new: int) -> Candidate:
    """Return ``item`` with another item's picture as its edit."""
    assert item.options
    flip = Flip(item_id=item.id, method="m", seed=0, new_answer=new, new_text=item.options[new])
    caption = Caption(flip_id=flip.id, captioner="c", prompt="p", text="t")
    edit = Edit(
        caption_id=caption.id,
        caption_text="t",
        source_sha256=item.images[0].sha256,
        editor="e",
        seed=0,
        image=picture_of.images[0],
    )
    return Candidate(item, flip, caption, edit)


@pytest.fixture
def candidate(shapes_items: list[Item]) -> Candidate:
    options = ("a quince", "a medlar", "a damson")
    changed = {"id": "", "question": "Which fruit?", "options": options, "answer": 0}
    changed["answer_text"] = options[0]
    item = Item.model_validate(shapes_items[0].model_dump() | changed)
    return edited(item, shapes_items[1], 2)


def judge_one(judge: APIJudge, candidate: Candidate, store: ImageStore) -> JudgeDecision:
    (opinion,) = judge([candidate], store)
    assert isinstance(opinion, JudgeDecision), opinion
    return opinion


@pytest.mark.parametrize(
    ("reply", "decision"),
    [
        ("Answer: KEEP", "keep"),
        ("I see two stars.\n\nanswer: reject", "reject"),
        ("**Answer: KEEP**", "keep"),
        ("**Answer:** KEEP.", "keep"),
        ("> Answer: `REJECT`\n\n", "reject"),
        ("Answer: REJECT, at first sight.\nBut the sign says 40.\nAnswer: KEEP", "keep"),
        ("Answer: KEEP\nAnswer: KEEP", "keep"),
        ("Answer: KEEP\nThank you.", "keep"),
        ("Answer: KEEP\n\nAnswer: REJECT", "unsure"),
        ("Answer: REJECT\nAnswer: KEEP", "unsure"),
        ("Answer: KEEP or REJECT", "unsure"),
        ("Answer: KEEP|REJECT", "unsure"),
        ("Answer: not KEEP", "unsure"),
        ("Answer: KEEP?", "unsure"),
        ("Answer:", "unsure"),
        ("Answer: KEEP\nNo, on reflection: reject.", "unsure"),
        ("KEEP", "unsure"),
        ("The answer is to keep it.", "unsure"),
        ("Answer: UPKEEP", "unsure"),
        ("I would say Answer: KEEP", "unsure"),
        ("Answer：KEEP", "keep"),
        ("Antwort: KEEP", "unsure"),
        ("Answer: 保留", "unsure"),
        ("", "unsure"),
    ],
)
def test_the_last_answer_line_counts(reply: str, decision: str) -> None:
    found, why = read_verdict(reply)
    assert found == decision and bool(why) == (decision == "unsure")


def test_the_judge_sees_only_the_new_image_and_answer(
    server: OpenAIServer, shapes_store: ImageStore, candidate: Candidate
) -> None:
    server.reply = lambda body: "Answer: KEEP"
    judge_one(APIJudge(chat(server), structured=False), candidate, shapes_store)
    (body,) = server.chats()
    picture, text = body["messages"][1]["content"]
    assert candidate.edit
    data = shapes_store.path(candidate.edit.image).read_bytes()
    assert (
        len(picture["image_url"]["url"]) == len("data:image/png;base64,") + -(-len(data) // 3) * 4
    )
    assert text["text"].endswith("<answer>\n> a damson\n</answer>")
    assert text["text"].count("quince") == 1, "the old answer is an option and no more"
    assert "response_format" not in body


def test_structured_replies_are_parsed(
    server: OpenAIServer, shapes_store: ImageStore, candidate: Candidate
) -> None:
    server.reply = lambda body: json.dumps({"reasoning": "It is a damson.", "answer": "KEEP"})
    opinion = judge_one(APIJudge(chat(server)), candidate, shapes_store)
    assert (opinion.decision, opinion.reason) == ("keep", "It is a damson.")
    form = server.chats()[0]["response_format"]["json_schema"]["schema"]
    assert form["properties"]["answer"]["enum"] == ["KEEP", "REJECT"]
    assert form["additionalProperties"] is False


@pytest.mark.parametrize(
    ("reply", "decision"),
    [
        ('{"reasoning": "x", "answer": "KE', "unsure"),
        ('{"reasoning": "x", "answer": "PERHAPS"}', "unsure"),
        ("No JSON.\nAnswer: REJECT", "reject"),
    ],
)
def test_a_reply_that_violates_its_schema_is_read_as_text(
    server: OpenAIServer,
    shapes_store: ImageStore,
    candidate: Candidate,
    reply: str,
    decision: str,
) -> None:
    server.reply = lambda body: reply
    assert judge_one(APIJudge(chat(server)), candidate, shapes_store).decision == decision


def test_a_server_without_schemas_is_asked_for_text(
    server: OpenAIServer, shapes_store: ImageStore, candidate: Candidate
) -> None:
    server.rejects = {"response_format"}
    server.reply = lambda body: "It is ripe.\nAnswer: KEEP"
    opinion = judge_one(APIJudge(chat(server)), candidate, shapes_store)
    assert (opinion.decision, opinion.reason) == ("keep", "It is ripe.\nAnswer: KEEP")


@pytest.mark.parametrize(
    ("reply", "decision", "chosen"),
    [
        ("It is a damson.\nAnswer: C", "keep", "a damson"),
        ("Answer: (C) a damson", "keep", "a damson"),
        ("Answer: A", "reject", "a quince"),
        ("Answer: UNCLEAR", "reject", "UNCLEAR"),
        ("Answer: B or C", "unsure", "B or C"),
        ("Answer: D", "unsure", "D"),
        ("Answer: A\nAnswer: C", "unsure", None),
        ("C", "unsure", None),
        ('{"reasoning": "x", "answer": "C"}', "keep", "a damson"),
        ('{"reasoning": "x", "answer": "B. a medlar"}', "reject", "a medlar"),
        ('{"reasoning": "x", "answer": "unclear"}', "reject", "UNCLEAR"),
    ],
)
def test_a_blind_judge_answers_without_seeing_the_answer(
    server: OpenAIServer,
    shapes_store: ImageStore,
    candidate: Candidate,
    reply: str,
    decision: str,
    chosen: str | None,
) -> None:
    server.reply = lambda body: reply
    opinion = judge_one(APIJudge(chat(server), blind=True), candidate, shapes_store)
    assert (opinion.decision, opinion.blind_answer) == (decision, chosen)
    assert opinion.reason
    prompt = server.chats()[0]["messages"][1]["content"][-1]["text"]
    assert prompt.count("damson") == prompt.count("quince") == 1, "it is not told which is meant"


def test_a_blind_judge_s_prompt_must_not_contain_the_answer(
    server: OpenAIServer, tmp_path: Path
) -> None:
    path = tmp_path / "own.txt"
    head = "name: x\nversion: 1\nabout: y\nplaceholders: [question, options, new_answer]\n"
    path.write_text(head + "---\nJudge.\n---\n{question} {options} {new_answer}\n")
    with pytest.raises(ConfigError, match=r"own.txt: the prompt uses \{new_answer\}"):
        APIJudge(chat(server), path, blind=True)
    with pytest.raises(ConfigError, match=r"judge-blind-v1.txt: the prompt does not use"):
        APIJudge(chat(server), "judge-blind-v1")


def test_judges_with_different_settings_have_different_names(server: OpenAIServer) -> None:
    judges = [
        APIJudge(chat(server)),
        APIJudge(chat(server), structured=False),
        APIJudge(chat(server), blind=True),
        APIJudge(chat(server, max_tokens=99)),
    ]
    assert len({judge.name for judge in judges}) == 4
    assert judges[0].name == APIJudge(chat(server)).name
    assert judges[0].name.startswith("o3 judge-v2 ")


def test_only_a_clear_keep_is_a_keep(
    server: OpenAIServer, shapes_store: ImageStore, shapes_items: list[Item], tmp_path: Path
) -> None:
    verdicts = ["KEEP", "REJECT", "KEEP or REJECT", "KEEP"]
    server.reply = lambda body: f"Answer: {verdicts[len(server.chats()) - 1]}"
    server.script.extend(["ok", "ok", "ok", "500"])
    candidates = []
    for item, other in zip(shapes_items[:4], shapes_items[4:8], strict=True):
        assert item.answer is not None
        candidates.append(edited(item, other, (item.answer + 1) % 2))
    judge = APIJudge(chat(server, n_concurrent=1), structured=False)
    with Run(tmp_path) as run:
        run.images.folder = shapes_store.folder
        benchmark, (_, report) = keep_valid("b", candidates, [judge], run, options=QUIET)
        given = [verdict for verdict in run.read(Verdict) if verdict.rater == judge.name]
        decisions = [verdict.decision for verdict in given]
        assert {verdict.rater_kind for verdict in given} == {"judge"}
    assert decisions == ["keep", "reject", "unsure"] and report.n_failed == 1
    assert {v.usage["completion_tokens"] for v in given} == {50}, "what it cost is kept"
    assert [pair.original.id for pair in benchmark.pairs] == [shapes_items[0].id]


def test_items_that_cannot_be_judged_fail_alone(
    server: OpenAIServer, shapes_store: ImageStore, shapes_items: list[Item], candidate: Candidate
) -> None:
    server.reply = lambda body: "Answer: KEEP"
    opinions = APIJudge(chat(server))([Candidate(shapes_items[0]), candidate], shapes_store)
    assert [type(opinion) for opinion in opinions] == [DataError, JudgeDecision]


def test_a_refused_key_stops_the_judge(
    server: OpenAIServer,
    shapes_store: ImageStore,
    candidate: Candidate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong")
    (error,) = APIJudge(chat(server))([candidate], shapes_store)
    assert isinstance(error, PrerequisiteError) and "sk-wrong" not in str(error)


@pytest.mark.parametrize(
    ("replies", "decision", "n_asked"),
    [
        (["I think so.", "Answer: KEEP"], "keep", 2),
        (["I think so.", "Still so."], "unsure", 2),
        (["Answer: REJECT", "Answer: KEEP"], "reject", 1),
    ],
)
def test_a_reply_that_cannot_be_read_is_asked_for_once_more(
    server: OpenAIServer,
    shapes_store: ImageStore,
    candidate: Candidate,
    replies: list[str],
    decision: str,
    n_asked: int,
) -> None:
    waiting = list(replies)
    server.reply = lambda body: waiting.pop(0)
    judge = APIJudge(chat(server, price_in=1, price_out=1), structured=False)
    opinion = judge_one(judge, candidate, shapes_store)
    assert opinion.decision == decision and len(server.chats()) == n_asked
    spent = judge.chat.spent.cost_usd  # type: ignore[attr-defined]
    assert opinion.usage["cost_usd"] == pytest.approx(spent) and spent > 0
    if n_asked == 2:
        second = server.chats()[1]["messages"][-1]["content"][-1]["text"]
        assert "no 'Answer:' line" in second and second.startswith(
            server.chats()[0]["messages"][-1]["content"][-1]["text"]
        )


def test_a_judge_that_decides_neither_way_is_named(
    server: OpenAIServer,
    shapes_store: ImageStore,
    candidate: Candidate,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.reply = lambda body: "Hard to say."
    judge = APIJudge(chat(server), structured=False)
    with Run(tmp_path) as run:
        for ref in (candidate.source, candidate.edit.image):  # type: ignore[union-attr]
            run.images.put_image(shapes_store.open(ref), "x")
        keep_valid("b", [candidate], [judge], run, QUIET)
    assert "decides neither way on 1 of 1 pairs (100 %)" in caplog.text
    assert "no 'Answer:' line" in caplog.text
