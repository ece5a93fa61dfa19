"""Other wordings: the templates of the embedded world, and translation there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flipbench.errors import DataError, ServiceError
from flipbench.images import ImageStore
from flipbench.models.api import ChatAPI
from flipbench.models.chat_spec import ChatSpec
from flipbench.records import Item, Source
from flipbench.rewording import BackTranslation, chat_translator
from flipbench.shapes.rewording import reword
from tests.fixtures.openai_server import KEY, OpenAIServer

ITEM = Item(
    benchmark="b", name="1", question="Where?", answer_text="here", source=Source(dataset="b")
)
WORDS = {"a red star": "hong xing", "hong xing": "a star of red", "same": "tong", "tong": "same"}


def test_templates_keep_what_is_asked(shapes_items: list[Item]) -> None:
    for item in shapes_items:
        one, two = reword(item, f"{item.question} {item.answer_text}")
        assert len({one, two, f"{item.question} {item.answer_text}"}) == 3
        assert one.endswith(f" {item.answer_text}") and item.question not in one
    assert reword(ITEM, "Where?") == [] and reword(shapes_items[0], "another text") == []


def test_each_text_is_translated_once_and_remembered(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def translate(text: str, language: str) -> str:
        asked.append((text, language))
        return WORDS[text]

    memory = tmp_path / "deep" / "translations.jsonl"
    for _ in range(2):
        back = BackTranslation(translate, "dictionary", memory)
        assert back(ITEM, "a red star") == back(ITEM, "a red star") == ["a star of red"]
        assert back(ITEM, "same") == []
    assert asked[:2] == [("a red star", "Chinese"), ("hong xing", "English")] and len(asked) == 4
    memory.write_text(memory.read_text() + '{"key": "torn')
    assert BackTranslation(translate, "dictionary", memory)(ITEM, "same") == []
    assert len(asked) == 4
    BackTranslation(translate, "another dictionary", memory)(ITEM, "same")
    assert len(asked) == 6


def test_a_chat_model_translates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(body: dict[str, Any]) -> str:
        text = body["messages"][-1]["content"]
        said = text if isinstance(text, str) else text[-1]["text"]
        return WORDS.get(said, " ")

    with OpenAIServer() as server:
        server.reply = reply
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        chat = ChatAPI(ChatSpec(model="gpt-4o-2024-08-06", base_url=server.base_url))
        translate = chat_translator(chat, ImageStore(tmp_path / "images"))
        back = BackTranslation(translate, chat.name, tmp_path / "memory.jsonl")
        assert back(ITEM, "a red star") == ["a star of red"]
        systems = [body["messages"][0]["content"] for body in server.chats()]
        assert "into Chinese" in systems[0] and "into English" in systems[1]
        with pytest.raises(ServiceError, match="empty text"):
            back(ITEM, "unknown")
    assert BackTranslation(translate, chat.name, tmp_path / "memory.jsonl")(ITEM, "a red star")


def test_an_empty_translation_is_an_error_and_not_remembered(tmp_path: Path) -> None:
    back = BackTranslation(lambda text, language: " ", "mute", tmp_path / "memory.jsonl")
    with pytest.raises(DataError, match="mute: no translation of 'x'"):
        back(ITEM, "x")
    assert not (tmp_path / "memory.jsonl").exists()
