"""What would change a verdict: items the other way, more pairs, a clean reference model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from scipy import stats

from flipbench.core.records import PairedCounts, Score
from flipbench.reporting import formats

from ..statistics.paired import mcnemar_p
from ..statistics.power import Design, pairs_needed, power

MOST_PAIRS = 4096
"""Where more pairs than that are needed, no number is given."""
WANTED = 0.8
_search = lru_cache(maxsize=256)(pairs_needed)  # takes seconds where thousands are needed
_GAPS = (-0.10, -0.05, -0.02)


@dataclass(frozen=True)
class PairsNeeded:
    """How many pairs find a true gap (a fraction), at two powers; None beyond `MOST_PAIRS`."""

    gap: float
    for_80: int | None
    for_95: int | None
    measured: bool = False


@dataclass(frozen=True)
class Changes:
    """What would change a verdict.

    Attributes
    ----------
    sentences : tuple of str
        One for each way.
    pairs : tuple of PairsNeeded
        Power of the exact one-sided McNemar test, if as many answers change as did here; empty
        where the verdict does not go by that test.
    """

    sentences: tuple[str, ...]
    pairs: tuple[PairsNeeded, ...] = ()


def changes(gap: Score, leading: Score, *, has_reference: bool) -> Changes:
    """Return what would change the verdict of ``leading``; ``gap`` is the model's own gap."""
    if not gap.n:
        return Changes((f"What stands in the way: {gap.warnings[-1]}.",))
    if leading is not gap:
        return Changes(tuple(_of_relative(gap, leading)))
    sentences = _of_test(gap)
    if gap.verdict == "contaminated":
        sentences.append(_FALLS_TOO.format("Another clean model" if has_reference else _GIVE))
    elif not has_reference:
        sentences.append(_HIDDEN)
    return Changes(tuple(sentences), _needed(gap))


_GIVE = "A clean model (--reference), above all the one this model was trained from"
_FALLS_TOO = (
    "{}: if it falls on these twins as well, they are harder than their originals, and the verdict"
    " goes by the difference of the gaps."
)
_HIDDEN = (
    "A clean model (--reference): twins that are easier than their originals hide a gap, and only"
    " the comparison with a model that has seen neither shows it."
)


def items_to_lose(b: int, c: int, alpha: float) -> int:
    """Return how many of ``b`` fallen items must not count for p to rise above ``alpha``.

    >>> items_to_lose(9, 1, 0.05)
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


def gap_found(gap: Score, wanted: float = WANTED) -> float | None:
    """Return the smallest drop that a benchmark of ``gap.n`` pairs finds with power ``wanted``.

    A positive fraction in steps of 0.001, if as many answers change as did here; None where there
    is none. ``gap`` is a score of the McNemar test.
    """
    least, most = 0, 1_000
    while most - least > 1:
        middle = (least + most) // 2
        found = power(_design(-middle / 1_000, gap), gap.n) >= wanted
        least, most = (least, middle) if found else (middle, most)
    return most / 1_000 if power(_design(-most / 1_000, gap), gap.n) >= wanted else None


def _design(drop: float, gap: Score) -> Design:
    """Return the design in which as many answers change as did, but no fewer than must."""
    counts = counts_of(gap)
    changed = (counts.b + counts.c) / gap.n
    return Design(drop, min(1.0, max(changed, abs(drop))), gap.alpha)


def _needed(gap: Score) -> tuple[PairsNeeded, ...]:
    rows = [_pairs(drop, gap) for drop in _GAPS]
    if gap.verdict == "not_detected" and gap.statistic is not None and gap.statistic < 0:
        rows.append(_pairs(gap.statistic, gap, measured=True))
    return tuple(sorted(rows, key=lambda row: row.gap))


def _pairs(drop: float, gap: Score, *, measured: bool = False) -> PairsNeeded:
    design = _design(drop, gap)
    found = [_search(design, wanted, MOST_PAIRS) for wanted in (WANTED, 0.95)]
    return PairsNeeded(drop, found[0], found[1], measured)


def _of_test(gap: Score) -> list[str]:
    counts, alpha, moved = counts_of(gap), gap.alpha, _moved(gap)
    b, c, n11 = counts.b, counts.c, counts.n11
    if gap.verdict == "contaminated":
        lose, rise = items_to_lose(b, c, alpha), items_to_rise(b, c, alpha)
        return [
            f"{moved} The verdict would go if {lose:,} of the {b:,} that fell did not count,"
            " because the twin does not show its new answer; look at them below. It would also go"
            f" if {rise:,} more had risen."
        ]
    if gap.verdict == "inconclusive":
        return [f"{moved} What stands in the way: {gap.warnings[-1]}."]
    fall = items_to_fall(b, c, n11, alpha)
    lines = [
        f"{moved} Contamination would be called if {fall:,} more of the {n11:,} right in both"
        " versions had fallen."
        if fall is not None
        else f"{moved} Not even all {n11:,} that are right in both could make it significant."
    ]
    return [*lines, _more_pairs(gap)]


def _moved(gap: Score) -> str:
    counts = counts_of(gap)
    return (
        f"Of {gap.n:,} pairs {counts.b:,} fell (right on the original, wrong on the twin) and"
        f" {counts.c:,} rose."
    )


def _more_pairs(gap: Score) -> str:
    assert gap.statistic is not None
    if gap.statistic >= 0:
        return "The gap measured is not negative, so more pairs like these would not change it."
    needed = _pairs(gap.statistic, gap).for_80
    text = formats.points(gap.statistic)
    if needed is None:
        return (
            f"If the true gap were the one measured, {text} points, it would take more than"
            f" {MOST_PAIRS:,} pairs to find it four times in five."
        )
    return (
        f"If the true gap were the one measured, {text} points, it would take {needed:,} pairs to"
        f" find it four times in five: {max(0, needed - gap.n):,} more."
    )


def _of_relative(gap: Score, leading: Score) -> list[str]:
    """Return what would change a verdict that goes by the difference of two gaps.

    There is no exact power analysis of it: the numbers scale its interval.
    """
    if leading.verdict == "not_applicable" or leading.statistic is None or not leading.interval:
        return ["A clean model (--reference): the one this model was trained from, if there is."]
    difference, high = leading.statistic, leading.interval.high
    if leading.verdict == "contaminated":
        k = math.floor(-high * leading.n) + 1
        return [
            f"{_moved(gap)} The interval of the difference would reach 0 if about {k:,} of the"
            f" {counts_of(gap).b:,} that fell did not count, because the twin does not show its new"
            " answer; look at them below.",
            "Another clean model that falls further than this one: the one that speaks least for"
            " contamination decides.",
        ]
    if difference >= 0:
        return ["A lower gap than the reference's; more pairs like these would not change it."]
    z = float(stats.norm.ppf(0.975))
    scale = ((high - difference) / z * (z + float(stats.norm.ppf(WANTED))) / difference) ** 2
    return [
        f"If the difference measured, {formats.points(difference)} points, were the true one, about"
        f" {math.ceil(scale * leading.n):,} pairs would be needed for its interval to lie below 0"
        f" four times in five; there are {leading.n:,}."
    ]
