"""A reader's reply about revealed options: strict parsing, verified evidence."""

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
    """A verified span: ``question[start:end] == snippet``. ``repaired``: the reader miscounted."""

    option: int
    snippet: str
    start: int
    end: int
    level: int
    repaired: bool = False


@dataclass(frozen=True)
class Reading:
    """A parsed reply.

    Attributes
    ----------
    evidence : tuple of LeakSpan
        Only spans that occur in the text.
    trouble : str
        Why the reply is unusable, or "".
    """

    evidence: tuple[LeakSpan, ...] = ()
    trouble: str = ""


def read_reveal(text: str, item: Item) -> Reading:
    """Return the verified evidence in a reply, or what is wrong with it.

    Fail-closed: a reply is unusable, so that a person must decide, if it is not such JSON,
    contradicts itself, or claims a leak without evidence that occurs in the question.
    """
    stripped = strip_thoughts(text)
    fenced = _FENCE.match(stripped)
    try:
        reply = RevealReply.model_validate(json.loads(fenced[1] if fenced else stripped))
    except (ValueError, ValidationError):
        return Reading(trouble="the reader’s reply is not the requested JSON")
    if reply.has_leak != bool(reply.leaked_options):
        return Reading(trouble="the reader’s reply contradicts itself")
    evidence: list[LeakSpan] = []
    for leak in reply.leaked_options:
        slot = LETTERS.find(leak.letter.strip(" .()").upper() or "?")
        if not 0 <= slot < len(item.options or ()):
            return Reading(trouble=f"the reader names an unknown option {leak.letter!r}")
        spans = [s for e in leak.evidence if (s := verify(e, slot, item.question))]
        if not spans:
            trouble = f"the reader’s quote for option {LETTERS[slot]} is not in the question"
            return Reading(trouble=trouble)
        evidence += spans
    return Reading(tuple(evidence))


def verify(piece: SaidEvidence, option: int, text: str) -> LeakSpan | None:
    """Return the evidence with its true span, or None if its snippet is not in the text.

    A wrong span is corrected to the nearest occurrence; case and whitespace may differ.
    """
    if not piece.snippet.strip():
        return None
    start, end = piece.start, piece.end
    is_exact = 0 <= start < end and text[start:end] == piece.snippet
    if not is_exact:
        pattern = r"\s+".join(re.escape(word) for word in piece.snippet.split())
        spans = [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]
        if not spans:
            return None
        start, end = min(spans, key=lambda span: abs(span[0] - piece.start))
    return LeakSpan(
        option=option,
        snippet=text[start:end],
        start=start,
        end=end,
        level=piece.level,
        repaired=not is_exact,
    )
