"""Resampling: bootstrap intervals over clusters, label swaps, permutation p-values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from flipbench.core.rates import Rate
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

    Resamples whole clusters; independent of item order. None with fewer than two clusters.
    """
    totals, sizes = by_cluster(np.asarray(values, dtype=float), clusters)
    if len(totals) < 2:
        return None
    interval = scipy.stats.bootstrap(
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
    return Interval(low=float(interval.low), high=float(interval.high), level=level)


def share_interval(
    values: Sequence[bool],
    rng: np.random.Generator,
    *,
    clusters: Sequence[str],
    n_bootstrap: int = N_BOOTSTRAP,
) -> Interval | None:
    """Return the bootstrap interval of a share; Wilson's if all N ``values`` are the same.

    The bootstrap's would then have no width; Wilson's counts each cluster as one case.
    """
    if values and len(set(values)) == 1:
        return Rate.wilson(sum(values), len(values), len(set(clusters))).interval
    return bootstrap_interval(values, rng, clusters=clusters, n_bootstrap=n_bootstrap)


def label_swap_p(
    differences: ArrayLike,
    rng: np.random.Generator,
    *,
    clusters: Sequence[str] | None = None,
    n_permutations: int = N_PERMUTATIONS,
) -> float:
    """Return the one-sided p-value of a sum of paired differences below 0.

    Under the null hypothesis the two labels of a pair can be swapped, which changes the sign of
    its difference (of its cluster's). Exact and independent of the seed if the differences are
    integers or fractions with a small denominator (right or wrong answers, shares), or if all swaps
    can be enumerated; otherwise (1 + count) / (``n_permutations`` + 1).

    Parameters
    ----------
    differences : array_like, shape (N,)
        Model - reference by item.
    """
    totals, _ = by_cluster(np.asarray(differences, dtype=float), clusters)
    # what rounding leaves of a zero depends on the processor, and is no change
    totals = totals[np.abs(totals) > 1e-12]
    if len(totals) == 0:
        return 1.0
    if (integers := _as_integers(totals)) is not None:
        return exact_label_swap_p(integers)
    if len(totals) == 1:
        return 0.5 if totals[0] < 0 else 1.0
    test = scipy.stats.permutation_test(
        (totals / np.abs(totals).sum(),),
        _rounded_sum,
        permutation_type="samples",
        vectorized=True,
        n_resamples=n_permutations,
        batch=250,
        alternative="less",
        rng=rng,
    )
    return float(test.pvalue)


def _as_integers(totals: Array) -> NDArray[np.int64] | None:
    """Return ``totals`` in units of their common fraction, if there is one of at least 1/12."""
    for denominator in (1, 2, 3, 4, 5, 6, 8, 10, 12):
        integers = np.rint(totals * denominator)
        if np.abs(totals * denominator - integers).max() < 1e-9 and np.abs(integers).sum() < 1e6:
            return integers.astype(np.int64)
    return None


def exact_label_swap_p(integer_totals: ArrayLike) -> float:
    """Return P(sum of +-|total| <= sum of totals) for independent fair signs.

    Among ``count`` totals of one size, the number of positive signs is binomial.

    >>> round(exact_label_swap_p([-1, -1, -1, 0]), 6), round(exact_label_swap_p([2, -1]), 6)
    (0.125, 0.75)
    """
    totals = np.asarray(integer_totals, dtype=np.int64)
    totals = totals[totals != 0]
    sizes, counts = np.unique(np.abs(totals), return_counts=True)
    probabilities = np.ones(1)  # distribution of the sum of totals with a positive sign
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        pmf = np.zeros(size * count + 1)
        pmf[::size] = scipy.stats.binom.pmf(np.arange(count + 1), count, 0.5)
        probabilities = np.convolve(probabilities, pmf)
    positive = int(totals[totals > 0].sum())
    return min(1.0, float(probabilities[: positive + 1].sum()))


def permutation_p(
    observed: float, null: ArrayLike, alternative: Literal["greater", "less"] = "greater"
) -> float:
    """Return (1 + number of null statistics at least as extreme) / (B + 1), at least 1/(B + 1).

    Parameters
    ----------
    null : array_like, shape (B,)
        The statistic under the null hypothesis. Values equal to ``observed`` up to rounding count
        as extreme.
    """
    values = np.asarray(null, dtype=float)
    slack = 1e-12 * max(1.0, abs(observed))
    extreme = values >= observed - slack if alternative == "greater" else values <= observed + slack
    return (1 + int(extreme.sum())) / (values.size + 1)


def by_cluster(values: Array, clusters: Sequence[str] | None) -> tuple[Array, Array]:
    """Return (totals, sizes) of the clusters, shape (n_clusters,), ordered by total, then size."""
    if clusters is None:
        totals, sizes = values, np.ones_like(values)
    else:
        numbers: dict[str, int] = {}
        index = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
        totals = np.bincount(index, weights=values).astype(np.float64)
        sizes = np.bincount(index).astype(np.float64)
    order = np.lexsort((sizes, totals))
    return totals[order], sizes[order]


def _ratio(totals: Array, sizes: Array, axis: int = -1) -> Array:
    return np.asarray(totals.sum(axis=axis) / sizes.sum(axis=axis))


def _rounded_sum(shares: Array, axis: int = -1) -> Array:
    """Return sums of shares of a total; equal ones must be equal however they were added up."""
    return np.asarray(np.round(shares.sum(axis=axis), 12))
