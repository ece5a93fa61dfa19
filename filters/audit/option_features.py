"""Text features of options, for a classifier that never sees the image."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from flipbench.core.records import Item
from flipbench.prompting.prompts import LETTERS

_WORD = re.compile(r"\w+")
_MAX_QUESTION_WORDS = 24


@dataclass(frozen=True)
class OptionText:
    """An option with its question, position and rank by length."""

    question: str
    option: str
    slot: int
    rank: int
    n_options: int


def option_texts(item: Item) -> list[OptionText]:
    """Return the options of an item; ``rank`` 0 is the longest, ties share the better rank."""
    options = item.options or ()
    sizes = [len(" ".join(option.split())) for option in options]
    return [
        OptionText(
            question=item.question,
            option=option,
            slot=slot,
            rank=sum(other > size for other in sizes),
            n_options=len(options),
        )
        for slot, (option, size) in enumerate(zip(options, sizes, strict=True))
    ]


def words(text: OptionText) -> list[str]:
    """Return the option's words and bigrams, and each word crossed with each question word."""
    option = _WORD.findall(text.option.casefold())
    question = list(dict.fromkeys(_WORD.findall(text.question.casefold())))[:_MAX_QUESTION_WORDS]
    bigrams = [f"{a} {b}" for a, b in zip(option, option[1:], strict=False)]
    crossed = [f"{word} | asked: {other}" for word in option for other in question]
    return [*option, *bigrams, *crossed]


def surface(texts: Iterable[OptionText]) -> list[dict[str, float]]:
    """Return each option's letter, rank by length, and character types."""
    return [
        {
            f"letter {LETTERS[t.slot]} of {t.n_options}": 1.0,
            f"length rank {t.rank + 1} of {t.n_options}": 1.0,
            "holds a digit": float(any(c.isdigit() for c in t.option)),
            "holds punctuation": float(bool(re.search(r"[,;:()/-]", t.option))),
            "starts with a capital": float(t.option[:1].isupper()),
        }
        for t in texts
    ]
