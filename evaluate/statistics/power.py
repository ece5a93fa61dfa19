"""How many pairs a test needs: exact power of the one-sided McNemar test for a paired design."""

from __future__ import annotations

import bisect
import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Design:
    """A paired design: how often answers change, and how much more often they get worse.

    Attributes
    ----------
    gap : float
        Expected perturbed - original accuracy, a fraction; negative if accuracy drops.
    discordance : float
        Share of items that are right in exactly one version, at least ``|gap|``.
    alpha : float
        Level of the one-sided exact test.
    """

    gap: float
    discordance: float
    alpha: float = 0.05

    def __post_init__(self) -> None:
        """Refuse an impossible design."""
        if not 0 < self.discordance <= 1:
            raise ValueError(f"discordance must be in (0, 1], not {self.discordance}")
        if abs(self.gap) > self.discordance:
            raise ValueError(
                f"a gap of {self.gap} needs at least that share of changed answers, not"
                f" {self.discordance}"
            )
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha must be in (0, 1), not {self.alpha}")


def power(design: Design, n: int) -> float:
    """Return the probability that ``n`` pairs give p <= alpha (one-sided exact McNemar, "drop").

    The number of discordant pairs is binomial (n, discordance); given m of them, the number of
    right→wrong ones is binomial (m, (discordance - gap) / (2 discordance)).

    >>> round(power(Design(gap=-0.05, discordance=0.2), 440), 3)
    0.728
    """
    m = np.arange(n + 1)
    p_significant = _significant(design, 1 << n.bit_length())[: n + 1]
    return float(np.sum(stats.binom.pmf(m, n, design.discordance) * p_significant))


def pairs_needed(design: Design, target: float = 0.8, max_pairs: int = 1_000_000) -> int | None:
    """Return the smallest n from which on the power is at least ``target``.

    Exact power is a sawtooth in n, so the last n below ``target`` decides; it is searched for in a
    window of a tenth above the first n that reaches it. None if that is beyond ``max_pairs``.
    """
    if design.gap >= 0:
        return None
    low, high = 1, 2
    while power(design, high) < target:
        low, high = high, 2 * high
        if high > max_pairs:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(design, middle) >= target else (middle, high)
    missed = [n for n in range(high, high + max(20, high // 10)) if power(design, n) < target]
    return (missed[-1] + 1) if missed else high


def detectable_drop(
    n: int, changed: float, alpha: float = 0.05, target: float = 0.8
) -> float | None:
    """Return the smallest drop that ``n`` pairs detect with probability ``target``.

    In steps of 0.001; None if even the largest is detected less often. Answers rise and fall by
    chance as often as a clean model's do, and a memory adds to those that fall; had it to leave
    the number of changed answers as it is, the drop would be understated.

    Parameters
    ----------
    changed : float
        Share of items that a clean model gets right in exactly one version, a fraction.

    Examples
    --------
    >>> detectable_drop(400, 0.2)
    0.067
    """

    def is_detected(thousandths: int) -> bool:
        return power(with_memory(-thousandths / 1_000, changed, alpha), n) >= target

    n_missed = bisect.bisect_left(range(1, 1_001), True, key=is_detected)
    return (n_missed + 1) / 1_000 if n_missed < 1_000 else None


def with_memory(gap: float, changed: float, alpha: float) -> Design:
    """Return the design of a clean model's changes and, besides, a memory's falls."""
    return Design(gap, min(1.0, changed + abs(gap)), alpha)


@functools.lru_cache(maxsize=4)
def _significant(design: Design, size: int) -> Floats:
    """Return the probability of p <= alpha given m discordant pairs, for each m below ``size``.

    It depends on no number of pairs, and so is shared by all those that are tried for a design.
    """
    m = np.arange(size)
    worse = (design.discordance - design.gap) / (2 * design.discordance)
    return np.asarray(stats.binom.sf(_critical(m, design.alpha) - 1, m, worse))


def _critical(m: NDArray[np.int_], alpha: float) -> Floats:
    """Return the smallest b of m discordant pairs with P(X >= b) <= alpha, else m + 1."""
    b = stats.binom.isf(alpha, m, 0.5) + 1
    b = np.where(stats.binom.sf(b - 2, m, 0.5) <= alpha, b - 1, b)
    return np.where(m > 0, np.minimum(b, m + 1), math.inf)
