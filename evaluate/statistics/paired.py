"""Paired comparisons, McNemar tests and corrections for multiple tests.

An *outcome* is True (right), False (wrong) or None (no response). A pair with a None is dropped
and counted, never scored as wrong. Accuracies and gaps are fractions; gap = perturbed - original.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import scipy

from flipbench.core.records import Interval

from .intervals import clustered_interval, difference_interval, mean_interval, tango_interval
from .resampling import (
    LEVEL,
    N_BOOTSTRAP,
    N_PERMUTATIONS,
    Array,
    by_cluster,
    exact_label_swap_p,
    label_swap_p,
)

Outcome = bool | None
Value = float | None
"""A share or a similarity in [0, 1], or an outcome; None if there is no response."""
Alternative = Literal["drop", "rise", "two-sided"]


@dataclass(frozen=True)
class PairedOutcome:
    """The four counts of a paired comparison, and the statistics derived from them.

    Attributes
    ----------
    n11, b, c, n00 : int
        Pairs that are right in both, right then wrong, wrong then right, wrong in both.
    n_dropped : int
        Pairs with a missing answer.
    interval : Interval or None
        Of the gap, in fractions; None if there are too few pairs (or clusters).
    cluster_totals : tuple of int or None
        By cluster, the number of pairs that rose minus those that fell; None if pairs are
        independent. The tests then swap the labels of whole clusters.
    """

    n11: int
    b: int
    c: int
    n00: int
    n_dropped: int = 0
    interval: Interval | None = None
    cluster_totals: tuple[int, ...] | None = None

    @property
    def n(self) -> int:
        """Number of pairs compared."""
        return self.n11 + self.b + self.c + self.n00

    @property
    def k_original(self) -> int:
        """Number of correct answers in the original condition."""
        return self.n11 + self.b

    @property
    def k_perturbed(self) -> int:
        """Number of correct answers in the perturbed condition."""
        return self.n11 + self.c

    @property
    def gap(self) -> float:
        """Accuracy perturbed - original, a fraction; NaN without pairs."""
        return (self.c - self.b) / self.n if self.n else math.nan

    @property
    def se(self) -> float:
        """Standard error of the gap, a fraction, for independent pairs; NaN without pairs."""
        if not self.n:
            return math.nan
        variance = (self.b + self.c) / self.n - ((self.b - self.c) / self.n) ** 2
        return math.sqrt(max(0.0, variance) / self.n)

    @property
    def n_independent(self) -> int:
        """Number of independent units: clusters, or pairs."""
        return self.n if self.cluster_totals is None else len(self.cluster_totals)

    @property
    def p_drop(self) -> float:
        """Exact one-sided p-value against "accuracy does not drop"."""
        return self._p("drop")

    @property
    def p_rise(self) -> float:
        """Exact one-sided p-value against "accuracy does not rise"."""
        return self._p("rise")

    @property
    def p_two_sided(self) -> float:
        """Exact two-sided p-value."""
        return self._p("two-sided")

    def _p(self, alternative: Alternative) -> float:
        if self.cluster_totals is None:
            return mcnemar_p(self.b, self.c, alternative)
        drop, rise = (
            exact_label_swap_p([sign * total for total in self.cluster_totals]) for sign in (1, -1)
        )
        return {"drop": drop, "rise": rise, "two-sided": min(1.0, 2 * min(drop, rise))}[alternative]


def paired_comparison(
    original: Sequence[Outcome],
    perturbed: Sequence[Outcome],
    *,
    clusters: Sequence[str] | None = None,
    level: float = LEVEL,
) -> PairedOutcome:
    """Compare two conditions on the same items.

    Parameters
    ----------
    original, perturbed : sequence of bool or None, shape (N,)
        Outcomes by item.
    clusters : sequence of str, shape (N,), optional
        What each item shares with others (its image). If any items share a cluster, test and
        interval treat the clusters, not the items, as independent.

    Raises
    ------
    ValueError
        If lengths differ.

    Examples
    --------
    >>> outcome = paired_comparison([True, True, False], [False, True, None])
    >>> outcome.b, outcome.n, outcome.n_dropped, outcome.gap
    (1, 2, 1, -0.5)
    """
    (originals, variants), shared = _complete([original, perturbed], clusters)

    def count(right_first: int, right_second: int) -> int:
        return int(np.sum((originals == right_first) & (variants == right_second)))

    outcome = PairedOutcome(
        count(1, 1), count(1, 0), count(0, 1), count(0, 0), n_dropped=len(original) - len(originals)
    )
    if outcome.n == 0:
        return outcome
    if shared is None or len(set(shared)) == outcome.n:
        interval = tango_interval(outcome.b, outcome.c, outcome.n, level)
        return replace(outcome, interval=interval)
    differences = (variants - originals).tolist()
    totals, _ = by_cluster(variants - originals, shared)
    return replace(
        outcome,
        interval=clustered_interval(differences, shared, level),
        cluster_totals=tuple(int(total) for total in totals),
    )


@dataclass(frozen=True)
class MeanOutcome:
    """A paired comparison of values in [0, 1], such as shares and similarities.

    Attributes
    ----------
    n, n_dropped, n_independent : int
        Pairs compared, pairs with a missing value, and clusters (else pairs) compared.
    gap : float
        Mean of second - first; NaN without pairs.
    n_fell, n_rose : int
        Pairs whose second value is lower, higher.
    interval : Interval or None
        Of the gap, over items (or clusters): see `mean_interval`.
    p_one_sided : float
        P-value of a gap in the given direction, by swapping the two conditions item by item
        (cluster by cluster); for right-or-wrong values this is the exact McNemar test.
    """

    n: int
    n_dropped: int
    gap: float
    n_fell: int
    n_rose: int
    interval: Interval | None
    p_one_sided: float
    n_independent: int


def mean_comparison(
    baseline: Sequence[Value],
    variant: Sequence[Value],
    rng: np.random.Generator,
    *,
    rises: bool,
    clusters: Sequence[str] | None = None,
    n_bootstrap: int = N_BOOTSTRAP,
    n_permutations: int = N_PERMUTATIONS,
) -> MeanOutcome:
    """Compare two conditions on the same items; all sequences have shape (N,).

    With ``rises``, the p-value is that of a rise, else of a fall.

    >>> rng = np.random.default_rng()
    >>> outcome = mean_comparison([0.2, 0.4, None], [0.6, 0.4, 1], rng, rises=True)
    >>> outcome.n, outcome.n_dropped, round(outcome.gap, 3), outcome.n_rose
    (2, 1, 0.2, 1)
    """
    (first, second), shared = _complete([baseline, variant], clusters)
    n, n_dropped, changes = len(first), len(baseline) - len(first), second - first
    if n == 0:
        return MeanOutcome(0, n_dropped, math.nan, 0, 0, None, 1.0, 0)
    return MeanOutcome(
        n=n,
        n_dropped=n_dropped,
        gap=(math.fsum(second) - math.fsum(first)) / n,
        n_fell=int((changes < 0).sum()),
        n_rose=int((changes > 0).sum()),
        interval=mean_interval(changes.tolist(), rng, clusters=shared, n_bootstrap=n_bootstrap),
        p_one_sided=label_swap_p(
            -changes if rises else changes, rng, clusters=shared, n_permutations=n_permutations
        ),
        n_independent=n if shared is None else len(set(shared)),
    )


@dataclass(frozen=True)
class GapDifference:
    """A model's gap minus a reference model's gap, on the items that both answered.

    Attributes
    ----------
    gap, reference_gap, difference : float
        Fractions; difference = gap - reference_gap. NaN without items.
    interval : Interval or None
        Of the difference: Student's for right-or-wrong answers, else a percentile bootstrap; over
        clusters where items share them. None with fewer than two.
    p_below : float
        One-sided p-value against "not below the reference", by swapping the labels model and
        reference item by item (cluster by cluster).
    n, n_dropped, n_independent : int
        Items compared, items that lack an answer, and clusters (else items) compared.
    """

    gap: float
    reference_gap: float
    difference: float
    interval: Interval | None
    p_below: float
    n: int
    n_dropped: int
    n_independent: int


def gap_difference(
    original: Sequence[Value],
    perturbed: Sequence[Value],
    reference_original: Sequence[Value],
    reference_perturbed: Sequence[Value],
    rng: np.random.Generator,
    *,
    clusters: Sequence[str] | None = None,
    n_permutations: int = N_PERMUTATIONS,
    level: float = LEVEL,
    rises: bool = False,
) -> GapDifference:
    """Compare a model's gap with a reference model's; all four sequences have shape (N,).

    With ``rises``, ``p_below`` is the p-value against "not *above* the reference".
    """
    conditions = [original, perturbed, reference_original, reference_perturbed]
    (originals, variants, reference_originals, reference_variants), shared = _complete(
        conditions, clusters
    )
    n = len(originals)
    if n == 0:
        return GapDifference(math.nan, math.nan, math.nan, None, 1.0, 0, len(original), 0)
    model, reference = variants - originals, reference_variants - reference_originals
    difference = model - reference
    return GapDifference(
        gap=float(model.sum()) / n,
        reference_gap=float(reference.sum()) / n,
        difference=float(difference.sum()) / n,
        interval=(
            difference_interval(difference.tolist(), shared, level)
            if (difference == np.rint(difference)).all()
            else mean_interval(difference.tolist(), rng, clusters=shared, level=level, reach=2.0)
        ),
        p_below=label_swap_p(
            -difference if rises else difference,
            rng,
            clusters=shared,
            n_permutations=n_permutations,
        ),
        n=n,
        n_dropped=len(original) - n,
        n_independent=n if shared is None else len(set(shared)),
    )


@lru_cache(maxsize=4096)
def mcnemar_p(b: int, c: int, alternative: Alternative = "two-sided") -> float:
    """Return the exact McNemar p-value of ``b`` pairs right→wrong and ``c`` wrong→right.

    >>> mcnemar_p(3, 1, "drop"), mcnemar_p(0, 0)
    (0.3125, 1.0)
    """
    if b + c == 0:
        return 1.0
    side: dict[Alternative, Literal["greater", "less", "two-sided"]] = {
        "drop": "greater",
        "rise": "less",
        "two-sided": "two-sided",
    }
    return float(scipy.stats.binomtest(b, b + c, 0.5, alternative=side[alternative]).pvalue)


def min_pairs(alpha: float, *, two_sided: bool = False) -> int:
    """Return the smallest number of pairs with which a McNemar test can reach ``alpha``.

    >>> min_pairs(0.05), min_pairs(0.05, two_sided=True)
    (5, 6)
    """
    tails = 2 if two_sided else 1
    return next(n for n in itertools.count(1) if tails * 0.5**n <= alpha)


def adjust_p_values(
    p_values: Sequence[float], method: Literal["holm", "bonferroni", "benjamini-hochberg"] = "holm"
) -> list[float]:
    """Return the corrected p-values of one family of tests, in the order given.

    >>> [round(p, 4) for p in adjust_p_values([0.01, 0.04], "bonferroni")]
    [0.02, 0.08]
    """
    values, m = np.asarray(p_values, dtype=float), len(p_values)
    if method == "benjamini-hochberg":
        return [float(p) for p in scipy.stats.false_discovery_control(values)] if m else []
    order = np.argsort(values, kind="stable")
    tests = m - np.arange(m) if method == "holm" else np.full(m, m)
    adjusted = np.empty(m)
    adjusted[order] = np.maximum.accumulate(tests * values[order]).clip(max=1.0)
    return [float(p) for p in adjusted]


def _complete(
    conditions: Sequence[Sequence[Value]], clusters: Sequence[str] | None
) -> tuple[list[Array], list[str] | None]:
    """Return the conditions as numbers without items that lack an answer, and their clusters."""
    n = len(conditions[0])
    if any(len(values) != n for values in [*conditions, *([] if clusters is None else [clusters])]):
        raise ValueError("all conditions (and clusters) must have one value for each item")
    keep = np.logical_and.reduce([[value is not None for value in c] for c in conditions])
    arrays = [np.array(c, dtype=float)[keep] for c in conditions]
    return arrays, None if clusters is None else list(itertools.compress(clusters, keep.tolist()))
