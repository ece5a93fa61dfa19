"""Questions in other words: by template, by file, and by a chat model over HTTP."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flipbench.config.chat import ChatSpec
from flipbench.contaminate.data.wordings import ChatWriter, FileWriter, ShapesWriter, write_wordings
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.records import Item, Wording
from flipbench.core.run import Run
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.rewording import RecordedWordings
from flipbench.shapes.benchmark import scene_of_item
from flipbench.shapes.questions import QuestionFamily
from flipbench.shapes.wording import read_description
from tests.fixtures.openai_server import OpenAIServer
from tests.fixtures.options import QUIET

pytestmark = pytest.mark.slow

THREE = ["Which color has the thing?", "Name it.", "Tell me its color."]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def chat(server: OpenAIServer) -> ChatAPI:
    spec = ChatSpec(model="gpt-4o-2024-08-06", base_url=server.base_url, max_retries=0)
    return ChatAPI(spec)


def test_the_embedded_world_rewords_questions(shapes_items: list[Item], run: Run) -> None:
    found, report = write_wordings(shapes_items, ShapesWriter(), run, options=QUIET)
    assert report.n_done == len(shapes_items) == len(found)
    for item in shapes_items:
        question = QuestionFamily.from_json(item.extra["family"]).question
        wording = found[item.id]
        assert wording.question in (question.text(1), question.text(2)) and not wording.options
        assert wording.question != item.question and len(wording.candidates) == 2
    again, report = write_wordings(shapes_items, ShapesWriter(), run, options=QUIET)
    assert (again, report.n_done, report.n_skipped) == (found, 0, len(shapes_items))


def test_the_embedded_world_speaks_german_and_describes_its_scenes(
    shapes_items: list[Item], run: Run
) -> None:
    writer = ShapesWriter("translate")
    found, _ = write_wordings(shapes_items, writer, run, language="German", options=QUIET)
    for item in shapes_items:
        wording = found[item.id]
        assert wording.question.endswith("?") and "Objekt" in wording.question
        assert len(set(wording.options)) == len(item.options or ())
        assert not {"red", "left", "circle", "top left"} & {*wording.options}
    described, _ = write_wordings(
        shapes_items, ShapesWriter("caption"), run, captions=True, options=QUIET
    )
    for item in shapes_items:
        scene = scene_of_item(item)
        assert read_description(described[item.id].question, scene) == scene
    assert found.keys() == described.keys() == {item.id for item in shapes_items}


def test_wordings_are_read_from_a_file(shapes_items: list[Item], run: Run, tmp_path: Path) -> None:
    path, items = tmp_path / "w.jsonl", shapes_items[:2]
    rows: list[dict[str, Any]] = [{"name": i.name, "paraphrases": THREE} for i in items]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    found, _ = write_wordings(items, FileWriter(path), run, options=QUIET)
    assert {w.question for w in found.values()} == {THREE[0]}
    with pytest.raises(DataError, match=r"1 of 3 items have no paraphrase.*no line named '0002'"):
        write_wordings(shapes_items[:3], FileWriter(path), run, options=QUIET)
    translated = [
        {"name": i.name, "question": "Farbe?", "options": [f"{o}!" for o in i.options or ()]}
        for i in items
    ]
    path.write_text("\n".join(json.dumps(row) for row in translated))
    found, _ = write_wordings(items, FileWriter(path), run, language="German", options=QUIET)
    assert found[items[0].id].options == tuple(f"{o}!" for o in items[0].options or ())
    path.write_text(json.dumps(translated[0]) + "\n{}\n")
    with pytest.raises(DataError, match=r"w.jsonl, line 2: a line needs 'name'"):
        FileWriter(path)
    again = {"name": items[0].name, "paraphrases": THREE[1:]}
    path.write_text("\n".join(json.dumps(row) for row in (*translated, again)))
    with pytest.raises(DataError, match=rf", line {len(items) + 1}: a second line named '0000'"):
        FileWriter(path)


def test_a_chat_model_is_asked_for_a_paraphrase_once(
    server: OpenAIServer, shapes_items: list[Item], run: Run
) -> None:
    items = shapes_items[:4]
    server.reply = lambda _: json.dumps({"paraphrases": THREE})
    found, _ = write_wordings(items, ChatWriter(chat(server), run.images), run, options=QUIET)
    assert all(w.question == THREE[0] and w.overlap == 0 for w in found.values())
    assert all(w.candidates == tuple(THREE) and w.usage for w in found.values())
    asked = server.chats()
    assert len(asked) == 4
    messages = json.dumps(asked[0]["messages"])
    assert any(item.question in messages for item in items), "requests run side by side"
    assert "image_url" not in messages
    write_wordings(items, ChatWriter(chat(server), run.images), run, options=QUIET)
    assert len(server.chats()) == 4
    assert run.ids(Wording) == {w.id for w in found.values()}


def test_a_chat_model_writes_one_paraphrase_for_each_kind_of_change(
    server: OpenAIServer, shapes_items: list[Item], run: Run
) -> None:
    item, levels = shapes_items[0], ("lexical", "syntactic", "negation", "scope", "specificity")
    texts = {level: f"{level}?" for level in levels} | {"scope": item.question.upper()}
    server.reply = lambda _: json.dumps(texts)
    writer = ChatWriter(chat(server), run.images, levels=True)
    found, _ = write_wordings([item], writer, run, options=QUIET)
    kept = tuple(level for level in levels if level != "scope")  # it repeats the question
    assert found[item.id].levels == kept
    assert found[item.id].candidates == tuple(f"{level}?" for level in kept)
    assert "negative word" in json.dumps(server.chats()[0]["messages"])
    assert ChatWriter(chat(server), run.images).name != writer.name


OWN = """name: mine
version: 1
about: an author's words
placeholders: [question]
---
Say it otherwise{end}
---
Q: {question}
"""


def test_a_prompt_of_your_own_is_sent_and_recorded(
    server: OpenAIServer, shapes_items: list[Item], run: Run, tmp_path: Path
) -> None:
    item, path = shapes_items[0], tmp_path / "mine.txt"
    path.write_text(OWN.replace("{end}", ", as JSON."))
    server.reply = lambda _: json.dumps({"paraphrases": THREE})
    writer = ChatWriter(chat(server), run.images, prompt=str(path))
    found, _ = write_wordings([item], writer, run, options=QUIET)
    system, user = server.chats()[0]["messages"]
    assert "Say it otherwise, as JSON." in json.dumps(system)
    assert f"Q: {item.question}" in json.dumps(user)
    assert "mine-v1 " in writer.name == found[item.id].writer
    assert ChatWriter(chat(server), run.images).name != writer.name

    path.write_text(OWN.replace("{end}", " in {language}."))
    german = ChatWriter(chat(server), run.images, "German", prompt=str(path))
    assert german.request(item).instruction == "Say it otherwise in German."


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("question", "options", "does not use {question}"),
        ("[question]", "[question, old_answer]", "declared but not used"),
        ("Q: {question}", "Q: {question} {old_answer}", "not declared"),
    ],
)
def test_a_prompt_without_the_question_is_refused(
    server: OpenAIServer, run: Run, tmp_path: Path, old: str, new: str, message: str
) -> None:
    (path := tmp_path / "mine.txt").write_text(OWN.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(message)):
        ChatWriter(chat(server), run.images, prompt=str(path))
    revealing = OWN.replace("[question]", "[question, old_answer]").replace("Q: ", "{old_answer} ")
    path.write_text(revealing)
    with pytest.raises(ConfigError, match="must not know"):
        ChatWriter(chat(server), run.images, prompt=str(path))


def test_a_file_may_state_what_each_paraphrase_changes(
    shapes_items: list[Item], run: Run, tmp_path: Path
) -> None:
    path, item = tmp_path / "w.jsonl", shapes_items[0]
    row = {"name": item.name, "paraphrases": THREE, "levels": ["scope", "lexical", "scope"]}
    path.write_text(json.dumps(row))
    found, _ = write_wordings([item], FileWriter(path), run, options=QUIET)
    recorded = RecordedWordings(found.values())
    assert [recorded.level_of(item, text) for text in THREE] == row["levels"]
    assert recorded.level_of(item, "?") == recorded.level_of(shapes_items[1], THREE[0]) == ""
    path.write_text(json.dumps(row | {"levels": ["scope"]}))
    with pytest.raises(DataError, match=r"(?s)w.jsonl, line 1: .*1 levels for 3 paraphrases"):
        FileWriter(path)


def test_a_chat_model_translates(server: OpenAIServer, shapes_items: list[Item], run: Run) -> None:
    item = shapes_items[0]
    options = [f"{option} (de)" for option in item.options or ()]
    server.reply = lambda _: json.dumps({"question": "Welche Farbe?", "options": options})
    writer = ChatWriter(chat(server), run.images, "German")
    found, _ = write_wordings([item], writer, run, language="German", options=QUIET)
    assert found[item.id].options == tuple(options)
    assert "into German" in json.dumps(server.chats()[0]["messages"])


@pytest.mark.parametrize(
    ("reply", "language", "message"),
    [
        ("no JSON at all", "", "not the requested JSON"),
        (json.dumps({"paraphrases": [" "]}), "", "no paraphrase differs"),
        (json.dumps({"question": "Q?", "options": ["a"]}), "German", "needs a question and"),
        (
            json.dumps({"question": "Q?", "options": ["a"] * 4}),
            "German",
            "two options have the same",
        ),
    ],
)
def test_a_useless_reply_is_not_a_rewording(
    server: OpenAIServer,
    shapes_items: list[Item],
    run: Run,
    reply: str,
    language: str,
    message: str,
) -> None:
    item = next(i for i in shapes_items if len(i.options or ()) == 4)
    server.reply = lambda _: reply
    writer = ChatWriter(chat(server), run.images, language)
    with pytest.raises(DataError, match=f"1 of 1 items have no .*{message}"):
        write_wordings([item], writer, run, language=language, options=QUIET)
    assert not run.ids(Wording)
