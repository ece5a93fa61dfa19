"""Queries in two conditions of the same items, and the outcomes read from the replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import ImageRef, Item, Probe, Response
from flipbench.prompting.prompts import PromptSettings

from ..protocol import rules
from ..protocol.detector import Answers
from ..statistics.paired import Value
from ..statistics.resampling import Array

Mask = NDArray[np.bool_]
Reading = Callable[[Response], float | None]
"""The value of a reply in [0, 1] (True for right, False for wrong); None if it cannot be read."""

FREE_FORM = "they are free-form and have no options"
"""Why items are left out that cannot be asked as multiple choice."""
NO_REWORDING = "set evaluate.rewording"
"""Why a comparison of wordings does not apply if the benchmark has only one wording."""


def _first(values: Sequence[float]) -> float:
    return values[0]


def mean(values: Sequence[float]) -> float:
    """Return the mean of the values of several replies."""
    return sum(values) / len(values)


@dataclass(frozen=True)
class Picks:
    """The reading "the reply names option ``gold``"; None if it names no option."""

    gold: int | None

    def __call__(self, reply: Response) -> bool | None:
        """Return whether the reply names it."""
        return self.of(reply.choice)

    def of(self, choice: int) -> bool | None:
        """Return whether a choice is it."""
        return None if choice < 0 else choice == self.gold


@dataclass(frozen=True)
class Query:
    """One item in one condition: its probes, how each reply is read and the values combined."""

    parts: tuple[tuple[Probe, Reading], ...]
    combine: Callable[[Sequence[float]], float] = _first

    @cached_property
    def picked(self) -> tuple[Probe, Picks] | None:
        """Its only probe, if all that it needs of the reply is the choice."""
        probe, reading = self.parts[0]
        if len(self.parts) > 1 or self.combine is not _first or not isinstance(reading, Picks):
            return None
        return probe, reading

    @property
    def probes(self) -> list[Probe]:
        """The probes without their readings."""
        return [probe for probe, _ in self.parts]


@dataclass(frozen=True)
class Condition:
    """One model's outcomes in one condition, shape (N,), and its number of unreadable replies.

    Attributes
    ----------
    n_trials : int or None
        Right-or-wrong answers behind each outcome, for k/n; None if outcomes are not shares.
    """

    name: str
    outcomes: Sequence[Value]
    n_unparsed: int
    n_replies: int
    n_trials: int | None = 1

    @classmethod
    def read(
        cls, name: str, answers: Answers, queries: Sequence[Query], n_trials: int | None = 1
    ) -> Condition:
        """Read the replies to each item's probes; an item with a missing reply has no outcome.

        An unreadable reply counts as 0, and in ``n_unparsed``.
        """
        choices = [pick for query in queries if (pick := query.picked)]
        if len(choices) == len(queries):
            return cls._of_choices(name, answers, choices, n_trials)
        outcomes: list[Value] = []
        n_unparsed = n_replies = 0
        for query in queries:
            replies = [(answers.to(probe), reading) for probe, reading in query.parts]
            values = [reading(reply) for reply, reading in replies if reply is not None]
            n_replies += len(values)
            n_unparsed += values.count(None)
            complete = len(values) == len(query.parts)
            outcomes.append(
                query.combine([False if v is None else v for v in values]) if complete else None
            )
        return cls(name, outcomes, n_unparsed, n_replies, n_trials)

    @classmethod
    def _of_choices(
        cls,
        name: str,
        answers: Answers,
        queries: Sequence[tuple[Probe, Picks]],
        n_trials: int | None,
    ) -> Condition:
        choices = answers.choices([probe for probe, _ in queries])
        values = [
            None if choice is None else pick.of(choice)
            for choice, (_, pick) in zip(choices, queries, strict=True)
        ]
        n_replies = len(choices) - choices.count(None)
        n_unparsed = n_replies - (len(values) - values.count(None))
        outcomes = [
            False if value is None and choice is not None else value
            for value, choice in zip(values, choices, strict=True)
        ]
        return cls(name, outcomes, n_unparsed, n_replies, n_trials)

    @classmethod
    def of_replies(
        cls,
        name: str,
        answers: Answers,
        probes_by_item: Sequence[Sequence[Probe]],
        value: Callable[[Sequence[Response]], float | None],
        n_trials: int | None = None,
    ) -> Condition:
        """Read one value from all replies about an item.

        An item with a missing reply has no outcome. If ``value`` is None, the replies are
        unreadable and count as 0.
        """
        outcomes: list[Value] = []
        n_unparsed = n_replies = 0
        for probes in probes_by_item:
            replies = [reply for probe in probes if (reply := answers.to(probe)) is not None]
            if len(replies) < len(probes):
                outcomes.append(None)
                continue
            outcome = value(replies)
            n_replies, n_unparsed = n_replies + 1, n_unparsed + (outcome is None)
            outcomes.append(0.0 if outcome is None else outcome)
        return cls(name, outcomes, n_unparsed, n_replies, n_trials)

    @cached_property
    def answered(self) -> Mask:
        """Which items have an outcome, shape (N,)."""
        return np.array([outcome is not None for outcome in self.outcomes], dtype=bool)

    @cached_property
    def values(self) -> Array:
        """The outcomes as numbers, shape (N,); NaN for those that are missing."""
        return np.array(self.outcomes, dtype=float)

    @cached_property
    def right_or_wrong(self) -> bool:
        """Whether all outcomes are."""
        return all(outcome is None or isinstance(outcome, bool) for outcome in self.outcomes)


@dataclass(frozen=True)
class Settings:
    """The settings of decision rules: test level, bootstrap and permutation sizes, seed.

    With ``max_items`` the detector is asked about so many items only, drawn by (seed, item id).
    """

    alpha: float = rules.ALPHA
    n_bootstrap: int = 2_000
    n_permutations: int = 9_999
    seed: int = 0
    max_items: int | None = None

    def __post_init__(self) -> None:
        """Refuse an impossible level."""
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha {self.alpha}: a test level must be in (0, 1)")


@dataclass(frozen=True)
class QueryPair:
    """The queries for one item in two conditions."""

    item: Item
    first: Query
    second: Query

    @property
    def probes(self) -> list[Probe]:
        """All probes, the first condition's before the second's."""
        return [*self.first.probes, *self.second.probes]


def cluster_of(item: Item) -> str:
    """Return what an item shares with others: its group, else its images, else only its id."""
    return item.group or " ".join(image.sha256 for image in item.images) or item.id


def probes_of(queries: Iterable[Query | QueryPair]) -> list[Probe]:
    """Return the probes of all queries."""
    return [probe for query in queries for probe in query.probes]


def multiple_choice_items(benchmark: PairedBenchmark) -> list[Item]:
    """Return the original items that have options."""
    return [item for item in benchmark.originals if item.options is not None]


def choice(
    prompt_settings: PromptSettings,
    item: Item,
    variant: str,
    *,
    options: Sequence[str] | None = None,
    gold: int | None = None,
    images: Sequence[ImageRef] | None = None,
    labels: str = "",
) -> Query:
    """Return the multiple-choice query of ``item``; what is given replaces the item's own."""
    probe = prompt_settings.probe(item, variant, options=options, images=images, labels=labels)
    return Query(((probe, Picks(item.answer if gold is None else gold)),))


