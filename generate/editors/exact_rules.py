"""Which answers an exact edit can make true: mirror, recolour, remove, repeat or swap.

A rule reads question, options and answer; the regions that a person or a model marked say what
there is to change. Where no rule is certain of the new answer, there is no exact edit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flipbench.core.records import Item
from flipbench.prompting.prompts import right_option, yes_no

Operation = Literal["mirror", "recolour", "remove", "repeat", "swap"]
MAX_COUNT_CHANGE = 2
"""Most objects that are removed or repeated; more would hardly look real."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (200, 30, 35),
    "orange": (235, 130, 30),
    "yellow": (240, 205, 45),
    "green": (35, 140, 65),
    "blue": (40, 90, 205),
    "purple": (130, 55, 175),
    "pink": (240, 130, 175),
    "brown": (110, 70, 40),
    "black": (28, 28, 30),
    "white": (245, 245, 245),
    "gray": (128, 128, 128),
}
"""RGB of the colours that an object can be given."""
_SYNONYMS = {"grey": "gray", "violet": "purple"}
_NUMBERS = {
    word: number
    for number, word in enumerate("zero one two three four five six seven eight nine ten".split())
} | {"no": 0, "none": 0}
_OPPOSITES = {
    "left": "right", "right": "left", "above": "below", "below": "above", "over": "under",
    "under": "over", "behind": "in front of", "in front of": "behind",
}  # fmt: skip
_ALTERNATIVES = re.compile(r"\b(?:left or (?:the )?right|right or (?:the )?left)\b", re.I)
_SIDE = re.compile(r"(left|right)", re.I)
_SIDE_WORD = re.compile(r"\b(?:left|right)(?=\b|most\b|ward|-)", re.I)
_LIES_THERE = re.compile(
    r"\b(?:to|on|at|in) (?:the |its |his |her |their )?(?:left|right)(?:-hand)?(?: side)?"
    r"(?: of\b[^?]*)?(?: in the (?:picture|image|photo))?\s*\?*\s*$",
    re.I,
)
_EXISTS = re.compile(r"\b(?:is|are) there\b|\bany\b", re.I)
_CORRECT = re.compile(
    r"\ball right\b|\bright (?:now|away|answer|option|choice)\b|\bleft over\b", re.I
)
_SPOILED = re.compile(
    r"\b(?:text|words?|written|letters?|reads?|says?|signs?|numbers?|digits?|clock|time|logo|brand)\b",
    re.I,
)
_COLOUR = re.compile(r"\bcolou?r\b", re.I)
_HOW_MANY = re.compile(r"\bhow many\b", re.I)
_PLACE = re.compile(
    r"\b(?:left|right|top|bottom|upper|lower|above|below|middle|cent(?:er|re)|first|last|nearest"
    r"|closest|farthest)", re.I,
)  # fmt: skip


@dataclass(frozen=True)
class Region:
    """A box (x, y, width, height, in pixels) around one object, and what the object is called."""

    box: tuple[int, int, int, int]
    label: str = ""


@dataclass(frozen=True)
class ExactEdit:
    """An operation, the regions it works on, and its parameter.

    ``colour`` is a key of `COLOURS`, for "recolour"; ``copies`` a number, for "repeat".
    """

    operation: Operation
    regions: tuple[Region, ...] = ()
    colour: str = ""
    copies: int = 0


def exact_edits(item: Item, regions: Sequence[Region] = ()) -> dict[int, ExactEdit]:
    """Return an exact edit for each option that one can make the right answer.

    Parameters
    ----------
    item : Item
        With options, or a yes/no question without.
    regions : sequence of Region
        The objects that the question is about. Mirroring needs none; recolouring the object;
        removing those to remove; repeating all objects that are counted; swapping two objects with
        labels that question or options name.

    Examples
    --------
    >>> from flipbench.core.records import Source
    >>> item = Item(benchmark="b", name="1", images=(), question="Where is the cat?",
    ...             options=("on the left", "on the right", "in the middle"), answer=0,
    ...             answer_text="on the left", source=Source(dataset="d"))
    >>> exact_edits(item)
    {1: ExactEdit(operation='mirror', regions=(), colour='', copies=0)}
    """
    options, answer = item.options or yes_no(item), right_option(item)
    if options is None or answer is None:
        return {}
    for rule in (_recolour, _count, _swap, _mirror):
        if edits := rule(item.question, options, answer, regions):
            return {index: edit for index, edit in edits.items() if index != answer}
    return {}


