"""Whether printed figures are possible: percentages of whole counts, and gaps within a row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from ..statistics.paired import mcnemar_p

DeltaVerdict = Literal["exact", "rounding", "wrong"]


def possible_counts(percent: Decimal, n: int) -> list[int]:
    """Return every k for which k of n rounds to ``percent`` at its printed digits.

    Halves may be rounded either way. An empty list is a failed GRIM test: no number of right
    answers gives this percentage.

    Parameters
    ----------
    percent : Decimal
        As printed, 0 to 100; its digits matter, so 43.4 and 43.40 differ.
    n : int
        Number of items.

    References
    ----------
    Brown and Heathers, The GRIM test, Social Psychological and Personality Science 8 (2017).

    Examples
    --------
    >>> possible_counts(Decimal("52.05"), 440), possible_counts(Decimal("43.40"), 440)
    ([229], [])
    """
    if n <= 0:
        raise ValueError(f"n must be above 0, not {n}")
    half = unit(percent) / 2
    low = math.ceil((Fraction(percent) - half) * n / 100)
    high = math.floor((Fraction(percent) + half) * n / 100)
    return list(range(max(0, low), min(n, high) + 1))


def unit(figure: Decimal) -> Fraction:
    """Return the value of a printed number's last digit.

    >>> unit(Decimal("43.40"))
    Fraction(1, 100)
    """
    exponent = figure.as_tuple().exponent
    assert isinstance(exponent, int)
    return Fraction(10) ** min(exponent, 0)


def delta_verdict(
    original: Decimal,
    perturbed: Decimal,
    delta: Decimal,
    sizes: tuple[int | None, int | None] = (None, None),
) -> DeltaVerdict:
    """Return whether a printed gap is the difference of its printed figures.

    "rounding" is a difference in the last digits that rounding explains: figures and gap are each
    off by at most half a unit. If both sizes are known, the gaps of the possible counts decide.

    >>> delta_verdict(Decimal("97.05"), Decimal("54.32"), Decimal("-42.74"), (1900, 1900))
    'rounding'
    >>> delta_verdict(Decimal("57.60"), Decimal("53.54"), Decimal("-3.06"))
    'wrong'
    """
    difference, printed_gap = Fraction(perturbed) - Fraction(original), Fraction(delta)
    if difference == printed_gap:
        return "exact"
    slack = (unit(original) + unit(perturbed) + unit(delta)) / 2
    possible = possible_deltas(original, perturbed, sizes)
    within = not possible or any(abs(printed_gap - d) <= unit(delta) / 2 for d in possible)
    return "rounding" if abs(printed_gap - difference) <= slack and within else "wrong"


def possible_deltas(
    original: Decimal, perturbed: Decimal, sizes: tuple[int | None, int | None]
) -> list[Fraction]:
    """Return the gaps, in points, of all counts that the two percentages allow."""
    n, m = sizes
    if n is None or m is None:
        return []
    return [
        100 * (Fraction(k_perturbed, m) - Fraction(k_original, n))
        for k_original in possible_counts(original, n)
        for k_perturbed in possible_counts(perturbed, m)
    ]


def fitting_sizes(percents: Iterable[Decimal], candidates: Iterable[int]) -> list[int]:
    """Return the numbers of items for which all percentages are possible.

    >>> fitting_sizes([Decimal("72.20"), Decimal("87.72"), Decimal("88.79")], range(440, 500))
    [464]
    """
    values = list(percents)
    return [n for n in candidates if all(possible_counts(value, n) for value in values)]


def least_p(difference: int) -> float:
    """Return the smallest exact two-sided McNemar p-value for this difference in right answers.

    It is reached if all changed answers changed in the same direction; no paired table with the
    same totals gives a smaller one.

    >>> least_p(4), least_p(-6)
    (0.125, 0.03125)
    """
    return mcnemar_p(0, abs(difference), "two-sided")


def unpaired_se(fractions: Sequence[float], sizes: Sequence[int]) -> float:
    """Return the standard error, a fraction, of a difference of independent proportions."""
    return math.sqrt(sum(p * (1 - p) / n for p, n in zip(fractions, sizes, strict=True)))
