"""Other wordings of a benchmark's texts: by translating there and back, or by whoever knows.

A `Reword` gives other wordings of a text of an item, the best first, or none. It must say the same
each time: detectors ask it both when they pose questions and when they read the replies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from flipbench.errors import DataError
from flipbench.images import ImageStore
from flipbench.models.chat import Chat, ChatRequest
from flipbench.records import Item, content_id

Reword = Callable[[Item, str], Sequence[str]]
Translate = Callable[[str, str], str]
"""From a text and a language's English name to the text in that language."""


class BackTranslation:
    """Rewords a text by translating it into another language and back; each text once.

    Parameters
    ----------
    translate : callable
        Any translator: `chat_translator`, a transformers pipeline, a service.
    name : str
        What made the translations (model and revision); part of the memory's key.
    memory : Path
        A JSONL file of what was translated, which later runs read instead of asking.
    """

    def __init__(
        self,
        translate: Translate,
        name: str,
        memory: Path,
        *,
        via: str = "Chinese",
        home: str = "English",
    ) -> None:
        self.translate, self.name, self.memory = translate, name, memory
        self.via, self.home = via, home
        self._known = _read(memory)

    def __call__(self, item: Item, text: str) -> list[str]:
        """Return one other wording, or none where translation gives the same text back.

        Raises
        ------
        DataError
            Where the translator gives nothing, or the memory cannot be written.
        """
        key = content_id("back-translation", self.name, self.via, self.home, text)
        if key not in self._known:
            there = self.translate(text, self.via)
            back = self.translate(there, self.home).strip() if there.strip() else ""
            if not back:
                raise DataError(f"{self.name}: no translation of {text[:80]!r}; try another model")
            self._known[key] = back
            self._remember(key, text, there)
        other = self._known[key]
        return [other] if other and other != text else []

    def _remember(self, key: str, text: str, there: str) -> None:
        row = {"key": key, "text": text, "there": there, "back": self._known[key]}
        try:
            self.memory.parent.mkdir(parents=True, exist_ok=True)
            with self.memory.open("a", encoding="utf-8") as file:
                file.write(f"\n{json.dumps(row, ensure_ascii=False)}\n")
        except OSError as error:
            raise DataError(
                f"{self.memory}: cannot keep a translation ({error.strerror});"
                " make room and run the same command again"
            ) from error


def chat_translator(chat: Chat, images: ImageStore) -> Translate:
    """Return a translator that asks a chat model; what the model raises is raised here too."""

    def translate(text: str, language: str) -> str:
        instruction = (
            f"Translate the user's text into {language}. Keep names, numbers and the order of the"
            " sentences. Reply with the translation alone."
        )
        (reply,) = chat.ask([ChatRequest(instruction, text)], images)
        if isinstance(reply, Exception):
            raise reply
        return reply.text.strip()

    return translate


def _read(memory: Path) -> dict[str, str]:
    try:
        lines = memory.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    known = {}
    for line in lines:
        try:
            row = json.loads(line)
            known[str(row["key"])] = str(row["back"])
        except (ValueError, KeyError, TypeError):
            continue  # a torn line is asked anew
    return known
