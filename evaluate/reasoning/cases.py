"""The cases of a file: a question, its answer, and what a model said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flipbench.benchmarks.tables import read_rows
from flipbench.core.errors import DataError
from flipbench.models.chat.prompt_files import lettered
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.quoting import quoted, single_line

Outcome = Literal["right", "wrong", "unparsed"]
SECTIONS = (
    "Background",
    "Clinical Perspective",
    "Imaging Perspective",
    "Outcome",
    "Take Home Message",
)
"""What a case discussion has to consist of."""
_CONTEXT = ("title", "history", "findings")
_REQUIRED = ("id", "question", "answer")
_TEXTS = (
    *_REQUIRED,
    "prediction",
    "rationale",
    "model",
    "title",
    "history",
    "findings",
    "discussion",
)


@dataclass(frozen=True)
class Case:
    """A question with its true answer, and one model's answer with what it said.

    Attributes
    ----------
    answer, prediction : str
        An option's letter or text if there are options.
    rationale : str
        What is split into steps; empty if there is none.
    material : mapping of str to str
        Title, history and findings, which whoever answers may know.
    truth : mapping of str to str
        Captions and discussion, which only the judge may know.
    case_discussion : mapping of str to str
        The model's discussion by section (`SECTIONS`); empty if there is none.
    where : str
        File and line, for messages.
    """

    id: str
    question: str
    answer: str
    options: tuple[str, ...] = ()
    prediction: str = ""
    rationale: str = ""
    model: str = ""
    material: Mapping[str, str] = field(default_factory=dict)
    truth: Mapping[str, str] = field(default_factory=dict)
    case_discussion: Mapping[str, str] = field(default_factory=dict)
    where: str = ""

    @property
    def key(self) -> str:
        """Its id and model, which no other case of a file has."""
        return f"{self.id} {self.model}".strip()

    @property
    def outcome(self) -> Outcome:
        """Whether the prediction is the answer; "unparsed" if it names no option, or is empty."""
        if self.options:
            choice = parse_choice(self.prediction, self.options)
            is_right, is_parsed = choice == parse_choice(self.answer, self.options), choice >= 0
        else:
            text = self.prediction.strip().casefold()
            is_right, is_parsed = text == self.answer.strip().casefold(), bool(text)
        return "unparsed" if not is_parsed else "right" if is_right else "wrong"

    def context(self, *, with_truth: bool, quotes: bool = False) -> str:
        """Return the question and its material, for the judge with all that is known.

        With ``quotes``, no text passes for another field.
        """
        rows = {**self.material, "question": self.question}
        if self.options:
            options = map(single_line, self.options) if quotes else self.options
            rows["options"] = ("" if quotes else "\n") + lettered([*options])
        if with_truth:
            rows |= {"correct answer": self._answer_text(), **self.truth}
        if quotes:
            return "\n".join(f"{name.capitalize()}:\n{quoted(x)}" for name, x in rows.items())
        return "\n".join(f"{name.capitalize()}: {text}" for name, text in rows.items())

    def _answer_text(self) -> str:
        gold = parse_choice(self.answer, self.options) if self.options else -1
        return self.answer if gold < 0 else self.options[gold]


def read_cases(path: Path) -> list[Case]:
    """Read a JSONL file of cases.

    A line is an object with ``id``, ``question`` and ``answer``, and optionally ``options`` (a list
    of texts), ``prediction``, ``rationale``, ``model``, ``title``, ``history``, ``findings``,
    ``captions`` (a text or a list), ``discussion`` and ``case_discussion`` (an object of sections).

    Raises
    ------
    DataError
        If the file cannot be read or is empty, or a line is no such object; the message names it.
    """
    cases: dict[str, Case] = {}
    for row in read_rows(path):
        case = _case(row.cells, row.where)
        if case.key in cases:
            raise DataError(
                f"{row.where}: case {case.key!r} is also at {cases[case.key].where}; give each"
                " model's answers a name in 'model'"
            )
        cases[case.key] = case
    return list(cases.values())


def _case(row: dict[str, Any], place: str) -> Case:
    row = {key: value for key, value in row.items() if value is not None}
    if empty_keys := [key for key in _REQUIRED if not str(row.get(key, "")).strip()]:
        raise DataError(f"{place}: {', '.join(empty_keys)} is missing or empty")
    for key in _TEXTS:
        if not isinstance(row.get(key, ""), str | int):
            raise DataError(f"{place}: {key} must be a text, not {type(row[key]).__name__}")
    options, captions = row.get("options", []), row.get("captions", [])
    captions = [captions] if isinstance(captions, str) else captions
    sections = row.get("case_discussion", {})
    for key, texts in (("options", options), ("captions", captions)):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(f"{place}: {key} must be a list of texts")
    if not isinstance(sections, dict) or not all(isinstance(t, str) for t in sections.values()):
        raise DataError(f"{place}: case_discussion must be an object of texts by section")
    if len(options) == 1:
        raise DataError(
            f"{place}: there is only one option, {options[0]!r}, so every answer is right; give at"
            " least two, or leave options out"
        )
    texts = {key: str(row.get(key, "")).strip() for key in _TEXTS}
    if options and parse_choice(texts["answer"], options) < 0:
        raise DataError(f"{place}: the answer {texts['answer']!r} is none of the options")
    truth = {"captions": "\n".join(captions), "discussion": texts["discussion"]}
    return Case(
        id=texts["id"],
        question=texts["question"],
        answer=texts["answer"],
        options=tuple(options),
        prediction=texts["prediction"],
        rationale=texts["rationale"],
        model=texts["model"],
        material={key: texts[key] for key in _CONTEXT if texts[key]},
        truth={key: text for key, text in truth.items() if text},
        case_discussion={key: text.strip() for key, text in sections.items()},
        where=place,
    )
