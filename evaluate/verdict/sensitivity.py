"""How sensitive a verdict is to single items, to more pairs, and to a clean reference model."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from scipy import stats

from flipbench.core.records import PairedCounts, Score
from flipbench.reporting import formats

from ..statistics.paired import mcnemar_p
from ..statistics.power import Design, pairs_needed, power

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
        Power of the exact one-sided McNemar test if as many answers change as did here; empty
        if the verdict is not based on that test.
    """

    sentences: tuple[str, ...]
    pairs: tuple[PairsNeeded, ...] = ()


def sensitivity(gap: Score, leading: Score, *, has_reference: bool) -> Sensitivity:
    """Return what would change the verdict of ``leading``; ``gap`` is the model's own gap."""
    if not gap.n:
        return Sensitivity((_obstacle(gap),))
    if leading is not gap:
        return Sensitivity(tuple(_of_relative(gap, leading)))
    sentences = _of_test(gap)
    if gap.verdict == "contaminated":
        other = "A clean model (--reference), ideally the one this model was trained from"
        sentences.append(
            f"{'Another clean model' if has_reference else other}: if it also does significantly"
            " worse on the perturbed versions, they are harder than their originals, and the"
            " verdict is then based on the difference between the gaps."
        )
    elif not has_reference:
        sentences.append(
            "A clean model (--reference): perturbed versions that are easier than their originals"
            " hide a gap, and only a comparison with a model that has seen neither reveals it."
        )
    return Sensitivity(tuple(sentences), _power_rows(gap))


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


def counts_of(gap: Score) -> PairedCounts:
    """Return the paired counts of a score of the perturbation gap, which always has them."""
    assert gap.paired is not None
    return gap.paired


def detectable_gap(gap: Score, target_power: float = TARGET_POWER) -> float | None:
    """Return the smallest drop that ``gap.n`` pairs detect with probability ``target_power``.

    A positive fraction in steps of 0.001, if as many answers change as did here; None if even the
    largest drop is detected less often. ``gap`` is a score of the McNemar test.
    """

    def detected(thousandths: int) -> bool:
        return power(_design(-thousandths / 1_000, gap), gap.n) >= target_power

    n_missed = bisect_left(range(1, 1_001), True, key=detected)
    return (n_missed + 1) / 1_000 if n_missed < 1_000 else None


def _design(drop: float, gap: Score) -> Design:
    """Return a design with as many changed answers as here, but no fewer than ``drop`` takes."""
    counts = counts_of(gap)
    changed = (counts.b + counts.c) / gap.n
    return Design(drop, min(1.0, max(changed, abs(drop))), gap.alpha)


def _power_rows(gap: Score) -> tuple[PairsNeeded, ...]:
    rows = [_power_row(drop, gap) for drop in _GAPS]
    if gap.verdict == "not_detected" and gap.statistic is not None and gap.statistic < 0:
        rows.append(_power_row(gap.statistic, gap, measured=True))
    return tuple(sorted(rows, key=lambda row: row.gap))


def _power_row(drop: float, gap: Score, *, measured: bool = False) -> PairsNeeded:
    design = _design(drop, gap)
    for_80, for_95 = (_pairs_needed(design, level, MOST_PAIRS) for level in (TARGET_POWER, 0.95))
    return PairsNeeded(drop, for_80, for_95, measured)


def _of_test(gap: Score) -> list[str]:
    counts, alpha, flips = counts_of(gap), gap.alpha, _flips(gap)
    b, c, n11 = counts.b, counts.c, counts.n11
    if gap.verdict == "contaminated":
        discount, rise = items_to_discount(b, c, alpha), items_to_rise(b, c, alpha)
        return [
            f"{flips} The verdict would no longer be “contaminated” if {discount:,} of the {b:,}"
            " that fell were discounted because the perturbed image does not show its new answer"
            f" (check them below), or if {rise:,} more had risen."
        ]
    if gap.verdict == "inconclusive":
        return [f"{flips} {_obstacle(gap)}"]
    fall = items_to_fall(b, c, n11, alpha)
    needed = (
        "The gap would not be significant even if every pair that is right in both versions"
        f" ({n11:,}) had fallen."
        if fall is None
        else f"The verdict would be “contaminated” if {fall:,} more of the {n11:,} right in both"
        " versions had fallen."
    )
    return [f"{flips} {needed}", _more_pairs(gap)]


def _obstacle(gap: Score) -> str:
    return f"What prevents a verdict: {gap.warnings[-1]}."


def _flips(gap: Score) -> str:
    counts = counts_of(gap)
    return (
        f"Of {gap.n:,} pairs, {counts.b:,} fell (right on the original, wrong on the perturbed"
        f" version) and {counts.c:,} rose (the reverse)."
    )


def _more_pairs(gap: Score) -> str:
    assert gap.statistic is not None
    if gap.statistic >= 0:
        return "The gap is not negative, so more pairs like these would not change the verdict."
    needed = _power_row(gap.statistic, gap).for_80
    true_gap = f"If the true gap is the measured one, {formats.points(gap.statistic)} points,"
    takes, detect = f"{true_gap} it takes", "pairs to detect it four times in five"
    if needed is None:
        return f"{takes} more than {MOST_PAIRS:,} {detect}."
    return f"{takes} {needed:,} {detect}: {max(0, needed - gap.n):,} more."


def _of_relative(gap: Score, leading: Score) -> list[str]:
    """Return what would change a verdict that is based on the difference between two gaps.

    Its power has no exact analysis: the numbers scale its interval.
    """
    if leading.verdict == "not_applicable" or leading.statistic is None or not leading.interval:
        return ["A clean model (--reference), if possible the one this model was trained from."]
    difference, high = leading.statistic, leading.interval.high
    if leading.verdict == "contaminated":
        discount = math.floor(-high * leading.n) + 1
        return [
            f"{_flips(gap)} The interval of the difference would reach 0 if about {discount:,} of"
            f" the {counts_of(gap).b:,} that fell were discounted because the perturbed image does"
            " not show its new answer; check them below.",
            "Another clean model that drops further than this reference: of several references, the"
            " one with the weakest evidence of contamination decides.",
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
