"""A reader's reply about revealed options: read it strictly, verify every piece of evidence."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from flipbench.core.records import Item, Value
from flipbench.models.chat.messages import strip_thoughts
from flipbench.prompting.prompts import LETTERS

_FENCE = re.compile(r"^```(?:json)?\s*\n(.*)\n```$", re.DOTALL | re.IGNORECASE)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SaidEvidence(_Strict):
    """What the reader gives as evidence."""

    snippet: str
    start: int
    end: int
    level: Literal[1, 2, 3]


class SaidLeak(_Strict):
    """An option that the reader finds in the text."""

    letter: str
    evidence: list[SaidEvidence]
    why: str


class RevealReply(_Strict):
    """The form of a reply."""

    has_leak: bool
    leaked_options: list[SaidLeak]
    non_leak_reason: str


class LeakSpan(Value):
    """A verified piece: ``question[start:end] == snippet``. ``repaired``: the reader miscounted."""

    option: int
    snippet: str
    start: int
    end: int
    level: int
    repaired: bool = False


@dataclass(frozen=True)
class Reading:
    """What a reply comes to.

    Attributes
    ----------
    evidence : tuple of LeakSpan
        Only what stands in the text.
    trouble : str
        Why the reply decides nothing, or "".
    """

    evidence: tuple[LeakSpan, ...] = ()
    trouble: str = ""


def read_reveal(text: str, item: Item) -> Reading:
    """Return the verified evidence of a reply, or what is wrong with it.

    Fail-closed: a reply that is no such JSON, that contradicts itself, or that claims a leak of
    which no evidence stands in the question, decides nothing (a person must).
    """
    stripped = strip_thoughts(text)
    fenced = _FENCE.match(stripped)
    try:
        said = RevealReply.model_validate(json.loads(fenced[1] if fenced else stripped))
    except (ValueError, ValidationError):
        return Reading(trouble="the reader’s reply is not the JSON that was asked for")
    if said.has_leak != bool(said.leaked_options):
        return Reading(trouble="the reader’s reply contradicts itself")
    found: list[LeakSpan] = []
    for leak in said.leaked_options:
        slot = LETTERS.find(leak.letter.strip(" .()").upper() or "?")
        if not 0 <= slot < len(item.options or ()):
            return Reading(trouble=f"the reader names an option {leak.letter!r} that is not there")
        pieces = [e for piece in leak.evidence if (e := verify(piece, slot, item.question))]
        if not pieces:
            trouble = f"what the reader quotes for option {LETTERS[slot]} is not in the question"
            return Reading(trouble=trouble)
        found += pieces
    return Reading(tuple(found))


def verify(piece: SaidEvidence, option: int, text: str) -> LeakSpan | None:
    """Return the piece with its true span, or None where its snippet is not in the text.

    A wrong span is mended to the occurrence nearest to it; case and blanks may differ.
    """
    if not piece.snippet.strip():
        return None
    start, end = piece.start, piece.end
    if 0 <= start < end and text[start:end] == piece.snippet:
        return LeakSpan(
            option=option, snippet=piece.snippet, start=start, end=end, level=piece.level
        )
    sought = r"\s+".join(re.escape(word) for word in piece.snippet.split())
    spans = [match.span() for match in re.finditer(sought, text, re.IGNORECASE)]
    if not spans:
        return None
    start, end = min(spans, key=lambda span: abs(span[0] - piece.start))
    return LeakSpan(
        option=option,
        snippet=text[start:end],
        start=start,
        end=end,
        level=piece.level,
        repaired=True,
    )