def choice_pair(
    prompt_settings: PromptSettings, item: Item, variant: str, **changes: Any
) -> QueryPair:
    """Return the multiple-choice query of ``item``, and that with ``changes`` (see `choice`)."""
    original = choice(prompt_settings, item, "original")
    return QueryPair(item, original, choice(prompt_settings, item, variant, **changes))


def version_pairs(
    benchmark: PairedBenchmark, query: Callable[[Item, str], Query]
) -> list[QueryPair]:
    """Return the queries about both versions of every multiple-choice pair."""
    return [
        QueryPair(
            pair.original, query(pair.original, "original"), query(pair.perturbed, "perturbed")
        )
        for pair in benchmark.pairs
        if pair.original.options is not None
    ]


def open_question(
    item: Item,
    variant: str,
    prompt: str,
    reading: Reading,
    *,
    max_new_tokens: int,
    images: Sequence[ImageRef] | None = None,
) -> Query:
    """Return a query answered in free text, whatever the prompt settings for choices."""
    probe = Probe(
        item_id=item.id,
        variant=variant,
        images=tuple(item.images if images is None else images),
        prompt=prompt,
        ask="generate",
        max_new_tokens=max_new_tokens,
    )
    return Query(((probe, reading),))


def cache_recent(
    read: Callable[[Answers], Sequence[Condition]],
) -> Callable[[Answers], Sequence[Condition]]:
    """Return ``read`` that reads neither of the last two models again.

    A reference is compared with many models, one after another.
    """
    recent: list[tuple[ref[Answers], Sequence[Condition]]] = []

    def look_up(answers: Answers) -> Sequence[Condition]:
        entries = [entry for entry in recent if entry[0]() is answers]
        entry = entries[0] if entries else (ref(answers), read(answers))
        recent[:] = [*[kept_entry for kept_entry in recent if kept_entry is not entry][-1:], entry]
        return entry[1]

    return look_up


def left_out_note(n_left_out: int, reason: str) -> tuple[str, ...]:
    """Return a note on how many items are left out, and why, if any are."""
    items = "1 item is" if n_left_out == 1 else f"{n_left_out} items are"
    return (f"{items} left out: {reason}",) if n_left_out and reason else ()


def dropped_note(n_dropped: int, n: int, reason: str = "an answer is missing") -> tuple[str, ...]:
    """Return a note on how many of ``n`` items lack what they need, if any do."""
    note = f"{n_dropped} of {n} items are dropped because {reason}; run the same command again"
    return (f"{note} to retry",) if n_dropped else ()
