"""Counts of judged steps and sentences: numbers only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flipbench.core.errors import DataError
from flipbench.core.randomness import generator
from flipbench.core.rates import Rate

from ..statistics.resampling import share_interval

ERROR_TYPES = {
    "image": "Image Understanding",
    "reasoning": "Reasoning",
    "knowledge": "Medical Knowledge",
    "scenario": "Clinical Scenario",
}
"""Types of error and their names in MedThinkVQA."""


@dataclass(frozen=True)
class Verdict:
    """A judge's verdict on one step."""

    factual: bool
    critical: bool = False
    error_types: frozenset[str] = frozenset()
    explanation: str = ""


@dataclass(frozen=True)
class StepCounts:
    """Steps by truth, how critical they are, and their types of error.

    Steps without a verdict are counted in ``missing`` and in nothing else.

    Attributes
    ----------
    by_type, critical_by_type : mapping of str to int
        Wrong steps, and wrong critical steps, with each type of error. A step may have several.
    untyped : int
        Wrong steps without a type.

    Raises
    ------
    DataError
        If a count exceeds what it is part of.
    """

    steps: int = 0
    true: int = 0
    critical: int = 0
    critical_true: int = 0
    untyped: int = 0
    missing: int = 0
    by_type: Mapping[str, int] = field(default_factory=dict)
    critical_by_type: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse impossible counts."""
        typed = self.errors - self.untyped
        parts = [
            ("true", self.true, "steps", self.steps),
            ("critical", self.critical, "steps", self.steps),
            ("critical_true", self.critical_true, "critical", self.critical),
            ("critical_true", self.critical_true, "true", self.true),
            ("wrong critical steps", self.critical_errors, "wrong steps", self.errors),
            ("untyped", self.untyped, "wrong steps", self.errors),
            *((name, k, "wrong steps with a type", typed) for name, k in self.by_type.items()),
            *(
                (f"critical {name}", k, name, self.by_type.get(name, 0))
                for name, k in self.critical_by_type.items()
            ),
        ]
        for part, k, whole, n in parts:
            if not 0 <= k <= n:
                raise DataError(f"{part}: {k} of {n} {whole} is impossible")

    @property
    def errors(self) -> int:
        """Number of wrong steps."""
        return self.steps - self.true

    @property
    def critical_errors(self) -> int:
        """Number of wrong critical steps."""
        return self.critical - self.critical_true

    def coverage(self, error_type: str, *, critical: bool = False) -> Rate:
        """Return the share of wrong (critical) steps with a type of error.

        The shares of several types may sum to more than 1.
        """
        if critical:
            return Rate.wilson(self.critical_by_type.get(error_type, 0), self.critical_errors)
        return Rate.wilson(self.by_type.get(error_type, 0), self.errors)

    def __add__(self, other: StepCounts) -> StepCounts:
        """Return the counts of both."""
        return StepCounts(
            self.steps + other.steps,
            self.true + other.true,
            self.critical + other.critical,
            self.critical_true + other.critical_true,
            self.untyped + other.untyped,
            self.missing + other.missing,
            Counter(self.by_type) + Counter(other.by_type),
            Counter(self.critical_by_type) + Counter(other.critical_by_type),
        )


def count_steps(verdicts: Iterable[Verdict | None]) -> StepCounts:
    """Return the counts of one case's verdicts; None for a step without one.

    >>> count_steps([Verdict(True), None]).missing
    1
    """
    by_step = list(verdicts)
    known = [verdict for verdict in by_step if verdict is not None]
    wrong = [verdict for verdict in known if not verdict.factual]
    critical = [verdict for verdict in known if verdict.critical]
    return StepCounts(
        steps=len(known),
        true=sum(verdict.factual for verdict in known),
        critical=len(critical),
        critical_true=sum(verdict.factual for verdict in critical),
        untyped=sum(not verdict.error_types for verdict in wrong),
        missing=len(by_step) - len(known),
        by_type=Counter(name for verdict in wrong for name in verdict.error_types),
        critical_by_type=Counter(
            name for verdict in wrong if verdict.critical for name in verdict.error_types
        ),
    )


def clustered_rate(by_case: Mapping[str, tuple[int, int]], seed: int = 0) -> Rate:
    """Return k/n over cases with (k, n) each, with a bootstrap interval that resamples cases.

    Steps of one case are not independent. If all are right or all wrong, the interval is Wilson's
    with each case as one. There is no interval with fewer than two cases.
    """
    values = [i < k for k, n in by_case.values() for i in range(n)]
    clusters = [case for case, (_, n) in by_case.items() for _ in range(n)]
    rng = generator(seed, "reasoning", "cases")
    interval = share_interval(values, rng, clusters=clusters) if len(set(clusters)) > 1 else None
    k = sum(k for k, _ in by_case.values())
    return Rate(k=k, n=len(values), interval=interval, n_clusters=len(set(clusters)))


def matthews(counts: tuple[tuple[int, int], tuple[int, int]]) -> float | None:
    """Return Matthews' correlation of two raters' 2 x 2 counts; None if a rater never varies.

    >>> round(matthews(((6, 1), (2, 11))), 4)
    0.6847
    """
    (both, first), (second, neither) = counts
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    return (both * neither - first * second) / margins**0.5 if margins else None
