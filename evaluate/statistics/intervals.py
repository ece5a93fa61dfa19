"""Score intervals of paired proportions, for independent items and for items in clusters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy

from flipbench.core.records import Interval

from .resampling import LEVEL, N_BOOTSTRAP, bootstrap_interval, by_cluster


def tango_interval(b: float, c: float, n: float, level: float = LEVEL) -> Interval:
    """Return Tango's score interval of (c - b) / n.

    Parameters
    ----------
    b, c : float
        Pairs right then wrong, and wrong then right; fractions are effective counts.
    n : float
        All pairs.

    References
    ----------
    Tango, Statistics in Medicine 17 (1998), 891-908: all differences that the score test does not
    reject. Covers better than gap ± z·SE when few pairs change, and has a width when none or all
    do.

    Examples
    --------
    >>> interval = tango_interval(25, 28, 618, level=0.9)
    >>> round(interval.low, 4), round(interval.high, 4)
    (-0.0148, 0.0247)
    >>> tango_interval(5, 0, 5).low, round(tango_interval(5, 0, 5).high, 3)
    (-1.0, -0.131)
    """
    return _score_interval(b, c, n, float(scipy.stats.norm.ppf(0.5 + level / 2)), level)


def clustered_interval(
    differences: Sequence[float], clusters: Sequence[str], level: float = LEVEL
) -> Interval | None:
    """Return Tango's interval with as many pairs as the clusters are worth.

    The quantile is Student's with n_clusters - 1 degrees of freedom. None with fewer than two
    clusters.

    Parameters
    ----------
    differences : sequence of float, shape (N,)
        Of right (1) and wrong (0) answers: -1, 0 or 1.
    clusters : sequence of str, shape (N,)
    """
    n_clusters = len(set(clusters))
    if n_clusters < 2:
        return None
    values = np.asarray(differences, dtype=float)
    n, b, c = len(values), float((values < 0).sum()), float((values > 0).sum())
    effect = design_effect(differences, clusters)
    quantile = float(scipy.stats.t.ppf(0.5 + level / 2, n_clusters - 1))
    return _score_interval(b / effect, c / effect, n / effect, quantile, level)


def design_effect(differences: Sequence[float], clusters: Sequence[str]) -> float:
    """Return how many pairs in clusters are worth one independent pair, at least 1.

    That is the variance of the mean over clusters relative to that over independent items. If no
    item differs from the others it cannot be estimated, and each cluster counts as one pair.
    Parameters are those of `clustered_interval`.

    >>> design_effect([-1, -1, 0, 0], ["a", "b", "c", "d"])
    1.0
    >>> round(design_effect([-1, -1, 0, 0, 0, 0], ["a", "a", "b", "b", "c", "c"]), 2)
    2.5
    """
    values = np.asarray(differences, dtype=float)
    totals, sizes = by_cluster(values, clusters)
    n, n_clusters = len(values), len(totals)
    if n_clusters < 2:
        return float(n)
    b, c = float((values < 0).sum()), float((values > 0).sum())
    gap = (c - b) / n
    between = float(((totals - sizes * gap) ** 2).sum()) * n_clusters / (n_clusters - 1)
    within = (b + c - n * gap**2) * n / (n - 1)
    return max(1.0, between / within) if within > 1e-9 else n / n_clusters


def difference_interval(
    values: Sequence[float], clusters: Sequence[str] | None = None, level: float = LEVEL
) -> Interval | None:
    """Return Student's interval of a mean difference, with the variance between clusters.

    One value of +1 and one of -1 are added, as Agresti and Min add to paired proportions
    (Statistics in Medicine 24 (2005), 729-740), so that the interval has a width if all values are
    equal. None with fewer than two clusters.

    Parameters
    ----------
    values : sequence of float, shape (N,)
        Differences of right-or-wrong answers, or of differences: in [-2, 2].
    clusters : sequence of str, shape (N,), optional

    Examples
    --------
    >>> interval = difference_interval([-1.0] * 5)
    >>> round(interval.low, 2), round(interval.high, 2)
    (-1.51, 0.08)
    """
    totals, sizes = by_cluster(np.asarray(values, dtype=float), clusters)
    if len(totals) < 2:
        return None
    totals, sizes = np.append(totals, [1.0, -1.0]), np.append(sizes, [1.0, 1.0])
    n, n_clusters = float(sizes.sum()), len(totals)
    mean = float(totals.sum()) / n
    between = float(((totals - sizes * mean) ** 2).sum()) * n_clusters / (n_clusters - 1)
    half = float(scipy.stats.t.ppf(0.5 + level / 2, n_clusters - 3)) * math.sqrt(between) / n
    return Interval(low=max(-2.0, mean - half), high=min(2.0, mean + half), level=level)


def mean_interval(
    values: Sequence[float],
    rng: np.random.Generator,
    *,
    clusters: Sequence[str] | None = None,
    n_bootstrap: int = N_BOOTSTRAP,
    level: float = LEVEL,
    reach: float = 1.0,
) -> Interval | None:
    """Return the percentile bootstrap interval of a mean; `difference_interval` if all agree.

    The bootstrap of values (or of clusters' means) that are all equal has no width, as if the mean
    were known. None with fewer than two clusters.

    Parameters
    ----------
    values : sequence of float, shape (N,)
    reach : float
        The largest absolute value that is possible. With larger ones, the width may be 0.

    Examples
    --------
    >>> interval = mean_interval([0.5] * 10, np.random.default_rng(0), reach=0.5)
    >>> round(interval.low, 3), interval.high
    (0.228, 0.5)
    """
    array = np.asarray(values, dtype=float)
    interval = bootstrap_interval(
        array, rng, clusters=clusters, n_bootstrap=n_bootstrap, level=level
    )
    if interval is None or interval.high - interval.low > 1e-12 or np.abs(array).max() > reach:
        return interval
    scaled = difference_interval((array / reach).tolist(), clusters, level)
    if scaled is None:
        return None
    low, high = max(-1.0, scaled.low), min(1.0, scaled.high)
    return Interval(low=reach * low, high=reach * high, level=level)


def _score_interval(b: float, c: float, n: float, quantile: float, level: float) -> Interval:
    gap = (c - b) / n

    def excess(difference: float, bound: float) -> float:
        return _score(b, c, n, difference) - bound

    edge = 1 - 1e-12
    root = scipy.optimize.brentq
    low = -1.0 if gap <= -edge else float(root(excess, -edge, gap, args=(quantile,)))
    high = 1.0 if gap >= edge else float(root(excess, gap, edge, args=(-quantile,)))
    return Interval(low=low, high=high, level=level)


def _score(b: float, c: float, n: float, difference: float) -> float:
    """Return the score statistic of "the true gap is ``difference``"; it falls with difference."""
    linear = (2 * n - c + b) * difference - b - c
    constant = -b * difference * (1 - difference)
    fell = (math.sqrt(max(0.0, linear**2 - 8 * n * constant)) - linear) / (4 * n)
    variance = n * (2 * fell + difference * (1 - difference))
    distance = c - b - n * difference
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)
