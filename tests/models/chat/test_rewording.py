"""Other wordings: the templates of the embedded world, and translation there and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flipbench.config.chat import ChatSpec
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Source, Wording
from flipbench.core.run import Run
from flipbench.core.stage import run_stage
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.rewording import BackTranslation, RecordedWordings, as_question
from flipbench.shapes.benchmark import reword
from tests.fixtures.openai_server import KEY, OpenAIServer
from tests.fixtures.options import QUIET

WORDS = {
    "Where is it?": "Zai nali?",
    "Zai nali?": "Where does it stand?",
    "Same?": "Tong?",
    "Tong?": "Same?",
    "Lost?": "Diu le?",
    "a red star above a blue square": "hong xing",
    "hong xing": "over a blue square, a red star",
}


def item(name: str, question: str, answer: str = "here") -> Item:
    return Item(
        benchmark="b", name=name, question=question, answer_text=answer, source=Source(dataset="b")
    )


WHERE, SAME, LOST = item("1", "Where is it?"), item("2", "Same?"), item("3", "Lost?")
CAPTION = item("4", "Describe the picture.", "a red star above a blue square")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    def reply(body: dict[str, Any]) -> str:
        text = body["messages"][-1]["content"]
        return WORDS.get(text if isinstance(text, str) else text[-1]["text"], " ")

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with OpenAIServer() as server:
        server.reply = reply
        yield server


def stage_at(server: OpenAIServer, tmp_path: Path, model: str = "tiny-vlm") -> BackTranslation:
    chat = ChatAPI(ChatSpec(model=model, base_url=server.base_url, max_retries=0))
    return BackTranslation(chat, ImageStore(tmp_path / "images"))


def test_templates_reword_each_question_twice(shapes_items: list[Item]) -> None:
    for one in shapes_items:
        first, second = reword(one, f"{one.question} {one.answer_text}")
        assert len({first, second, f"{one.question} {one.answer_text}"}) == 3
        assert first.endswith(f" {one.answer_text}") and one.question not in first
    assert reword(WHERE, "Where is it?") == [] and reword(shapes_items[0], "another text") == []


def test_each_text_is_translated_there_and_back_once(server: OpenAIServer, tmp_path: Path) -> None:
    items = [as_question(one) for one in (WHERE, SAME, LOST, CAPTION)]
    with Run(tmp_path / "run") as run:
        report = run_stage(stage_at(server, tmp_path), items, run, options=QUIET)
    assert (report.n_done, report.n_failed) == (3, 1) and "b 3" in str(report)
    systems = [body["messages"][0]["content"] for body in server.chats()]
    assert [("Chinese" in s, "English" in s) for s in systems[:4]] == [(True, False)] * 4
    assert all("into English" in s for s in systems[4:])
    n_asked = len(systems)

    with Run(tmp_path / "run") as run:
        report = run_stage(stage_at(server, tmp_path), items, run, options=QUIET)
        wordings = list(run.read(Wording))
    assert (report.n_skipped, report.n_failed) == (3, 1)
    assert len(server.chats()) == n_asked + 2, "only the text that had failed is asked again"
    for wording in wordings:
        assert wording.how == "translate into Chinese and back"
        assert {"there", "back"} == set(wording.usage)

    reword_it = RecordedWordings(wordings)
    assert reword_it(WHERE, "Where is it? here") == ["Where does it stand? here"]
    assert reword_it(CAPTION, CAPTION.answer_text) == ["over a blue square, a red star"]
    assert reword_it(SAME, "Same? here") == reword_it(LOST, "Lost? here") == []
    assert reword_it(WHERE, "another text") == []


def test_another_translator_is_queried_again(server: OpenAIServer, tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        for model in ("tiny-vlm", "o3"):
            stage = stage_at(server, tmp_path, model)
            assert run_stage(stage, [WHERE], run, options=QUIET).n_done == 1
        first = BackTranslation(stage.chat, stage.images, "German")
        assert first.id_of(WHERE) != stage.id_of(WHERE)
    assert len(server.chats()) == 4


def test_candidates_are_stored_with_the_chosen_one() -> None:
    wording = Wording(
        item_id=WHERE.id, how="paraphrase", writer="w", question="B?", candidates=("A?", "B?")
    )
    found = RecordedWordings([wording])
    assert found(WHERE, "Where is it? x") == ["A? x", "B? x"]
