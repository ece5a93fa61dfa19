"""Judging rationales over HTTP: splitting, verdicts, retries, and what is left out."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flipbench as fb
from flipbench.api.stages import reasoning
from flipbench.config.chat import ChatSpec
from flipbench.config.experiment import AnswerJudgeConfig
from flipbench.config.local_models import LocalChatSpec, ModelConfig
from flipbench.core.errors import DataError
from flipbench.core.run import Run
from flipbench.evaluate.reasoning import replies
from flipbench.evaluate.reasoning.cases import read_cases
from flipbench.evaluate.reasoning.judge import NO_RATIONALE, JudgedCase, ReasoningJudge
from flipbench.evaluate.reasoning.tables import reasoning_tables
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.batch_api import BatchAPI
from tests.evaluate.reasoning.conftest import DISCUSSION, Rules, Write
from tests.fixtures.command_line import Flipbench
from tests.fixtures.openai_server import KEY, OpenAIServer

RIGHT = {"prediction": "B", "rationale": "Fever is seen. The ring is wrong. It is B, so wrong."}
WRONG = {"prediction": "A", "rationale": "A cyst has no fever. It is so."}


@pytest.fixture
def server(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with OpenAIServer() as running:
        running.reply = rules
        yield running


def spec(server: OpenAIServer) -> ChatSpec:
    return ChatSpec(model="o3", base_url=server.base_url, price_in=2, price_out=8)


def judged(server: OpenAIServer, path: Path, folder: Path, **options: Any) -> list[JudgedCase]:
    with Run(folder) as run:
        judge = ReasoningJudge(ChatAPI(spec(server)), run, progress=False, **options)
        return judge(read_cases(path))


def table(tables: Any, key: str) -> list[list[str]]:
    (found,) = [t for t in tables if t.key == key]
    return [[row.header, *(cell.plain() for cell in row.cells)] for row in found.rows]


def test_steps_are_judged_by_the_outcome(
    server: OpenAIServer, write_cases: Write, tmp_path: Path
) -> None:
    found = judged(server, write_cases(RIGHT, WRONG), tmp_path / "run")
    assert [one.case.outcome for one in found] == ["right", "wrong"]
    assert found[0].steps == ("Fever is seen.", "The ring is wrong.", "It is B, so wrong.")
    tables = reasoning_tables(found, "o3")
    right, wrong = table(tables, "reasoning_steps")
    assert right[1:4] == ["right", "1", "33.3 (1/3)"] and right[4] == "0.0 (0/1)"
    assert wrong[3] == "100.0 (2/2)" and right[5] == "0/3"
    assert [row[2].split(" [")[0] for row in table(tables, "reasoning_symptom")] == [
        "100.0 (1/1)", "0.0 (0/1)",
    ]  # fmt: skip
    errors = {row[1]: row[2].split(" [")[0] for row in table(tables, "reasoning_errors")}
    assert errors["Image Understanding"] == errors["Reasoning"] == "100.0 (2/2)"
    assert errors["Medical Knowledge"] == errors["none of these"] == "0.0 (0/2)"
    (cell,) = {row[2] for row in table(tables, "reasoning_errors") if row[1] == "Reasoning"}
    assert cell == "100.0 (2/2)", "two steps of one case have no interval"
    assert table(tables, "reasoning_left_out") == []


def test_the_splitter_does_not_see_the_answer(
    server: OpenAIServer, write_cases: Write, tmp_path: Path
) -> None:
    judged(server, write_cases(RIGHT), tmp_path / "run")
    split, verdicts = (body["messages"][-1]["content"][-1]["text"] for body in server.chats())
    assert "Correct answer" not in split and "ring-shaped" not in split and "Fever for" in split
    assert "Correct answer:\n> an abscess" in verdicts and "ring-shaped" in verdicts


def test_missing_verdicts_are_asked_again_and_then_left_out(
    server: OpenAIServer, rules: Rules, write_cases: Write, tmp_path: Path
) -> None:
    rules.skip = {2}
    (one,) = judged(server, write_cases(RIGHT), tmp_path / "run")
    assert set(one.verdicts) == {1, 2, 3} and not one.problems
    texts = [body["messages"][-1]["content"][-1]["text"] for body in server.chats()]
    assert len(texts) == 3 and "with these numbers: 2\n" in texts[-1]
    (one,) = judged(server, write_cases(RIGHT), tmp_path / "other", n_attempts=1)
    assert set(one.verdicts) == {1, 3} and one.problems == [f"step: {replies.NO_VERDICT}"]
    tables = reasoning_tables([one], "o3")
    (row,) = table(tables, "reasoning_steps")
    assert row[3] == "50.0 (1/2)" and row[5] == "1/3", "not 33.3 %"
    assert table(tables, "reasoning_symptom")[0][2:] == ["– (0/0)", "– (0/0)", "1"]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"factual": "verdadero"}, replies.INVALID),
        ({"factual": 1}, replies.INVALID),
        ({"error_types": ["Bild"], "factual": False}, replies.INVALID),
        ({"error_types": ["image"]}, replies.CONTRADICTION),
        ({"number": 7}, replies.NO_VERDICT),
        ({"number": "1"}, replies.NO_VERDICT),
        ({"number": True}, replies.INVALID),
        ({"factual": "真"}, replies.INVALID),
        ({"critical": "nein"}, replies.INVALID),
    ],
)
def test_verdicts_in_another_form_are_named(entry: dict[str, Any], why: str) -> None:
    def read(text: str) -> replies.Reading[replies.StepVerdict]:
        return replies.read_verdicts(text, [1], replies.StepVerdict)

    good = {"number": 1, "factual": True, "critical": False, "error_types": [], "explanation": "x"}
    assert read(json.dumps({"verdicts": [good]})).problems == {}
    text = json.dumps({"verdicts": [good | entry]})
    assert read(text).problems == {1: why}
    twice = read(json.dumps({"verdicts": [good, good]}))
    assert twice.problems == {1: replies.TWICE} and not twice.values
    fenced = f"Gerne:\n```json\n{json.dumps({'verdicts': [good]})}\n```"
    assert read(fenced).values[1].factual


@pytest.mark.parametrize("rationale", ["", " \n\t", None, "\u3000"])
def test_empty_rationales_are_not_asked_about_and_counted(
    rationale: str | None, server: OpenAIServer, write_cases: Write, tmp_path: Path
) -> None:
    (one,) = judged(
        server, write_cases({"prediction": "B", "rationale": rationale}), tmp_path / "r"
    )
    assert one.steps == () and one.problems == [NO_RATIONALE] and not server.chats()
    assert reasoning_tables([one], "o3")[0].key == "reasoning_left_out"


def test_verdicts_in_another_language_are_asked_again_and_then_left_out(
    server: OpenAIServer, rules: Rules, write_cases: Write, tmp_path: Path
) -> None:
    prose = "步骤一正确，步骤二错误。"
    rules.instead["steps"] = lambda user: prose
    (one,) = judged(server, write_cases(RIGHT), tmp_path / "prose")
    assert one.verdicts == {} and len(one.steps) == 3
    assert set(one.problems) == {f"step: {replies.NOT_JSON}"}
    rules.instead["steps"] = lambda user: '{"urteile": [{"nummer": 1, "faktisch": true}]}'
    (one,) = judged(server, write_cases(RIGHT), tmp_path / "keys", n_attempts=2)
    assert set(one.problems) == {f"step: {replies.NOT_THE_FORM}"}
    (row,) = table(reasoning_tables([one], "o3"), "reasoning_steps")
    assert row[3] == "– (0/0)", "never counted as wrong"


@pytest.mark.parametrize("text", ["Paso 1: hay fiebre.", '{"pasos": ["x"]}', '{"steps": []}'])
def test_rationales_that_cannot_be_split_are_counted(
    text: str, server: OpenAIServer, rules: Rules, write_cases: Write, tmp_path: Path
) -> None:
    rules.instead["split"] = lambda user: text
    found = judged(server, write_cases(RIGHT, {"prediction": "B"}), tmp_path / "run")
    assert [len(one.steps) for one in found] == [0, 0] and len(server.chats()) == 3
    assert found[0].problems[0].startswith("steps: the reply") and found[1].problems == [
        NO_RATIONALE
    ]
    (only,) = reasoning_tables(found, "o3")
    assert sum(int(row[2]) for row in table([only], "reasoning_left_out")) == 2


def test_discussions_by_sentence_and_rubric(
    server: OpenAIServer, rules: Rules, write_cases: Write, tmp_path: Path
) -> None:
    path = write_cases({"case_discussion": DISCUSSION}, {"case_discussion": {"Outcome": "Good."}})
    found = judged(server, path, tmp_path / "run")
    assert found[1].problems[0].startswith("discussion: Background, Clinical Perspective")
    tables = reasoning_tables(found, "o3")
    (rubrics,) = table(tables, "discussion_rubrics")
    assert rubrics[1:] == ["1/1", "2.00", "1.00", "2.00", "1.00", "2.00", "8.00"]
    assert table(tables, "discussion_sentences")[0][-1].startswith("100.0 (10/10)")
    good = json.loads(rules({"messages": server.chats()[-1]["messages"]}))
    rules.instead["rubric"] = lambda user: json.dumps({**good, "total": 9})
    (one, _) = judged(server, path, tmp_path / "other", n_attempts=2)
    assert one.rubric is None and f"rubric: {replies.WRONG_TOTAL}" in one.problems


def test_the_batch_api_and_a_second_run(
    server: OpenAIServer, write_cases: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchAPI, "poll_seconds", 0.01)
    config = AnswerJudgeConfig(chat=spec(server), batch=True).model_dump(mode="json")
    path = write_cases(RIGHT, WRONG)
    first = fb.reasoning(path, judge=config, out=tmp_path / "out", progress=False)
    assert not server.chats() and len(server.batches) == 2
    again = fb.reasoning(path, judge=config, out=tmp_path / "out", progress=False)
    assert len(server.batches) == 2 and again.page.read_text() == first.page.read_text()


def test_the_command_its_cost_and_people(
    server: OpenAIServer, write_cases: Write, tmp_path: Path, flipbench: Flipbench
) -> None:
    path, judge = write_cases(RIGHT, WRONG, {"rationale": ""}), tmp_path / "judge.yaml"
    chat = {"model": "o3", "base_url": server.base_url, "price_in": 2, "price_out": 8}
    judge.write_text(json.dumps({"chat": chat}))
    arguments = ("reasoning", path, "--judge", judge, "--out", tmp_path / "out", "--quiet")
    dry = flipbench(*arguments, "--dry-run")
    assert dry.status == 0 and not server.chats()
    assert "3 cases, 1 without rationale" in dry.out and "split-steps: o3: 2 requests" in dry.out
    done = flipbench(*arguments)
    assert done.status == 0 and NO_RATIONALE in done.out, done.err
    assert "Right answers with a wrong critical step, in percent: 100.0 (1/1)" in done.out
    result = fb.reasoning(path, judge={"chat": chat}, out=tmp_path / "out", progress=False)
    assert len(result.to_frame()) == 5 and str(result) in done.out

    with (tmp_path / "out" / "steps-to-rate.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    ratings = ["true", "false", "true", "true", ""]
    for row, rating in zip(rows, ratings, strict=True):
        row |= {"person": "expert", "factual": rating}
    rated = tmp_path / "rated.csv"

    def write() -> None:
        with rated.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    write()
    done = flipbench(*arguments, "--people", rated)
    assert done.status == 0, done.err
    assert "| o3, expert | 4 | 75.0 % (3/4)" in done.out and "0.577" in done.out
    rows[1]["text"] = "Another step."
    write()
    done = flipbench(*arguments, "--people", rated)
    assert done.status == 2 and "line 3: case 'c0' has no such step 2" in done.err


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"answer": "Z"}, "the answer 'Z' is none of the options"),
        ({"answer": ""}, "answer is missing or empty"),
        ({"options": "A"}, "options must be a list of texts"),
        ({"rationale": ["x"]}, "rationale must be a text, not list"),
        ({"options": ["a cyst"], "answer": "A"}, "there is only one option, 'a cyst'"),
        ({"id": "c0"}, "case 'c0' is also at cases.jsonl, line 1"),
    ],
)
def test_invalid_cases_are_named(case: dict[str, Any], message: str, write_cases: Write) -> None:
    with pytest.raises(DataError, match="cases.jsonl, line 2: ") as error:
        read_cases(write_cases({}, case))
    assert message in str(error.value)


def test_a_judge_on_this_machine_that_writes_no_json(
    write_cases: Write, tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    model = ModelConfig(path=str(tiny_folders["qwen2_vl"]), device="cpu")
    config = AnswerJudgeConfig(local=LocalChatSpec(model=model, max_tokens=4))
    judge, out = config.model_dump(mode="json"), tmp_path / "out"
    result = fb.reasoning(write_cases(RIGHT), judge=judge, out=out, attempts=1, progress=False)
    assert result.judged[0].steps == () and len(result.judged[0].problems) == 1
    assert result.judged[0].problems[0].startswith("steps: ")
    lines = reasoning.cost_of_judging(write_cases(RIGHT), config)
    assert lines[1:3] == ["split-steps: 1 question", "judge-steps: 1 question"]
    assert lines[3].startswith("1 model with weights here: about ")
