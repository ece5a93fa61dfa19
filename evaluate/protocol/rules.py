"""Decision rules as functions of plain numbers, and the conditions under which they refuse.

A detector passes measured numbers, a test the numbers published in a paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from flipbench.core.records import ALPHA as ALPHA
from flipbench.core.records import Direction as Direction

from ..statistics.paired import min_pairs

Verdict = Literal["contaminated", "not_detected", "inconclusive", "not_applicable"]
Degree = Literal["none", "minor", "partial", "severe"]

MAX_UNPARSED_DIFFERENCE = 0.05
"""Largest allowed difference between the parse-failure rates of two conditions, a fraction."""
MAX_UNPARSED = 0.2
"""Largest allowed parse-failure rate of a condition, a fraction."""


def beyond(statistic: float, reference: float = 0.0, direction: Direction = "falls") -> Verdict:
    """Return "contaminated" if the statistic is strictly beyond the reference (a tie is not).

    With reference 0 this is the sign rule. It does not control the error rate: a clean model with a
    true gap of 0 is flagged about half of the time.

    >>> beyond(-0.002), beyond(0.0), beyond(-0.0606, -0.0606), beyond(0.004, direction="rises")
    ('contaminated', 'not_detected', 'not_detected', 'contaminated')
    """
    flagged = statistic < reference if direction == "falls" else statistic > reference
    return "contaminated" if flagged else "not_detected"


def significant(p_value: float, alpha: float = ALPHA) -> Verdict:
    """Return "contaminated" if p <= alpha."""
    return "contaminated" if p_value <= alpha else "not_detected"


def unparsed_warning(unparsed: Mapping[str, tuple[int, int]]) -> str | None:
    """Return a warning if many replies name no option, or far more in one condition.

    Parameters
    ----------
    unparsed : mapping of str to (int, int)
        For each condition, the number of replies that name no option and of all replies.

    Examples
    --------
    >>> unparsed_warning({"original": (0, 100), "perturbed": (6, 100)})
    'replies that name no option: original 0/100, perturbed 6/100; the rates differ by more than \
5 points, so the comparison would measure format, not knowledge; inspect the replies'
    >>> unparsed_warning({"original": (85, 100), "perturbed": (83, 100)})
    'replies that name no option: original 85/100, perturbed 83/100; more than 20 % of a condition \
are no evidence either way; inspect the replies, and ask for the letter only or compare likelihoods'
    """
    rates = [k / n for k, n in unparsed.values() if n]
    counts = ", ".join(f"{name} {k}/{n}" for name, (k, n) in unparsed.items())
    if rates and max(rates) - min(rates) > MAX_UNPARSED_DIFFERENCE + 1e-12:
        return (
            f"replies that name no option: {counts}; the rates differ by more than"
            f" {100 * MAX_UNPARSED_DIFFERENCE:.0f} points, so the comparison would measure format,"
            " not knowledge; inspect the replies"
        )
    if rates and max(rates) > MAX_UNPARSED:
        return (
            f"replies that name no option: {counts}; more than {100 * MAX_UNPARSED:.0f} % of a"
            " condition are no evidence either way; inspect the replies, and ask for the letter"
            " only or compare likelihoods"
        )
    return None


def too_few_warning(n: int, alpha: float = ALPHA) -> str | None:
    """Return a warning if even ``n`` discordant pairs cannot reach ``alpha``.

    >>> too_few_warning(5) is None
    True
    >>> too_few_warning(4)
    'only 4 items were compared; fewer than 5 can never reach alpha = 0.05'
    """
    minimum = min_pairs(alpha)
    if n >= minimum:
        return None
    items = "item was" if n == 1 else "items were"
    return f"only {n} {items} compared; fewer than {minimum} can never reach alpha = {alpha:g}"


class Bands(NamedTuple):
    """Gaps (fractions) at or below which a leak is called minor, partial or severe."""

    minor: float
    partial: float
    severe: float

    def degree(self, gap: float) -> Degree:
        """Return the band that a gap falls into; each band includes its upper bound.

        >>> bands = Bands(-0.002, -0.016, -0.029)
        >>> bands.degree(-0.001), bands.degree(-0.002), bands.degree(-0.016), bands.degree(-0.05)
        ('none', 'minor', 'partial', 'severe')
        """
        names: tuple[Degree, ...] = ("none", "minor", "partial", "severe")
        return names[sum(round(gap, 9) <= bound for bound in self)]
