"""A judge's labels: asked once, read strictly, stored with their cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flipbench.config.chat import ChatSpec
from flipbench.core.images import ImageStore
from flipbench.core.run import Run
from flipbench.core.stage import run_stage
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.labels import (
    Label,
    LabelJudge,
    LabelTask,
    Rubric,
    read_label,
    recorded_labels,
)
from flipbench.models.chat.messages import ChatReply
from tests.fixtures.openai_server import KEY, OpenAIServer
from tests.fixtures.options import QUIET

RUBRIC = Rubric("match-v1", "Do they match?", "One: {}\nOther: {}", ("yes", "no"))


class Script:
    """A chat model made of a rule; it counts what it is asked."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        self.name, self.settings, self.rule, self.asked = "rule", {"t": 0}, rule, 0

    def ask(self, requests: Any, images: ImageStore) -> list[ChatReply]:
        self.asked += len(requests)
        assert all('{"label": "yes"} or {"label": "no"}' in r.instruction for r in requests)
        return [ChatReply(self.rule(request.text), {"cost_usd": 0.5}) for request in requests]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ('{"label": "yes"}', "yes"),
        ('```json\n{"label": "no"}\n```', "no"),
        ('{"label": "perhaps"}', "unread"),
        ('{"label": "yes", "why": "x"}', "unread"),
        ("yes", "unread"),
    ],
)
def test_replies_are_parsed(text: str, label: str) -> None:
    assert read_label(text, RUBRIC) == label


def test_texts_are_labelled_once_by_each_rubric(tmp_path: Path) -> None:
    def rule(text: str) -> str:
        one, other = (line for line in text.splitlines() if line.startswith("> "))
        return "what?" if "?" in one else f'{{"label": "{"yes" if one == other else "no"}"}}'

    script = Script(rule)
    judge = LabelJudge(script, ImageStore(Path("nowhere")))
    tasks = [LabelTask(RUBRIC, texts) for texts in (("a", "a"), ("a", "b"), ("?", "b"), ("a", "a"))]
    with Run(tmp_path) as run:
        look_up = recorded_labels(judge, run.read(Label))
        run_stage(judge, tasks, run, options=QUIET)
        run_stage(judge, tasks, run, options=QUIET)
        assert script.asked == 3
        assert [look_up(task) for task in tasks] == ["yes", "no", None, "yes"]
        other = Rubric("match-v2", RUBRIC.instruction, RUBRIC.template, RUBRIC.labels)
        assert look_up(LabelTask(other, ("a", "a"))) is None
        assert "match-v1" in judge.subject(tasks[0])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with OpenAIServer() as server:
        yield server


def test_a_server_labels_and_its_cost_is_recorded(server: OpenAIServer, tmp_path: Path) -> None:
    server.reply = lambda body: '{"label": "no"}'
    spec = ChatSpec(
        model="tiny-vlm", base_url=server.base_url, price_in=1.0, price_out=1.0, max_retries=0
    )
    judge = LabelJudge(ChatAPI(spec), ImageStore(tmp_path / "images"))
    with Run(tmp_path / "run") as run:
        report = run_stage(judge, [LabelTask(RUBRIC, ("a", "b"))], run, options=QUIET)
        (label,) = run.read(Label)
    assert report.n_done == 1 and label.label == "no" and label.usage["cost_usd"] > 0
    assert server.chats()[0]["response_format"]["type"] == "json_schema"
