"""Turn a row of any format into an item, with all checks in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flipbench.benchmarks.answers import AnswerIs, answer_letter, find_answer
from flipbench.benchmarks.report import Oddity, RowError
from flipbench.core.records import ImageRef, Item, JsonDict, Source
from flipbench.prompting.prompts import LETTERS


@dataclass(frozen=True)
class Draft:
    """The content of a row.

    ``options`` are (letter, text) pairs, with blank texts for absent options; empty for a
    free-form question. ``raw_question`` is the benchmark's own text.
    """

    benchmark: str
    name: str
    images: tuple[ImageRef, ...]
    question: str
    raw_question: str
    options: Sequence[tuple[str, str]]
    answer: str
    source: Source
    answer_is: AnswerIs = "auto"
    hint: str = ""
    category: str = ""
    group: str = ""
    licence: str = ""
    extra: JsonDict = field(default_factory=dict)


def build_item(draft: Draft) -> tuple[Item, list[Oddity]]:
    """Return the item and its oddities.

    A hint is put before the question, since the whole prompt must be part of the item's id.

    Raises
    ------
    RowError
        If the question or answer is missing, there is only one option, or the answer matches none.
    """
    if not draft.question.strip():
        raise RowError("question", "the question is empty", "fix the row")
    if not draft.answer.strip():
        raise RowError("answer", "there is no answer", "withheld answers cannot be used")
    options = [(letter, text) for letter, text in draft.options if text.strip()]
    oddities: list[Oddity] = []
    extra = dict(draft.extra)
    answer: int | None = None
    if options:
        if len(options) == 1:
            raise RowError(
                "options",
                f"there is only one option, {options[0][0]}",
                "give at least two; leave all options empty for a free-form question",
            )
        letters = "".join(letter for letter, _ in options)
        answer, odd = find_answer(draft.answer, options, draft.answer_is)
        oddities += odd
        if letters != LETTERS[: len(letters)]:
            extra["letters"] = letters
            oddities.append(
                Oddity(
                    "option_gap",
                    f"the option letters {', '.join(letters)} have a gap",
                    f"prompts use {', '.join(LETTERS[: len(letters)])}",
                )
            )
        oddities += _duplicates(options, answer)
    question = draft.question
    if draft.hint.strip():
        extra["hint"] = draft.hint
        question = f"Hint: {draft.hint}\n{question}"
    if not options and answer_letter(draft.answer):
        oddities.append(
            Oddity(
                "letter_without_options",
                f"the answer {draft.answer!r} looks like a letter, but the row has no options",
                "it is read as a free-form answer; check whether the options were lost",
            )
        )
    item = Item(
        benchmark=draft.benchmark,
        name=draft.name,
        images=draft.images,
        question=question,
        options=tuple(text for _, text in options) if options else None,
        answer=answer,
        answer_text=draft.answer if answer is None else options[answer][1],
        raw_question=draft.raw_question,
        category=draft.category,
        group=draft.group,
        source=draft.source,
        licence=draft.licence,
        extra=extra,
    )
    return item, oddities


def _duplicates(options: Sequence[tuple[str, str]], answer: int) -> list[Oddity]:
    by_text: dict[str, list[str]] = {}
    for letter, text in options:
        by_text.setdefault(text.strip(), []).append(letter)
    oddities = []
    for text, letters in by_text.items():
        if len(letters) > 1:
            gold = ", and one of them is the answer" if options[answer][0] in letters else ""
            oddities.append(
                Oddity(
                    "duplicate_options",
                    f"options {' and '.join(letters)} have the same text {text[:60]!r}{gold}",
                    "a new answer never has the old answer's text; fix the row to ask it reliably",
                )
            )
    return oddities
