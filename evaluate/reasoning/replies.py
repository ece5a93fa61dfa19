"""The forms of a judge's replies, and how they are read: entry by entry, and never guessed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flipbench.benchmarks.tables import parse_json
from flipbench.models.chat.messages import json_object

from .counts import Verdict

MAX_STEPS = 15
MAX_POINTS = 2
RUBRICS = ("overview", "mechanism", "imaging", "differential", "transfer")
NOT_JSON, NOT_THE_FORM = "the reply is not a JSON object", "the reply has another form"
NO_VERDICT, INVALID = "no verdict", "an invalid verdict"
TWICE, CONTRADICTION = "two verdicts", "an error type for a factual step"
WRONG_TOTAL = "the total is not the sum"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StepsReply(_Strict):
    """An explanation as steps."""

    steps: list[str] = Field(min_length=1, max_length=MAX_STEPS)


class SentenceVerdict(_Strict):
    """The verdict on one sentence."""

    number: int
    factual: bool
    explanation: str


class StepVerdict(SentenceVerdict):
    """The verdict on one step."""

    critical: bool
    error_types: list[Literal["image", "scenario", "knowledge", "reasoning"]]


class SentencesReply(_Strict):
    """The verdicts on sentences."""

    verdicts: list[SentenceVerdict]


class VerdictsReply(_Strict):
    """The verdicts on steps."""

    verdicts: list[StepVerdict]


class RubricPoints(_Strict):
    """Points for one rubric."""

    points: int = Field(ge=0, le=MAX_POINTS)
    reason: str


class RubricReply(_Strict):
    """Points for all rubrics, and their sum as the judge computes it."""

    overview: RubricPoints
    mechanism: RubricPoints
    imaging: RubricPoints
    differential: RubricPoints
    transfer: RubricPoints
    total: int

    @property
    def sum(self) -> int:
        """The sum of the points."""
        return sum(getattr(self, name).points for name in RUBRICS)


@dataclass(frozen=True)
class Reading:
    """What a reply says about numbered texts, and why it says nothing about the others."""

    verdicts: dict[int, Verdict]
    problems: dict[int, str]


def read_steps(text: str) -> tuple[str, ...] | str:
    """Return the steps in a splitter's reply, or what is wrong with it.

    >>> read_steps('{"steps": ["The lesion is bright."]}'), read_steps("1. The lesion is bright.")
    (('The lesion is bright.',), 'the reply is not a JSON object')
    """
    found = _object(text)
    if found is None:
        return NOT_JSON
    try:
        steps = StepsReply.model_validate(found).steps
    except ValidationError:
        return NOT_THE_FORM
    return tuple(step.strip() for step in steps) if all(map(str.strip, steps)) else NOT_THE_FORM


def read_verdicts(
    text: str, numbers: Collection[int], form: type[SentenceVerdict] = StepVerdict
) -> Reading:
    """Return the verdicts on the texts with these ``numbers``; each text has one or a problem.

    A verdict in another form (another language's words for true and false, an unknown type of
    error) is invalid; verdicts on other numbers are ignored.

    >>> read_verdicts('{"verdicts": []}', [1]).problems
    {1: 'no verdict'}
    """
    found = _object(text)
    entries = found.get("verdicts") if found else None
    if not isinstance(entries, list):
        return Reading({}, dict.fromkeys(numbers, NOT_JSON if found is None else NOT_THE_FORM))
    verdicts: dict[int, Verdict] = {}
    problems = dict.fromkeys(numbers, NO_VERDICT)
    seen: set[int] = set()
    for entry in entries:
        number = entry.get("number") if isinstance(entry, dict) else None
        if not isinstance(number, int) or number not in problems:
            continue
        verdicts.pop(number, None)
        if number in seen:
            problems[number] = TWICE
            continue
        seen.add(number)
        read = _verdict(entry, form)
        if isinstance(read, str):
            problems[number] = read
        else:
            verdicts[number] = read
    return Reading(verdicts, {n: why for n, why in problems.items() if n not in verdicts})


def read_rubric(text: str) -> RubricReply | str:
    """Return the points in a judge's reply, or what is wrong with it; the total is recomputed."""
    found = _object(text)
    if found is None:
        return NOT_JSON
    try:
        reply = RubricReply.model_validate(found)
    except ValidationError:
        return NOT_THE_FORM
    return reply if reply.total == reply.sum else WRONG_TOTAL


def _verdict(entry: dict[str, Any], form: type[SentenceVerdict]) -> Verdict | str:
    try:
        read = form.model_validate(entry)
    except ValidationError:
        return INVALID
    if not isinstance(read, StepVerdict):
        return Verdict(read.factual, explanation=read.explanation)
    if read.factual and read.error_types:
        return CONTRADICTION
    return Verdict(read.factual, read.critical, frozenset(read.error_types), read.explanation)


def _object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a reply, which may stand in a sentence or a code fence."""
    try:
        found = parse_json(json_object(text))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
