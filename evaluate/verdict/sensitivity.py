"""How sensitive a verdict is to single items, to more pairs, and to a clean reference model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

from flipbench.core.records import PairedCounts, Score
from flipbench.reporting import formats

from ..statistics.intervals import design_effect
from ..statistics.paired import mcnemar_p
from ..statistics.power import detectable_drop, pairs_needed, with_memory
from ..statistics.resampling import by_cluster, exact_label_swap_p

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
    """What would change a verdict.

    Attributes
    ----------
    sentences : tuple of str
        One per change.
    pairs : tuple of PairsNeeded
        Power of the exact one-sided McNemar test if answers rise as often as by chance here; empty
        if the verdict is not based on that test.
    is_rough : bool
        Whether they are rough because pairs share images.
    """

    sentences: tuple[str, ...]
    pairs: tuple[PairsNeeded, ...] = ()
    is_rough: bool = False


@dataclass(frozen=True)
class Changes:
    """The pairs that changed between the two versions, and what they share.

    Attributes
    ----------
    gap : Score
        The model's own gap.
    totals : tuple of int or None
        By image or group, the number of pairs that rose minus those that fell; None if no pairs
        share one.
    effect : float
        How many pairs are worth one that shares no image.
    """

    gap: Score
    totals: tuple[int, ...] | None = None
    effect: float = 1.0

    @property
    def is_shared(self) -> bool:
        """Whether pairs share images, so that numbers of pairs are rough."""
        return self.totals is not None

    @property
    def worth(self) -> float:
        """The number of independent pairs that these are worth."""
        return self.gap.n / self.effect


def changes_of(gap: Score, clusters: Mapping[str, str]) -> Changes:
    """Return the changes of a gap, given what each original shares with others, by its id."""
    shared = [clusters[item_id] for item_id in gap.per_item]
    if len(set(shared)) == len(shared):
        return Changes(gap)
    values = list(gap.per_item.values())
    totals, _ = by_cluster(np.array(values), shared)
    whole = tuple(int(total) for total in np.rint(totals))
    return Changes(gap, whole, design_effect(values, shared))


def sensitivity(changes: Changes, leading: Score) -> Sensitivity:
    """Return what would change the verdict of ``leading``."""
    gap = changes.gap
    if not gap.n:
        return Sensitivity((_obstacle(gap),))
    if leading.verdict == "not_applicable":
        return Sensitivity(
            ("A clean model (--reference), if possible the one this model was trained from.",)
        )
    if leading is not gap:
        return Sensitivity(tuple(_of_relative(changes, leading)))
    sentences = _of_test(changes)
    if gap.verdict == "contaminated":
        sentences.append(
            "A clean model (--reference), ideally the one this model was trained from: the verdict"
            " is then based on the difference between the gaps, and perturbed versions that are"
            " harder than their originals no longer count against the model."
        )
    else:
        sentences.append(
            "A clean model (--reference): perturbed versions that are easier than their originals"
            " hide a gap, and only a comparison with a model that has seen neither reveals it."
        )
    return Sensitivity(tuple(sentences), _power_rows(changes), changes.is_shared)


def items_to_discount(b: int, c: int, alpha: float) -> int:
    """Return how many of ``b`` fallen items must be discounted for p to rise above ``alpha``.

    >>> items_to_discount(9, 1, 0.05)
    3
    """
    return next(k for k in range(b + 1) if mcnemar_p(b - k, c, "drop") > alpha)


def items_to_rise(b: int, c: int, alpha: float) -> int:
    """Return how many more items must go from wrong to right for p to rise above ``alpha``.

    >>> items_to_rise(9, 1, 0.05)
    2
    """
    return next(k for k in range(b + 1) if mcnemar_p(b, c + k, "drop") > alpha)


def items_to_fall(b: int, c: int, n11: int, alpha: float) -> int | None:
    """Return how many more of ``n11`` items right in both must fall for p <= ``alpha``, or None.

    >>> items_to_fall(3, 1, 10, 0.05), items_to_fall(3, 1, 2, 0.05)
    (4, None)
    """
    return next((k for k in range(n11 + 1) if mcnemar_p(b + k, c, "drop") <= alpha), None)


def shared_to_discount(totals: Sequence[int], alpha: float) -> int:
    """Return about how many fallen items, in images or groups, to discount for p > ``alpha``.

    Image by image, from the one on which fewest items fell or from that on which most did,
    whichever takes fewer.

    >>> shared_to_discount([-1] * 9 + [1], 0.05), shared_to_discount([-4] * 8, 0.05)
    (3, 16)
    """
    fell = sorted(-total for total in totals if total < 0)
    return min(_discounted(fell, totals, alpha), _discounted(fell[::-1], totals, alpha))


def _discounted(fell: Sequence[int], totals: Sequence[int], alpha: float) -> int:
    left, discounted = list(totals), 0
    for n in fell:
        at = left.index(-n)
        for left[at] in range(-n, 0):
            if exact_label_swap_p(left) > alpha:
                return discounted
            discounted += 1
        left[at] = 0
    return discounted


def shared_to_rise(totals: Sequence[int], alpha: float) -> int:
    """Return about how many more items must rise, each on an image of its own, for p > ``alpha``.

    >>> shared_to_rise([-1] * 9 + [1], 0.05)
    2
    """
    most = sum(abs(total) for total in totals) + 1
    return next(k for k in range(most) if exact_label_swap_p([*totals, *([1] * k)]) > alpha)


def shared_to_fall(totals: Sequence[int], n11: int, alpha: float) -> int | None:
    """Return about how many more of ``n11`` items must fall for p <= ``alpha``, or None.

    >>> shared_to_fall([-1] * 3 + [1], 10, 0.05), shared_to_fall([-1] * 3 + [1], 2, 0.05)
    (4, None)
    """
    return next(
        (k for k in range(n11 + 1) if exact_label_swap_p([*totals, *([-1] * k)]) <= alpha), None
    )


def counts_of(gap: Score) -> PairedCounts:
    """Return the paired counts of a score of the perturbation gap, which always has them."""
    assert gap.paired is not None
    return gap.paired


def detectable_gap(changes: Changes, target_power: float = TARGET_POWER) -> float | None:
    """Return the smallest drop that the pairs compared detect, a positive fraction, or None."""
    return detectable_drop(
        int(changes.worth), _changed(changes.gap), changes.gap.alpha, target_power
    )


def _changed(gap: Score) -> float:
    """Return the share of answers that change by chance, as far as these show it.

    All that changed, and one more, so that the share is never 0.
    """
    counts = counts_of(gap)
    return min(1.0, (counts.b + counts.c + 1) / gap.n)


def _power_rows(changes: Changes) -> tuple[PairsNeeded, ...]:
    gap = changes.gap
    rows = [_power_row(drop, changes) for drop in _GAPS]
    if gap.verdict == "not_detected" and gap.statistic is not None and gap.statistic < 0:
        rows.append(_power_row(gap.statistic, changes, measured=True))
    return tuple(sorted(rows, key=lambda row: row.gap))


def _power_row(drop: float, changes: Changes, *, measured: bool = False) -> PairsNeeded:
    design = with_memory(drop, _changed(changes.gap), changes.gap.alpha)
    most = int(MOST_PAIRS / changes.effect)
    needed = (_pairs_needed(design, level, most) for level in (TARGET_POWER, 0.95))
    for_80, for_95 = (n if n is None else math.ceil(n * changes.effect) for n in needed)
    return PairsNeeded(drop, for_80, for_95, measured)


def _of_test(changes: Changes) -> list[str]:
    gap, flips = changes.gap, _flips(changes)
    counts, alpha, totals = counts_of(gap), gap.alpha, changes.totals
    b, c, n11 = counts.b, counts.c, counts.n11
    about = "about " if changes.is_shared else ""
    if gap.verdict == "contaminated":
        if totals is None:
            discount, rise = items_to_discount(b, c, alpha), items_to_rise(b, c, alpha)
        else:
            discount, rise = shared_to_discount(totals, alpha), shared_to_rise(totals, alpha)
        return [
            f"{flips} The verdict would no longer be “contaminated” if {about}{discount:,} of the"
            f" {b:,} that fell were discounted because the perturbed image does not show its new"
            f" answer (check them below), or if {about}{rise:,} more had risen."
        ]
    if gap.verdict == "inconclusive":
        return [f"{flips} {_obstacle(gap)}"]
    if totals is None:
        fall = items_to_fall(b, c, n11, alpha)
    else:
        fall = shared_to_fall(totals, n11, alpha)
    needed = (
        "The gap would not be significant even if every pair that is right in both versions"
        f" ({n11:,}) had fallen."
        if fall is None
        else f"The verdict would be “contaminated” if {about}{fall:,} more of the {n11:,} right in"
        " both versions had fallen."
    )
    return [f"{flips} {needed}", _more_pairs(changes)]


def _obstacle(gap: Score) -> str:
    return f"What prevents a verdict: {gap.warnings[-1]}."


def _flips(changes: Changes) -> str:
    counts = counts_of(changes.gap)
    shared = ""
    if changes.is_shared:
        shared = (
            " Pairs share images or groups, which the test treats as units:"
            f" {changes.effect:.1f} pairs are worth about one that shares none."
        )
    return (
        f"Of {changes.gap.n:,} pairs, {counts.b:,} fell (right on the original, wrong on the"
        f" perturbed version) and {counts.c:,} rose (the reverse).{shared}"
    )


def _more_pairs(changes: Changes) -> str:
    gap = changes.gap
    assert gap.statistic is not None
    if gap.statistic >= 0:
        return "The gap is not negative, so more pairs like these would not change the verdict."
    needed = _power_row(gap.statistic, changes).for_80
    about = "about " if changes.is_shared else ""
    true_gap = f"If the true gap is the measured one, {formats.points(gap.statistic)} points,"
    takes, detect = f"{true_gap} it takes", "pairs to detect it four times in five"
    if needed is None:
        return f"{takes} more than {MOST_PAIRS:,} {detect}."
    return f"{takes} {about}{needed:,} {detect}: {max(0, needed - gap.n):,} more."


def _of_relative(changes: Changes, leading: Score) -> list[str]:
    """Return what would change a verdict that is based on the difference between two gaps.

    Its power has no exact analysis: the numbers scale its interval.
    """
    assert leading.statistic is not None and leading.interval is not None
    difference, high = leading.statistic, leading.interval.high
    if leading.verdict == "contaminated":
        discount = math.floor(-high * leading.n) + 1
        return [
            f"{_flips(changes)} The interval of the difference would reach 0 if about"
            f" {discount:,} of the {counts_of(changes.gap).b:,} that fell were discounted because"
            " the perturbed image does not show its new answer; check them below.",
            "More clean models: the verdict then rests on the mean of their gaps, and allows for"
            " how much these differ.",
        ]
    if difference >= 0:
        return ["A gap below the reference's; more pairs like these would not change the verdict."]
    z = float(stats.norm.ppf(0.975))
    scale = ((high - difference) / z * (z + float(stats.norm.ppf(TARGET_POWER))) / difference) ** 2
    return [
        f"If the true difference is the measured one, {formats.points(difference)} points, it takes"
        f" about {math.ceil(scale * leading.n):,} pairs for its interval to lie below 0 four times"
        f" in five; there are {leading.n:,}."
    ]
