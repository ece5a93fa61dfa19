"""Put questions in other words: by the embedded world's phrasings, from a file, or by a model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from flipbench.core.errors import DataError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, JsonDict, Record, Wording
from flipbench.core.run import Run
from flipbench.core.stage import DEFAULTS, StageOptions, StageReport, run_stage
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest
from flipbench.models.chat.prompt_files import lettered, load_prompt
from flipbench.shapes.benchmark import is_shapes_item
from flipbench.shapes.questions import PHRASINGS, Family

from .regimes import five_gram_overlap, least_overlap

PROMPTS = Path(__file__).parent / "prompts"
N_PARAPHRASES = 3


class Rewritten(BaseModel):
    """What a writer gives for one item: paraphrases, or a question and its options."""

    paraphrases: list[str] = []
    question: str = ""
    options: list[str] = []
    usage: JsonDict = {}


class Writer(Protocol):
    """Writes questions anew.

    Attributes
    ----------
    name : str
        Who writes, with which prompt.
    settings : dict
        All that its words depend on beside the item.
    """

    name: str
    settings: JsonDict

    def __call__(self, items: Sequence[Item]) -> Sequence[Rewritten | Exception]:
        """Write a batch, in order; an exception is a failure of that item alone."""


class ShapesWriter:
    """The two other phrasings that every question of the embedded world has."""

    name = "shapes phrasings"
    settings: JsonDict = {"phrasings": [list(texts) for texts in PHRASINGS.values()]}

    def __call__(self, items: Sequence[Item]) -> list[Rewritten | Exception]:
        """Look a batch up."""
        return [self._write(item) for item in items]

    def _write(self, item: Item) -> Rewritten | Exception:
        if not is_shapes_item(item):
            return DataError("not an item of the shapes world; use by: file, api or local")
        question = Family.from_json(item.extra["family"]).question
        return Rewritten(paraphrases=[question.text(1), question.text(2)])


class FileWriter:
    """Wordings that you supply: JSONL with ``name``, and ``paraphrases`` or ``question``.

    Raises
    ------
    DataError
        Where the file cannot be read, or a line is not one of these; the message names the line.
    """

    def __init__(self, path: Path) -> None:
        try:
            data = path.read_bytes()
            lines = data.decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read ({error})") from error
        self.path, self.name = path, f"file {path.name}"
        self.settings: JsonDict = {"sha256": hashlib.sha256(data).hexdigest()}
        self.rows: dict[str, Rewritten] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                name = str(row.pop("name"))
                self.rows[name] = Rewritten.model_validate(row)
            except (ValueError, KeyError, AttributeError) as error:
                raise DataError(
                    f"{path}:{number}: a line has 'name' and 'paraphrases', or 'name', 'question'"
                    f" and 'options' ({error!r})"
                ) from error

    def __call__(self, items: Sequence[Item]) -> list[Rewritten | Exception]:
        """Look a batch up."""
        return [
            self.rows.get(item.name) or DataError(f"{self.path} has no line named {item.name!r}")
            for item in items
        ]


class _Paraphrases(BaseModel):
    paraphrases: list[str]


class _Translation(BaseModel):
    question: str
    options: list[str]


class ChatWriter:
    """Have a chat model write; it sees the question and its options, never answer or picture."""

    def __init__(self, chat: Chat, images: ImageStore, language: str = "") -> None:
        self.chat, self.images = chat, images
        prompt = load_prompt("translate-v1" if language else "paraphrase-v1", PROMPTS)
        self.name = f"{chat.name} {prompt.id}"
        self.settings: JsonDict = dict(chat.settings)
        self.instruction = prompt.instruction.replace("{language}", language)
        self.item_text = prompt.item
        self.schema: type[BaseModel] = _Translation if language else _Paraphrases

    def __call__(self, items: Sequence[Item]) -> list[Rewritten | Exception]:
        """Ask for a batch."""
        replies = self.chat.ask([self.request(item) for item in items], self.images)
        return [self._read(reply) for reply in replies]

    def request(self, item: Item) -> ChatRequest:
        """Return what is asked about an item."""
        values = {"question": item.question, "options": lettered(item.options or ()) or "(none)"}
        text = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], self.item_text)
        return ChatRequest(self.instruction, text, schema=self.schema, item_id=item.id)

    def typical_tokens(self, items: Sequence[Item]) -> int:
        """Return about how many tokens a reply has: what it writes is as long as what it reads."""
        written = [len(item.question) * N_PARAPHRASES for item in items]
        if self.schema is _Translation:
            written = [len(item.question) + sum(map(len, item.options or ())) for item in items]
        return 20 + sum(written) // (4 * max(len(items), 1))

    def _read(self, reply: ChatReply | Exception) -> Rewritten | Exception:
        if isinstance(reply, Exception):
            return reply
        found = re.search(r"\{.*\}", reply.text, re.DOTALL)
        try:
            parsed = reply.parsed or self.schema.model_validate_json(found[0] if found else "")
        except ValidationError:
            return ServiceError(f"the reply is not the JSON asked for: {reply.text[:200]!r}")
        return Rewritten(usage=reply.usage, **parsed.model_dump())


class WordingStage:
    """Write and choose; a stage, so that no reply is paid for twice."""

    record: type[Record] = Wording

    def __init__(self, writer: Writer, language: str = "") -> None:
        self.writer, self.language = writer, language
        self.how = f"translate {language}" if language else "paraphrase"
        self.name = self.how

    def id_of(self, item: Item) -> str:
        """Return the id of the wording."""
        writer = self.writer
        return Wording.id_for(
            item_id=item.id, how=self.how, writer=writer.name, settings=writer.settings
        )

    def subject(self, item: Item) -> str:
        """Return the item in words."""
        return f"{item.benchmark} {item.name}"

    def __call__(self, items: Sequence[Item]) -> list[Record | Exception]:
        """Do a batch."""
        written = self.writer(items)
        return [
            w if isinstance(w, Exception) else self._wording(item, w)
            for item, w in zip(items, written, strict=True)
        ]

    def _wording(self, item: Item, written: Rewritten) -> Wording | Exception:
        common: dict[str, Any] = {
            "item_id": item.id,
            "how": self.how,
            "writer": self.writer.name,
            "settings": self.writer.settings,
            "usage": written.usage,
        }
        if self.language:
            options = tuple(text.strip() for text in written.options)
            if not written.question.strip() or len(options) != len(item.options or ()):
                return ServiceError(
                    f"a translation needs a question and {len(item.options or ())} options, not"
                    f" {written.question!r} and {len(options)}"
                )
            if len(set(options)) < len(set(item.options or ())):
                return ServiceError(f"two options have become one in translation: {options}")
            return Wording(question=written.question.strip(), options=options, **common)
        texts = [" ".join(text.split()) for text in written.paraphrases]
        same = item.question.strip().casefold()
        usable = [text for text in texts if text and text.casefold() != same]
        if not usable:
            return ServiceError("no paraphrase differs from the question")
        best = least_overlap(usable[:N_PARAPHRASES], item.question)
        overlap = five_gram_overlap(best, item.question)
        return Wording(question=best, candidates=tuple(usable), overlap=overlap, **common)


def write_wordings(
    items: Sequence[Item],
    writer: Writer,
    run: Run,
    options: StageOptions = DEFAULTS,
    *,
    language: str = "",
) -> tuple[dict[str, Wording], StageReport]:
    """Return a wording for every item, by item id, and what the stage did.

    Raises
    ------
    DataError
        Where an item has none: a plan must say what is trained on, so it cannot do without.
    """
    stage = WordingStage(writer, language)
    report = run_stage(stage, items, run, options)
    if report.failures:
        first = report.failures[0]
        raise DataError(
            f"{report.n_failed} of {len(items)} items have no {stage.how}, e.g. {first.subject}:"
            f" {first.message}; the same command tries them again"
        )
    found = written_already(items, writer, run, language=language)
    if missing := {item.id for item in items} - set(found):
        raise PrerequisiteError(f"{len(missing)} wordings are not in {run.path / 'wordings'}")
    return found, report


def written_already(
    items: Sequence[Item], writer: Writer, run: Run, *, language: str = ""
) -> dict[str, Wording]:
    """Return the wordings that a run has, by item id, without asking for any."""
    stage = WordingStage(writer, language)
    wanted = {stage.id_of(item): item.id for item in items}
    return {wanted[w.id]: w for w in run.read(Wording) if w.id in wanted}