def _recolour(
    question: str, options: Sequence[str], answer: int, regions: Sequence[Region]
) -> dict[int, ExactEdit]:
    """The object takes another option's colour; all options must be colours or stay as they are."""
    if not _COLOUR.search(question) or not regions or _colour_of(options[answer]) is None:
        return {}
    colours = {index: _colour_of(option) for index, option in enumerate(options)}
    return {
        index: ExactEdit("recolour", (regions[0],), colour)
        for index, colour in colours.items()
        if colour is not None and colour != colours[answer]
    }


def _count(
    question: str, options: Sequence[str], answer: int, regions: Sequence[Region]
) -> dict[int, ExactEdit]:
    """Objects that are counted are removed or repeated."""
    numbers = {index: _number_of(option) for index, option in enumerate(options)}
    count = numbers[answer]
    if not _HOW_MANY.search(question) or not regions or count is None or count < 1:
        return {}
    edits = {}
    for index, number in numbers.items():
        change = 0 if number is None else number - count
        if 0 < change <= MAX_COUNT_CHANGE and len(regions) == count:  # no copy hides another
            edits[index] = ExactEdit("repeat", (regions[0],), copies=change)
        elif -min(MAX_COUNT_CHANGE, len(regions)) <= change < 0:
            edits[index] = ExactEdit("remove", tuple(regions[:-change]))
    return edits


def _swap(
    question: str, options: Sequence[str], answer: int, regions: Sequence[Region]
) -> dict[int, ExactEdit]:
    """Two objects change places: the answer is the other one, or the opposite relation."""
    labelled = [region for region in regions if region.label]
    named_in_question = [region for region in labelled if _names(question, region.label)]
    texts = [_plain(option) for option in options]
    opposite = _OPPOSITES.get(texts[answer])
    if opposite in texts and len(named_in_question) == 2:
        pair = (named_in_question[0], named_in_question[1])
        return {texts.index(opposite): ExactEdit("swap", pair)}
    if not _PLACE.search(question):
        return {}
    by_option = {
        index: region
        for index, text in enumerate(texts)
        for region in labelled
        if _plain(region.label) == text
    }
    if answer not in by_option:
        return {}
    return {
        index: ExactEdit("swap", (by_option[answer], region))
        for index, region in by_option.items()
        if index != answer
    }


def _mirror(
    question: str, options: Sequence[str], answer: int, regions: Sequence[Region]
) -> dict[int, ExactEdit]:
    """The picture is mirrored: left is right. Of yes and no, only "yes" is certain to turn."""
    if _SPOILED.search(question) or _CORRECT.search(question):
        return {}
    texts = [_plain(option) for option in options]
    asked_side = _SIDE_WORD.search(_ALTERNATIVES.sub("", question))
    if set(texts) == {"yes", "no"}:
        lies_there = _LIES_THERE.search(question) and not _EXISTS.search(question)
        if texts[answer] == "yes" and asked_side and lies_there:
            return {texts.index("no"): ExactEdit("mirror")}
        return {}
    if asked_side or not _SIDE_WORD.search(texts[answer]) or _SPOILED.search(" ".join(texts)):
        return {}
    mirrored = _SIDE.sub(lambda side: _OPPOSITES[side[1]], texts[answer])
    return {texts.index(mirrored): ExactEdit("mirror")} if mirrored in texts else {}


def _plain(text: str) -> str:
    return " ".join(text.casefold().strip(" .").split())


def _names(question: str, label: str) -> bool:
    return re.search(rf"\b{re.escape(label)}s?\b", question, re.I) is not None


def _colour_of(text: str) -> str | None:
    word = _plain(text)
    word = _SYNONYMS.get(word, word)
    return word if word in COLOURS else None


def _number_of(text: str) -> int | None:
    word = _plain(text)
    return int(word) if word.isascii() and word.isdigit() and len(word) < 4 else _NUMBERS.get(word)
