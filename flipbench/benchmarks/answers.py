"""Which option an answer cell means; an ambiguous cell is an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from flipbench.benchmarks.report import Oddity, RowError
from flipbench.prompting.prompts import LETTERS

AnswerIs = Literal["auto", "letter", "text", "index"]
_LETTER = re.compile(r"\(([A-Z])\)|([A-Z])[.):]?")


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
        what = (
            f"the answer {answer!r} is the letter of one option and the text of option"
            f" {letters[by_text[0]]}"
        )
        if answer_is == "auto":
            raise RowError("answer", what, "set answer_is to letter or text, or fix the row")
        return position, [Oddity("answer", what, "it is read as the letter")]
    if len(by_text) == 1:
        return by_text[0], []
    if by_text:
        same = " and ".join(letters[i] for i in by_text)
        what = f"the answer {_short(answer)} is the text of options {same}"
        raise RowError("answer", what, "give the letter, or fix the options")
    known = ", ".join(letters)
    if letter:
        what = f"the answer is {letter}, but the options are {known}"
        raise RowError("answer", what, "fix the answer or the options")
    what = f"the answer {_short(answer)} is neither a letter nor the text of the options {known}"
    raise RowError("answer", what, "give the letter of the right option")


def _by_index(answer: str, options: Sequence[tuple[str, str]]) -> int:
    letters = [letter for letter, _ in options]
    if re.fullmatch(r"\d+", answer.strip(), re.ASCII):
        position = int(answer)
        if position < len(LETTERS) and LETTERS[position] in letters:
            return letters.index(LETTERS[position])
    what = f"the answer {_short(answer)} is not a position among the options {', '.join(letters)}"
    raise RowError("answer", what, "positions count from 0; or set answer_is to letter or text")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
