"""Paraphrase or translate questions: by the embedded world's phrasings, a file, or a chat model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, Self

from pydantic import BaseModel, model_validator

from flipbench.benchmarks.tables import read_rows
from flipbench.core.errors import DataError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, JsonDict, Record, Wording
from flipbench.core.run import Run
from flipbench.core.stage import DEFAULTS, StageOptions, StageReport, run_stage
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest, read_json
from flipbench.models.chat.prompt_files import lettered, load_prompt
from flipbench.shapes.benchmark import is_shapes_item, reword, scene_of_item
from flipbench.shapes.german import TEMPLATES, WORDS, in_german
from flipbench.shapes.questions import KINDS, PHRASINGS
from flipbench.shapes.wording import describe

from .regimes import least_overlap

PROMPTS = Path(__file__).parent / "prompts"
N_PARAPHRASES = 3


class Rewriting(BaseModel):
    """A writer's output for one item: paraphrases, a translated question and options, or a caption.

    ``levels``, if given, says of each paraphrase what it changes.
    """

    paraphrases: list[str] = []
    levels: list[str] = []
    question: str = ""
    options: list[str] = []
    caption: str = ""
    usage: JsonDict = {}

    @model_validator(mode="after")
    def _check_levels(self) -> Self:
        if self.levels and len(self.levels) != len(self.paraphrases):
            raise ValueError(
                f"{len(self.levels)} levels for {len(self.paraphrases)} paraphrases: give one each"
            )
        return self


class Writer(Protocol):
    """Paraphrases or translates questions.

    Attributes
    ----------
    name : str
        The writer, including its prompt.
    settings : dict
        Everything else that its output depends on, besides the item.
    """

    name: str
    settings: JsonDict

    def __call__(self, items: Sequence[Item]) -> Sequence[Rewriting | Exception]:
        """Rewrite a batch, in order; an exception is the failure of a single item."""


class ShapesWriter:
    """The embedded world's own wordings: two other phrasings, German, or a scene's description."""

    def __init__(self, task: str = "paraphrase") -> None:
        self.how, self.name = task, _BY_SHAPES[task][0]
        self.settings: JsonDict = _BY_SHAPES[task][1]

    def __call__(self, items: Sequence[Item]) -> list[Rewriting | Exception]:
        """Look up a batch."""
        return [
            self._write(item)
            if is_shapes_item(item)
            else DataError("not an item of the shapes world; use by: file, api or local")
            for item in items
        ]

    def _write(self, item: Item) -> Rewriting:
        if self.how == "translate":
            question, options = in_german(item)
            return Rewriting(question=question, options=options)
        if self.how == "caption":
            return Rewriting(caption=describe(scene_of_item(item)))
        return Rewriting(paraphrases=reword(item, item.question))


_BY_SHAPES: dict[str, tuple[str, JsonDict]] = {
    "paraphrase": ("shapes phrasings", {"phrasings": [list(PHRASINGS[kind]) for kind in KINDS]}),
    "translate": ("shapes in German", {"templates": TEMPLATES, "words": WORDS}),
    "caption": ("shapes descriptions", {}),
}


class FileWriter:
    """Wordings from the user's file: JSONL with ``name``, and one of the three kinds.

    A line has ``paraphrases``, ``question`` and ``options``, or ``caption``. With ``paraphrases``,
    ``levels`` may say what each of them changes.

    Raises
    ------
    DataError
        If the file cannot be read, a line is invalid, or two have one name; the message names the
        line.
    """

    def __init__(self, path: Path) -> None:
        rows = read_rows(path)
        self.path, self.name = path, f"file {path.name}"
        self.settings: JsonDict = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        self.rows: dict[str, Rewriting] = {}
        for row in rows:
            try:
                name = str(row.cells["name"])
                texts = {key: cell for key, cell in row.cells.items() if key != "name"}
                rewritten = Rewriting.model_validate(texts)
            except (ValueError, KeyError) as error:
                raise DataError(
                    f"{row.where}: a line needs 'name' and 'paraphrases', or 'name', 'question'"
                    f" and 'options' ({error!r})"
                ) from error
            if self.rows.setdefault(name, rewritten) is not rewritten:
                raise DataError(
                    f"{row.where}: a second line named {name!r}; give an item's paraphrases in"
                    " one list"
                )

    def __call__(self, items: Sequence[Item]) -> list[Rewriting | Exception]:
        """Look up a batch."""
        return [
            self.rows.get(item.name) or DataError(f"{self.path} has no line named {item.name!r}")
            for item in items
        ]


class _Paraphrases(BaseModel):
    paraphrases: list[str]


class _Levels(BaseModel):
    lexical: str
    syntactic: str
    negation: str
    scope: str
    specificity: str


class _Translation(BaseModel):
    question: str
    options: list[str]


class ChatWriter:
    """Rewrites by a chat model, which sees question and options, but neither answer nor image.

    With ``levels``, it writes one paraphrase for each level of arXiv 2603.20985.

    Parameters
    ----------
    prompt : str, optional
        Name of a prompt in ``prompts/``, or a ``.txt`` file; by default that of the task. The reply
        must be the JSON object that the default prompt asks for. ``{language}`` is filled in.

    Raises
    ------
    ConfigError
        If there is no such prompt, it lacks the question, or it reveals the answer.
    """

    def __init__(
        self,
        chat: Chat,
        images: ImageStore,
        language: str = "",
        levels: bool = False,
        prompt: str | None = None,
    ) -> None:
        self.chat, self.images = chat, images
        same_language = "paraphrase-levels-v1" if levels else "paraphrase-v1"
        file = load_prompt(
            prompt or ("translate-v1" if language else same_language),
            PROMPTS,
            needs=("question",),
            hides=("old_answer", "new_answer"),
        )
        self.name = f"{chat.name} {file.id}"
        self.settings: JsonDict = dict(chat.settings)
        self.prompt = replace(
            file,
            instruction=file.instruction.replace("{language}", language),
            item=file.item.replace("{language}", language),
        )
        paraphrases = _Levels if levels else _Paraphrases
        self.schema: type[BaseModel] = _Translation if language else paraphrases

    def __call__(self, items: Sequence[Item]) -> list[Rewriting | Exception]:
        """Query the chat model for a batch."""
        replies = self.chat.ask([self.request(item) for item in items], self.images)
        return [self._read(reply) for reply in replies]

    def request(self, item: Item) -> ChatRequest:
        """Return the request for an item."""
        values = {"question": item.question, "options": lettered(item.options or ()) or "(none)"}
        instruction, text = self.prompt.texts(values)
        return ChatRequest(instruction, text, schema=self.schema, item_id=item.id)

    def typical_tokens(self, items: Sequence[Item]) -> int:
        """Estimate the tokens of a reply, which is about as long as the text it rewrites."""
        n_characters = sum(len(item.question) for item in items)
        if self.schema is _Translation:
            n_characters += sum(len(text) for item in items for text in item.options or ())
        else:
            n_characters *= len(_Levels.model_fields) if self.schema is _Levels else N_PARAPHRASES
        return 20 + n_characters // (4 * max(len(items), 1))

    def _read(self, reply: ChatReply | Exception) -> Rewriting | Exception:
        if isinstance(reply, Exception):
            return reply
        if (content := read_json(reply.text, self.schema)) is None:
            return ServiceError(f"the reply is not the requested JSON: {reply.text[:200]!r}")
        fields = content.model_dump()
        if self.schema is _Levels:
            fields = {"paraphrases": list(fields.values()), "levels": list(fields)}
        return Rewriting(usage=reply.usage, **fields)


class WordingStage:
    """Rewrite, and choose the paraphrase to train on; as a stage, it pays for each reply once.

    With ``language``, questions are translated; with ``captions``, pictures are described instead.
    """

    record: type[Record] = Wording

    def __init__(self, writer: Writer, language: str = "", captions: bool = False) -> None:
        self.writer, self.language, self.captions = writer, language, captions
        self.name = "caption" if captions else f"translate {language}" if language else "paraphrase"

    def id_of(self, item: Item) -> str:
        """Return the id of the wording."""
        return Wording.id_for(**self._made_of(item))

    def _made_of(self, item: Item) -> JsonDict:
        writer, settings = self.writer.name, self.writer.settings
        return {"item_id": item.id, "how": self.name, "writer": writer, "settings": settings}

    def subject(self, item: Item) -> str:
        """Return the item's name for messages."""
        return item.subject

    def __call__(self, items: Sequence[Item]) -> list[Record | Exception]:
        """Rewrite a batch."""
        return [
            rewritten if isinstance(rewritten, Exception) else self._wording(item, rewritten)
            for item, rewritten in zip(items, self.writer(items), strict=True)
        ]

    def _wording(self, item: Item, rewritten: Rewriting) -> Wording | Exception:
        common = self._made_of(item) | {"usage": rewritten.usage}
        if self.captions:
            if not rewritten.caption.strip():
                return ServiceError("there is no caption")
            return Wording(question=rewritten.caption.strip(), **common)
        if self.language:
            options = tuple(text.strip() for text in rewritten.options)
            if not rewritten.question.strip() or len(options) != len(item.options or ()):
                return ServiceError(
                    f"a translation needs a question and {len(item.options or ())} options, not"
                    f" {rewritten.question!r} and {len(options)}"
                )
            if len(set(options)) < len(set(item.options or ())):
                return ServiceError(f"two options have the same translation: {options}")
            return Wording(question=rewritten.question.strip(), options=options, **common)
        texts = [" ".join(text.split()) for text in rewritten.paraphrases]
        original = item.question.strip().casefold()
        usable_rows = [i for i, text in enumerate(texts) if text and text.casefold() != original]
        usable = [texts[i] for i in usable_rows]
        levels = tuple(rewritten.levels[i] for i in usable_rows) if rewritten.levels else ()
        if not usable:
            return ServiceError("no paraphrase differs from the question")
        best, overlap = least_overlap(usable[:N_PARAPHRASES], item.question)
        return Wording(
            question=best, candidates=tuple(usable), levels=levels, overlap=overlap, **common
        )


