"""Options inside the question's text, as in RealWorldQA, MMStar and NaturalBench."""

from __future__ import annotations

import re
from typing import NamedTuple

from flipbench.benchmarks.build import answer_letter
from flipbench.benchmarks.tables import RowError
from flipbench.prompting.prompts import LETTERS

_ASKS_LETTER = "Please answer directly with only the letter of the correct option and nothing else"
_ASKS_WORD = "Please answer directly with a single word or number"
_LINE = re.compile(r"\s*\(?([A-Z])[.)]\s*(.*?)\s*")
_OPTIONS = re.compile(r"(?:^|(?<=\s))Options:\s*(?=A:(?:\s|$))")
_CHOICES = re.compile(r"(?:^|(?<=\s))Choices:\s*(?=\(A\))")
_OPTION = re.compile(r"(?:^|\s)Options?:\s*(?=A:)")
_SEMICOLON_MARK = re.compile(r"(?:^|;\s*)([A-Z]):\s*")
_MARK = re.compile(r"(?:^|,\s*|\s*\n\s*)([A-Z]):(?:\s+|$)")
_BRACKET = re.compile(r"(?:^|\s+)\(([A-Z])\)\s*")


class ParsedQuestion(NamedTuple):
    """A question without its options, and the options as (letter, text) pairs."""

    stem: str
    options: tuple[tuple[str, str], ...]


def split_question(raw: str, style: str, answer: str) -> ParsedQuestion:
    r"""Split a question's text into stem and options.

    Parameters
    ----------
    raw : str
        The benchmark's own text.
    style : {"lines", "inline", "naturalbench"}
        ``A. …`` on separate lines and a closing instruction (RealWorldQA),
        ``Options: A: …, B: …`` / ``Choices: (A) … (B) …`` (MMStar), or ``Option: A: …; B: …;``,
        with Yes and No if there are none (NaturalBench).
    answer : str
        The answer cell: a letter without options is an error unless the text asks for a single
        word or number.

    Raises
    ------
    RowError
        If letters are missing, repeated or out of order, or there is a letter and no options.

    Examples
    --------
    >>> split_question("What is it?\nA. a cat\nB. a dog", "lines", "A").options
    (('A', 'a cat'), ('B', 'a dog'))
    >>> split_question("What? Options: A: red, or blue, B: green", "inline", "A").options
    (('A', 'red, or blue'), ('B', 'green'))
    >>> split_question("Which? Option:A:a cat;B:a dog;", "naturalbench", "B")
    ParsedQuestion(stem='Which?', options=(('A', 'a cat'), ('B', 'a dog')))
    """
    if style == "naturalbench":
        return _naturalbench(raw.strip(), answer)
    text, asks = _without_instruction(raw)
    question = _lines(text) if style == "lines" else _inline(text)
    if not question.options:
        if asks == _ASKS_LETTER:
            raise _ambiguous("the question asks for a letter but contains no options")
        if asks != _ASKS_WORD and answer_letter(answer):
            raise _ambiguous(
                f"the answer is the letter {answer!r}, but the question contains no options"
            )
    return question


def _naturalbench(text: str, answer: str) -> ParsedQuestion:
    head = _OPTION.search(text)
    if head:
        block = text[head.end() :].strip().rstrip(";")
        return _checked(text[: head.start()], _split_at(_SEMICOLON_MARK, block))
    word = answer.strip()
    if word.casefold() not in ("yes", "no"):
        raise _ambiguous(f"there are no options in it, and the answer is {answer!r}, not yes or no")
    spelling = str.lower if word.islower() else str.upper if word.isupper() else str.capitalize
    return ParsedQuestion(text, (("A", spelling("yes")), ("B", spelling("no"))))


def _without_instruction(raw: str) -> tuple[str, str]:
    text = raw.strip()
    for instruction in (_ASKS_LETTER, _ASKS_WORD):
        for suffix in (instruction + ".", instruction):
            if text.endswith(suffix):
                return text.removesuffix(suffix).rstrip(), instruction
    return text, ""


def _lines(text: str) -> ParsedQuestion:
    lines = text.split("\n")
    marks = [(i, match) for i, line in enumerate(lines) if (match := _LINE.fullmatch(line))]
    starts = [k for k, (_, match) in enumerate(marks) if match[1] == "A"]
    marks_used = marks[starts[-1] :] if starts else []
    if len(marks_used) < 2:
        if len(marks) > 1:
            raise _letters_error([match[1] for _, match in marks])
        return ParsedQuestion(text, ())
    bounds = [i for i, _ in marks_used] + [len(lines)]
    options = []
    for k, (i, match) in enumerate(marks_used):
        continuation = [line.strip() for line in lines[i + 1 : bounds[k + 1]] if line.strip()]
        options.append((match[1], "\n".join([match[2], *continuation])))
    return _checked("\n".join(lines[: bounds[0]]), options)


def _inline(text: str) -> ParsedQuestion:
    for start, mark in ((_OPTIONS, _MARK), (_CHOICES, _BRACKET)):
        heads = list(start.finditer(text))
        if len(heads) > 1:
            raise _ambiguous(f"the question contains {len(heads)} lists of options")
        if heads:
            options = _split_at(mark, text[heads[0].end() :])
            return _checked(text[: heads[0].start()], options)
    if re.search(r"(?:^|\s)(?:Options|Choices):", text):
        raise _ambiguous("no option A follows 'Options:'")
    return ParsedQuestion(text, ())


def _split_at(mark: re.Pattern[str], block: str) -> list[tuple[str, str]]:
    """Return the letter of each mark and the text up to the next one."""
    marks = list(mark.finditer(block))
    ends = [match.start() for match in marks[1:]] + [len(block)]
    return [
        (match[1], block[match.end() : end].strip()) for match, end in zip(marks, ends, strict=True)
    ]


def _checked(stem: str, options: list[tuple[str, str]]) -> ParsedQuestion:
    letters = [letter for letter, _ in options]
    if len(letters) < 2 or letters != list(LETTERS[: len(letters)]):
        raise _letters_error(letters)
    for letter, text in options:
        if not text:
            raise _ambiguous(f"option {letter} is empty")
    if "\n" in options[-1][1]:
        raise _ambiguous(f"more text follows option {letters[-1]} on a new line")
    return ParsedQuestion(stem.strip(), tuple(options))


def _ambiguous(problem: str) -> RowError:
    remedy = "the options are ambiguous: fix the row, or give them in columns"
    return RowError("options", problem, remedy)


def _letters_error(letters: list[str]) -> RowError:
    return _ambiguous(f"the option letters in the question are {', '.join(letters)}")
