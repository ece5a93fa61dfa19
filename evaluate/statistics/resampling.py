"""Resampling: bootstrap intervals over clusters, label swaps, permutation p-values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from flipbench.core.records import Interval

Array = NDArray[np.float64]
LEVEL = 0.95
N_BOOTSTRAP = 2_000
N_PERMUTATIONS = 9_999


def bootstrap_interval(
    values: ArrayLike,
    rng: np.random.Generator,
    *,
    clusters: Sequence[str] | None = None,
    n_bootstrap: int = N_BOOTSTRAP,
    level: float = LEVEL,
) -> Interval | None:
    """Return the percentile bootstrap interval of the mean of ``values``, shape (N,).

    Whole clusters are drawn. The order of items changes nothing. None with fewer than two clusters.
    """
    totals, sizes = _by_cluster(np.asarray(values, dtype=float), clusters)
    if len(totals) < 2:
        return None
    found = stats.bootstrap(
        (totals, sizes),
        _ratio,
        paired=True,
        vectorized=True,
        n_resamples=n_bootstrap,
        batch=250,
        confidence_level=level,
        method="percentile",
        rng=rng,
    ).confidence_interval
    return Interval(low=float(found.low), high=float(found.high), level=level)


def label_swap_p(
    differences: ArrayLike,
    rng: np.random.Generator,
    *,
    clusters: Sequence[str] | None = None,
    n_permutations: int = N_PERMUTATIONS,
) -> float:
    """Return the one-sided p-value that the sum of paired differences lies below 0 by chance.

    Under the null hypothesis the two labels of a pair can be swapped, which changes the sign of
    its difference (of its cluster's). Exact, and without a seed, where the differences are whole
    numbers or fractions of a small denominator, as those of right and wrong answers and of shares
    are, or where all swaps can be enumerated; otherwise (1 + count) / (``n_permutations`` + 1).

    Parameters
    ----------
    differences : array_like, shape (N,)
        Model - reference by item.
    """
    totals, _ = _by_cluster(np.asarray(differences, dtype=float), clusters)
    totals = totals[totals != 0]
    if len(totals) == 0:
        return 1.0
    if (whole := _as_whole(totals)) is not None:
        return _exact_label_swap_p(whole)
    if len(totals) == 1:
        return 0.5 if totals[0] < 0 else 1.0
    found = stats.permutation_test(
        (totals,),
        _sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=n_permutations,
        batch=250,
        alternative="less",
        rng=rng,
    )
    return float(found.pvalue)


def _as_whole(totals: Array) -> NDArray[np.int64] | None:
    """Return ``totals`` in units of their common fraction, if there is one of at least 1/12."""
    for denominator in (1, 2, 3, 4, 5, 6, 8, 10, 12):
        whole = np.rint(totals * denominator)
        if np.abs(totals * denominator - whole).max() < 1e-9 and np.abs(whole).sum() < 1e6:
            return whole.astype(np.int64)
    return None


def _exact_label_swap_p(totals: NDArray[np.int64]) -> float:
    """Return P(sum of +-|total| <= sum of totals), the signs being fair coins.

    Of ``count`` totals of one size, the positive signs are binomial; sizes are independent.
    """
    sizes, counts = np.unique(np.abs(totals), return_counts=True)
    probabilities = np.ones(1)  # of the sum of sizes with a positive sign
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        of_size = np.zeros(size * count + 1)
        of_size[::size] = stats.binom.pmf(np.arange(count + 1), count, 0.5)
        probabilities = np.convolve(probabilities, of_size)
    positive = int(totals[totals > 0].sum())
    return min(1.0, float(probabilities[: positive + 1].sum()))


def permutation_p(
    observed: float, null: ArrayLike, alternative: Literal["greater", "less"] = "greater"
) -> float:
    """Return (1 + number of null statistics at least as extreme) / (B + 1); its floor is 1/(B + 1).

    Parameters
    ----------
    null : array_like, shape (B,)
        The statistic under the null hypothesis. Values equal to ``observed`` up to rounding count
        as being as extreme.
    """
    values = np.asarray(null, dtype=float)
    slack = 1e-12 * max(1.0, abs(observed))
    extreme = values >= observed - slack if alternative == "greater" else values <= observed + slack
    return (1 + int(extreme.sum())) / (values.size + 1)


def least_permutations(n_tests: int, alpha: float) -> int:
    """Return the permutations with which one of ``n_tests`` can reach ``alpha`` under Bonferroni.

    >>> least_permutations(27, 0.01), least_permutations(12, 0.01)
    (2699, 1199)
    """
    return max(1, math.ceil(round(n_tests / alpha - 1, 9)))


def _by_cluster(values: Array, clusters: Sequence[str] | None) -> tuple[Array, Array]:
    """Return (totals, sizes) of the clusters, sorted, each of shape (n_clusters,)."""
    if clusters is None:
        totals, sizes = values, np.ones_like(values)
    else:
        _, index = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
        totals = np.bincount(index, weights=values).astype(np.float64)
        sizes = np.bincount(index).astype(np.float64)
    order = np.lexsort((sizes, totals))
    return totals[order], sizes[order]


def _ratio(totals: Array, sizes: Array, axis: int = -1) -> Array:
    return np.asarray(totals.sum(axis=axis) / sizes.sum(axis=axis))


def _sum(totals: Array, axis: int = -1) -> Array:
    return np.asarray(totals.sum(axis=axis))
