"""Turn a row of any format into an item, with all checks in one place.

An answer cell that could mean more than one option is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from flipbench.benchmarks.report import ANSWER_TEXT, Oddity
from flipbench.benchmarks.tables import RowError
from flipbench.core.errors import shorten
from flipbench.core.records import ImageRef, Item, JsonDict, Source
from flipbench.prompting.prompts import LETTERS

AnswerIs = Literal["auto", "letter", "text", "index"]
_LETTER = re.compile(r"\(([A-Z])\)|([A-Z])[.):]?")


def build_item(
    *,
    benchmark: str,
    name: str,
    images: tuple[ImageRef, ...],
    question: str,
    raw_question: str,
    options: Sequence[tuple[str, str]],
    answer: str,
    source: Source,
    answer_is: AnswerIs = "auto",
    hint: str = "",
    category: str = "",
    group: str = "",
    licence: str = "",
    extra: JsonDict | None = None,
) -> tuple[Item, list[Oddity]]:
    """Return the item of a row, and its oddities.

    A hint is put before the question, since the whole prompt must be part of the item's id.

    Parameters
    ----------
    raw_question : str
        The benchmark's own text.
    options : sequence of (letter, text)
        With blank texts for absent options; empty for a free-form question.

    Raises
    ------
    RowError
        If the question or answer is missing, there is only one option, or the answer matches none.
    """
    if not question.strip():
        raise RowError("question", "the question is empty", "fix the row")
    if not answer.strip():
        raise RowError("answer", "there is no answer", "withheld answers cannot be used")
    options = [(letter, text) for letter, text in options if text.strip()]
    oddities: list[Oddity] = []
    all_extra = dict(extra or {})
    position: int | None = None
    if options:
        if len(options) == 1:
            raise RowError(
                "options",
                f"there is only one option, {options[0][0]}",
                "give at least two; leave all options empty for a free-form question",
            )
        if options[-1][0] not in LETTERS:
            problem = f"there is an option {options[-1][0]}, after Z"
            raise RowError("options", problem, "at most 26 are supported; remove the row")
        letters = "".join(letter for letter, _ in options)
        position, odd = find_answer(answer, options, answer_is)
        oddities += odd
        if answer_is in ("auto", "letter") and answer_letter(answer) not in [*letters]:
            oddities.append(
                Oddity(
                    ANSWER_TEXT,
                    f"the answer {shorten(answer, 60)!r} is none of the letters"
                    f" {', '.join(letters)} but the text of option {letters[position]}",
                    "other rows give letters; give the letter of the right option",
                )
            )
        if letters != LETTERS[: len(letters)]:
            all_extra["letters"] = letters
            oddities.append(
                Oddity(
                    "option_gap",
                    f"the option letters {', '.join(letters)} have a gap",
                    f"prompts use {', '.join(LETTERS[: len(letters)])}",
                )
            )
        oddities += _duplicates(options, position)
    if hint.strip():
        all_extra["hint"] = hint
        question = f"Hint: {hint}\n{question}"
    if not options and answer_letter(answer):
        oddities.append(
            Oddity(
                "letter_without_options",
                f"the answer {answer!r} looks like a letter, but the row has no options",
                "it is read as a free-form answer; check whether the options were lost",
            )
        )
    item = Item(
        benchmark=benchmark,
        name=name,
        images=images,
        question=question,
        options=tuple(text for _, text in options) if options else None,
        answer=position,
        answer_text=answer if position is None else options[position][1],
        raw_question=raw_question,
        category=category,
        group=group,
        source=source,
        licence=licence,
        extra=all_extra,
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


def answer_letter(answer: str) -> str:
    """Return the letter of ``A``, ``(A)``, ``A.``, ``A)`` or ``A:``, else "".

    >>> answer_letter("(B)"), answer_letter("B."), answer_letter("Bus")
    ('B', 'B', '')
    """
    match = _LETTER.fullmatch(answer.strip())
    return (match[1] or match[2]) if match else ""


def find_answer(
    answer: str, options: Sequence[tuple[str, str]], answer_is: AnswerIs = "auto"
) -> tuple[int, list[Oddity]]:
    """Return the position of the option that ``answer`` means, and any oddities.

    Parameters
    ----------
    answer : str
        The cell.
    options : sequence of (letter, text)
        The options present; letters may have gaps.
    answer_is : {"auto", "letter", "text", "index"}
        "letter" prefers a letter to an option's text; "auto" rejects a cell that is the letter of
        one option and the text of another; "index" counts the letters from 0.

    Raises
    ------
    RowError
        If the cell matches no option, or more than one.

    Examples
    --------
    >>> find_answer("No", [("A", "Yes"), ("B", "No")])
    (1, [])
    """
    if answer_is == "index":
        return _by_index(answer, options), []
    letters = [letter for letter, _ in options]
    letter = answer_letter(answer) if answer_is != "text" else ""
    by_text = [i for i, (_, text) in enumerate(options) if text == answer] or [
        i for i, (_, text) in enumerate(options) if text.strip() == answer.strip()
    ]
    if letter in letters and letter:
        position = letters.index(letter)
        if not by_text or position in by_text:
            return position, []
        problem = (
            f"the answer {answer!r} is the letter of one option and the text of option"
            f" {letters[by_text[0]]}"
        )
        if answer_is == "auto":
            raise RowError("answer", problem, "set answer_is to letter or text, or fix the row")
        return position, [Oddity("answer", problem, "it is read as the letter")]
    if len(by_text) == 1:
        return by_text[0], []
    if by_text:
        twin_letters = " and ".join(letters[i] for i in by_text)
        problem = f"the answer {shorten(answer, 60)!r} is the text of options {twin_letters}"
        raise RowError("answer", problem, "give the letter, or fix the options")
    known_letters = ", ".join(letters)
    if letter:
        problem = f"the answer is {letter}, but the options are {known_letters}"
        raise RowError("answer", problem, "fix the answer or the options")
    text = repr(shorten(answer, 60))
    problem = f"the answer {text} is neither a letter nor the text of the options {known_letters}"
    raise RowError("answer", problem, "give the letter of the right option")


def _by_index(answer: str, options: Sequence[tuple[str, str]]) -> int:
    letters = [letter for letter, _ in options]
    if re.fullmatch(r"\d+", answer.strip(), re.ASCII):
        position = int(answer)
        if position < len(LETTERS) and LETTERS[position] in letters:
            return letters.index(LETTERS[position])
    problem = (
        f"the answer {shorten(answer, 60)!r} is not a position among the options"
        f" {', '.join(letters)}"
    )
    raise RowError("answer", problem, "positions count from 0; or set answer_is to letter or text")