def write_wordings(
    items: Sequence[Item],
    writer: Writer,
    run: Run,
    options: StageOptions = DEFAULTS,
    *,
    language: str = "",
    captions: bool = False,
) -> tuple[dict[str, Wording], StageReport]:
    """Return a wording for every item, by item id, and the stage's report.

    Raises
    ------
    DataError
        If any item has none: a plan contains the wordings that it trains on.
    """
    stage = WordingStage(writer, language, captions)
    report = run_stage(stage, items, run, options)
    if report.failures:
        failure = report.failures[0]
        raise DataError(
            f"{report.n_failed} of {len(items)} items have no {stage.name}, e.g. {failure.subject}:"
            f" {failure.message}; run the same command again to retry"
        )
    wordings = stored_wordings(items, writer, run, language=language, captions=captions)
    if lacking := {item.id for item in items} - set(wordings):
        raise PrerequisiteError(f"{len(lacking)} wordings are not in {run.path / 'wordings'}")
    return wordings, report


def stored_wordings(
    items: Sequence[Item],
    writer: Writer,
    run: Run,
    *,
    language: str = "",
    captions: bool = False,
) -> dict[str, Wording]:
    """Return the wordings that a run already has, by item id."""
    stage = WordingStage(writer, language, captions)
    item_ids = {stage.id_of(item): item.id for item in items}
    return {item_ids[w.id]: w for w in run.read(Wording) if w.id in item_ids}
