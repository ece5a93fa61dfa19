"""How sensitive a verdict is to single items, to more pairs, and to a clean reference model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy import stats

from flipbench.core.records import PairedCounts, Score

from ..statistics.intervals import design_effect
from ..statistics.power import detectable_drop, pairs_needed, with_memory
from ..statistics.resampling import by_cluster, exact_label_swap_p
from .decision import Decision

MOST_PAIRS = 4096
"""The largest number of pairs that is searched and reported."""
TARGET_POWER = 0.8
_pairs_needed = lru_cache(maxsize=256)(pairs_needed)  # takes seconds if thousands are needed
_GAPS = (-0.10, -0.05, -0.02)


@dataclass(frozen=True)
class PairsNeeded:
    """Pairs needed to detect a true gap (a fraction) at two powers; None beyond `MOST_PAIRS`."""

    gap: float
    for_80: int | None
    for_95: int | None
    measured: bool = False


@dataclass(frozen=True)
class Sensitivity:
    """The numbers that would change a verdict.

    Attributes
    ----------
    gap, leading : Score
        The model's own gap, and the score of the gap that decides.
    totals : tuple of int
        By image or group, the number of pairs that rose minus those that fell.
    effect : float
        How many pairs are worth one that shares no image; 1 if no pairs share one.
    is_shared : bool
        Whether pairs share images, so that numbers of pairs are rough.
    """

    gap: Score
    leading: Score
    totals: tuple[int, ...]
    effect: float = 1.0
    is_shared: bool = False

    @classmethod
    def of(cls, decision: Decision) -> Sensitivity:
        """Return the sensitivity of a decision."""
        gap, pairs = decision.evidence.gap, decision.evidence.pairs
        cluster_of = dict(zip(pairs.ids, pairs.clusters, strict=True))
        clusters, values = [cluster_of[name] for name in gap.per_item], list(gap.per_item.values())
        totals = np.rint(by_cluster(np.array(values), clusters)[0]).astype(int).tolist()
        if len(totals) == len(values):
            return cls(gap, decision.leading, tuple(totals))
        effect = design_effect(values, clusters)
        return cls(gap, decision.leading, tuple(totals), effect, is_shared=True)

    @property
    def worth(self) -> float:
        """The number of independent pairs that these are worth."""
        return self.gap.n / self.effect

    @property
    def detectable(self) -> float | None:
        """The smallest drop that the pairs detect four times in five, a positive fraction."""
        return detectable_drop(int(self.worth), self._changed, self.gap.alpha, TARGET_POWER)

    @property
    def to_discount(self) -> int:
        """About how many fallen items to discount for a verdict "contaminated" to be lost."""
        if self.leading is self.gap:
            return items_to_discount(self.totals, self.gap.alpha)
        assert self.leading.interval is not None
        return math.floor(-self.leading.interval.high * self.leading.n) + 1

    @property
    def to_rise(self) -> int:
        """About how many more items must rise for a verdict "contaminated" to be lost."""
        return items_to_rise(self.totals, self.gap.alpha)

    @property
    def to_fall(self) -> int | None:
        """About how many more items must fall for a verdict "contaminated"; None beyond all."""
        return items_to_fall(self.totals, counts_of(self.gap).n11, self.gap.alpha)

    @property
    def needed(self) -> int | None:
        """Pairs that detect the measured gap four times in five; None beyond `MOST_PAIRS`.

        Of a difference between two gaps, whose power has no exact analysis, the number scales its
        interval.
        """
        assert self.leading.statistic is not None
        if self.leading is self.gap:
            return self._pairs_needed(self.leading.statistic).for_80
        assert self.leading.interval is not None
        difference, high = self.leading.statistic, self.leading.interval.high
        z, z_power = float(stats.norm.ppf(0.975)), float(stats.norm.ppf(TARGET_POWER))
        scale = ((high - difference) / z * (z + z_power) / difference) ** 2
        return math.ceil(scale * self.leading.n)

    @cached_property
    def pairs(self) -> tuple[PairsNeeded, ...]:
        """Power of the exact test if answers rise as often as by chance here.

        Empty if the verdict is not based on that test.
        """
        gap = self.gap
        if not gap.n or self.leading is not gap or gap.verdict == "not_applicable":
            return ()
        rows = [self._pairs_needed(drop) for drop in _GAPS]
        if gap.verdict == "not_detected" and gap.statistic is not None and gap.statistic < 0:
            rows.append(self._pairs_needed(gap.statistic, measured=True))
        return tuple(sorted(rows, key=lambda row: row.gap))

    @property
    def _changed(self) -> float:
        """The share of answers that change by chance: all that changed, and one more."""
        counts = counts_of(self.gap)
        return min(1.0, (counts.b + counts.c + 1) / self.gap.n)

    def _pairs_needed(self, drop: float, *, measured: bool = False) -> PairsNeeded:
        design = with_memory(drop, self._changed, self.gap.alpha)
        max_pairs = int(MOST_PAIRS / self.effect)
        numbers = (_pairs_needed(design, level, max_pairs) for level in (TARGET_POWER, 0.95))
        for_80, for_95 = (n if n is None else math.ceil(n * self.effect) for n in numbers)
        return PairsNeeded(drop, for_80, for_95, measured)


def counts_of(gap: Score) -> PairedCounts:
    """Return the paired counts of a score of the perturbation gap, which always has them."""
    assert gap.paired is not None
    return gap.paired


def items_to_discount(totals: Sequence[int], alpha: float) -> int:
    """Return about how many fallen items, in images or groups, to discount for p > ``alpha``.

    Image by image, from the one on which fewest items fell or from that on which most did,
    whichever takes fewer. Exact if no items share an image.

    >>> items_to_discount([-1] * 9 + [1], 0.05), items_to_discount([-4] * 8, 0.05)
    (3, 16)
    """
    fell = sorted(-total for total in totals if total < 0)
    return min(_discounted(fell, totals, alpha), _discounted(fell[::-1], totals, alpha))


def _discounted(fell: Sequence[int], totals: Sequence[int], alpha: float) -> int:
    remaining, discounted = list(totals), 0
    for n in fell:
        at = remaining.index(-n)
        for remaining[at] in range(-n, 0):
            if exact_label_swap_p(remaining) > alpha:
                return discounted
            discounted += 1
        remaining[at] = 0
    return discounted


def items_to_rise(totals: Sequence[int], alpha: float) -> int:
    """Return about how many more items must rise, each on an image of its own, for p > ``alpha``.

    >>> items_to_rise([-1] * 9 + [1], 0.05)
    2
    """
    max_items = sum(abs(total) for total in totals) + 1
    return next(k for k in range(max_items) if exact_label_swap_p([*totals, *([1] * k)]) > alpha)


def items_to_fall(totals: Sequence[int], n11: int, alpha: float) -> int | None:
    """Return about how many more of ``n11`` items must fall for p <= ``alpha``, or None.

    >>> items_to_fall([-1] * 3 + [1], 10, 0.05), items_to_fall([-1] * 3 + [1], 2, 0.05)
    (4, None)
    """
    return next(
        (k for k in range(n11 + 1) if exact_label_swap_p([*totals, *([-1] * k)]) <= alpha), None
    )
