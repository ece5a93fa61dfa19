"""How alike models of one lineage are, and intervals that allow for it.

Several models that descend from one clean model are worth fewer than as many unrelated ones: n of
them are worth n / design effect. The correlation within lineages is unknown, and few lineages say
little about it. Therefore it is averaged over 0 to 1, with its likelihood and a prior as weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from flipbench.core.rates import Rate
from flipbench.core.records import Interval

from .resampling import LEVEL, Array

MIN_CLUSTERS = 8
"""Fewest clusters whose spread says how alike their cases are."""
PRIOR = 8.0
"""The correlation's prior from `MIN_CLUSTERS` on: beta(1, 8), with mean 1/9.

It has the greatest marginal likelihood of beta(1, b) for the 22 sets of contaminated models and of
controls in docs/results/population. Fewer clusters keep a flat prior: nothing would correct it.
"""
_RHO = (np.arange(40) + 0.5) / 40
_SHARE = np.sin(np.pi / 2 * (np.arange(200) + 0.5) / 200)[:, None] ** 2  # Jeffreys' prior


class ClusteredRate(Rate):
    """k of n cases in clusters; ``interval`` allows for their correlation.

    Attributes
    ----------
    pooled : Interval or None
        The interval as if all cases were independent.
    design_effect : float
        How many cases of these clusters are worth one independent case, at least 1.
    """

    pooled: Interval | None = None
    design_effect: float = 1.0


def clustered_rate(counts: Sequence[tuple[int, int]], *, exact: bool = False) -> ClusteredRate:
    """Return the rate of all clusters, from (k, n) of each.

    Parameters
    ----------
    exact : bool
        Clopper-Pearson intervals instead of Wilson's.

    Examples
    --------
    >>> rate = clustered_rate([(4, 4), (4, 4)])
    >>> [round(between.low, 2) for between in (rate.pooled, rate.interval)]
    [0.68, 0.44]
    """
    k, n = sum(k for k, _ in counts), sum(n for _, n in counts)
    make = Rate.exact if exact else Rate.wilson
    sizes = [n for _, n in counts]
    effect = kish_design_effect(sizes, correlation_of_counts(tuple(sorted(counts))))
    if len(counts) >= MIN_CLUSTERS:
        effect = min(max(effect, spread_of_counts(counts)), kish_design_effect(sizes, 1.0))
    return ClusteredRate(
        k=k,
        n=n,
        interval=make(k, n, n / effect).interval,
        n_clusters=len(counts),
        pooled=make(k, n).interval,
        design_effect=effect,
    )


def kish_design_effect(sizes: Sequence[int], correlation: float) -> float:
    """Return the design effect of the mean of clusters of these sizes (Kish).

    >>> kish_design_effect([4, 4], 0.5), kish_design_effect([], 0.5)
    (2.5, 1.0)
    """
    if not sizes:
        return 1.0
    return 1 + (sum(n * n for n in sizes) / sum(sizes) - 1) * correlation


def spread_of_counts(counts: Sequence[tuple[int, int]]) -> float:
    """Return the design effect that the spread of k - n * rate over clusters shows.

    That is the variance of the rate over clusters, divided by that of independent cases, with
    the square of Student's quantile over the normal's as a factor; the factor alone if all cases
    are alike. It misses that one cluster differs where hardly any case is a hit.
    """
    k, n = np.array(counts, dtype=float).T
    rate, n_clusters = k.sum() / n.sum(), len(counts)
    independent = rate * (1 - rate) * n.sum() * (n_clusters - 1) / n_clusters
    ratio = ((k - n * rate) ** 2).sum() / independent if independent > 0 else 1.0
    return float(max(ratio, 1.0) * student_factor(n_clusters))


def student_factor(n_clusters: int) -> float:
    """Return the square of Student's quantile over the normal's, for a 95 % interval.

    >>> round(student_factor(12), 3)
    1.261
    """
    level = 0.5 + LEVEL / 2
    return float((scipy.stats.t.ppf(level, n_clusters - 1) / scipy.stats.norm.ppf(level)) ** 2)


@cache
def correlation_of_counts(counts: tuple[tuple[int, int], ...]) -> float:
    """Return the correlation of yes and no within clusters, from (k, n) of each.

    The mean of its posterior under a beta-binomial model, with Jeffreys' prior of the rate and a
    prior of the correlation that is flat below `MIN_CLUSTERS` clusters (see `PRIOR`).
    """
    log_prior = (PRIOR - 1) * np.log(1 - _RHO) if len(counts) >= MIN_CLUSTERS else np.zeros(1)
    return _mean(sum((_log_likelihood(k, n) for k, n in counts), log_prior))


@lru_cache(maxsize=256)  # of 64 kB each: many clusters have the same counts
def _log_likelihood(k: int, n: int) -> Array:
    """Return that of one cluster under the beta-binomial model, by rate and correlation."""
    a, b = _SHARE * (1 - _RHO) / _RHO, (1 - _SHARE) * (1 - _RHO) / _RHO
    log_beta = scipy.special.betaln
    return np.asarray(log_beta(k + a, n - k + b) - log_beta(a, b))


def correlation_of_values(
    values: Array, positive: NDArray[np.bool_], groups: NDArray[np.int64]
) -> float:
    """Return the correlation of values within clusters, of positives and negatives alike.

    The mean of its posterior under normal random effects on the normal scores of the ranks, with a
    flat prior; positives and negatives differ in the mean, and each cluster in both.

    Parameters
    ----------
    values, positive, groups : ndarray, shape (M,)
    """
    scores = scipy.stats.norm.ppf((scipy.stats.rankdata(values) - 0.5) / len(values))
    log_det, spread, df = np.zeros(len(_RHO)), np.zeros(len(_RHO)), 0
    for side in (positive, ~positive):
        _, cluster, sizes = np.unique(groups[side], return_inverse=True, return_counts=True)
        means = np.bincount(cluster, scores[side]) / sizes
        variance = _RHO[:, None] + (1 - _RHO[:, None]) / sizes
        mean = (means / variance).sum(axis=1) / (1 / variance).sum(axis=1)
        spread += ((means - mean[:, None]) ** 2 / variance).sum(axis=1)
        spread += ((scores[side] - means[cluster]) ** 2).sum() / (1 - _RHO)
        log_det += (sizes - 1).sum() * np.log(1 - _RHO)
        log_det += np.log(variance).sum(axis=1) + np.log((1 / variance).sum(axis=1))
        df += int(sizes.sum()) - 1
    return _mean(-(log_det + df * np.log(np.maximum(spread, 1e-9))) / 2)


def _mean(log_likelihood: Array) -> float:
    """Return the mean correlation, from likelihoods of shape (..., n_correlations)."""
    weights = np.exp(log_likelihood - log_likelihood.max()) * np.ones(len(_RHO))
    return float((weights * _RHO).sum() / weights.sum())
