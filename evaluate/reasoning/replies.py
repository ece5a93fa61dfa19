"""The forms of a judge's replies, and how they are read: entry by entry, and never guessed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flipbench.benchmarks.tables import parse_json
from flipbench.models.chat.messages import json_object

MAX_STEPS = 15
MAX_POINTS = 2
RUBRICS = ("overview", "mechanism", "imaging", "differential", "transfer")
NOT_JSON, NOT_THE_FORM = "the reply is not a JSON object", "the reply has another form"
NO_VERDICT, INVALID = "no verdict", "an invalid verdict"
TWICE, CONTRADICTION = "two verdicts", "an error type for a factual step"
WRONG_TOTAL = "the total is not the sum"
ERROR_TYPES = {
    "image": "Image Understanding",
    "reasoning": "Reasoning",
    "knowledge": "Medical Knowledge",
    "scenario": "Clinical Scenario",
}
"""Types of error and their names in MedThinkVQA."""
T = TypeVar("T")
V = TypeVar("V", bound="SentenceVerdict")


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
class Reading(Generic[T]):
    """What a reply says about numbered texts, and why it says nothing about the others."""

    values: dict[int, T]
    problems: dict[int, str]


def as_reading(value: T | str) -> Reading[T]:
    """Return the reading of a reply about one thing; a text says why it cannot be read."""
    return Reading({}, {0: value}) if isinstance(value, str) else Reading({0: value}, {})


def read_steps(text: str) -> tuple[str, ...] | str:
    """Return the steps in a splitter's reply, or what is wrong with it.

    >>> read_steps('{"steps": ["The lesion is bright."]}'), read_steps("1. The lesion is bright.")
    (('The lesion is bright.',), 'the reply is not a JSON object')
    """
    reply = _object(text)
    if reply is None:
        return NOT_JSON
    try:
        steps = StepsReply.model_validate(reply).steps
    except ValidationError:
        return NOT_THE_FORM
    return tuple(step.strip() for step in steps) if all(map(str.strip, steps)) else NOT_THE_FORM


def read_verdicts(text: str, numbers: Collection[int], form: type[V]) -> Reading[V]:
    """Return the verdicts on the texts with these ``numbers``; each text has one or a problem.

    A verdict in another form (another language's words for true and false, an unknown type of
    error) is invalid; verdicts on other numbers are ignored.

    >>> read_verdicts('{"verdicts": []}', [1], StepVerdict).problems
    {1: 'no verdict'}
    """
    reply = _object(text)
    entries = reply.get("verdicts") if reply else None
    if not isinstance(entries, list):
        return Reading({}, dict.fromkeys(numbers, NOT_JSON if reply is None else NOT_THE_FORM))
    verdicts: dict[int, V] = {}
    problems: dict[int, str] = {}
    for entry in entries:
        number = entry.get("number") if isinstance(entry, dict) else None
        if not isinstance(number, int) or number not in numbers:
            continue
        if number in verdicts or number in problems:
            verdicts.pop(number, None)
            problems[number] = TWICE
            continue
        try:
            verdict = form.model_validate(entry)
        except ValidationError:
            problems[number] = INVALID
            continue
        if isinstance(verdict, StepVerdict) and verdict.factual and verdict.error_types:
            problems[number] = CONTRADICTION
        else:
            verdicts[number] = verdict
    unjudged = [number for number in numbers if number not in verdicts]
    return Reading(verdicts, {number: problems.get(number, NO_VERDICT) for number in unjudged})


def read_rubric(text: str) -> RubricReply | str:
    """Return the points in a judge's reply, or what is wrong with it; the total is recomputed."""
    reply = _object(text)
    if reply is None:
        return NOT_JSON
    try:
        rubric = RubricReply.model_validate(reply)
    except ValidationError:
        return NOT_THE_FORM
    return rubric if rubric.total == rubric.sum else WRONG_TOTAL


def _object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a reply, which may stand in a sentence or a code fence."""
    try:
        value = parse_json(json_object(text))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
