"""The trend of values along their order, tested by permutation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from .resampling import Array, permutation_p

MIN_ITEMS = 4


@dataclass(frozen=True)
class OrderTrend:
    """Spearman's rho between position and value, and permutation p-values.

    ``p_falls`` is one-sided for a low rho, ``p_two_sided`` for its magnitude, ``p_lag1`` one-sided
    for a high serial correlation ``lag1`` of the ranks of neighbours.
    """

    rho: float
    p_falls: float
    p_two_sided: float
    lag1: float
    p_lag1: float
    n: int
    n_permutations: int
    exact: bool

    @property
    def floor(self) -> float:
        """The smallest p-value that this number of permutations can give."""
        return 1 / (self.n_permutations + (0 if self.exact else 1))


def order_trend_test(
    values: ArrayLike,
    rng: np.random.Generator,
    *,
    strata: Sequence[str] | None = None,
    n_permutations: int = 9_999,
) -> OrderTrend:
    """Test for a trend of ``values`` along their order.

    Parameters
    ----------
    values : array_like, shape (N,)
        Ties get average ranks; if all values are equal, rho is 0.
    strata : sequence of str, shape (N,), optional
        Values are permuted within strata only.
    n_permutations : int
        If there are no more permutations than that, all are enumerated and p is exact.

    Raises
    ------
    ValueError
        If there are fewer than 4 values, or one is not finite.

    Examples
    --------
    >>> trend = order_trend_test([-2, -1, -4, -3], np.random.default_rng(0))
    >>> round(trend.rho, 3), round(trend.p_falls, 5)
    (-0.6, 0.20833)
    """
    scores = np.asarray(values, dtype=float)
    n = len(scores)
    if n < MIN_ITEMS or not np.isfinite(scores).all():
        raise ValueError(f"a trend needs at least {MIN_ITEMS} finite values, got {n}")
    stratum = np.zeros(n, int) if strata is None else _numbered(strata)
    by_stratum = np.argsort(stratum, kind="stable")
    cuts = np.flatnonzero(np.diff(stratum[by_stratum])) + 1
    position = np.arange(n) - (n - 1) / 2
    ranks = scipy.stats.rankdata(scores) - (n + 1) / 2
    norm = math.sqrt(float(position @ position) * float(ranks @ ranks)) or 1.0
    log_orders = sum(math.lgamma(size + 1) for size in np.diff([0, *cuts, n]).tolist())
    exact = log_orders <= math.log(n_permutations) + 1e-9
    orders = _every_order if exact else _random_orders
    to_file_order = np.argsort(by_stratum)
    null = [
        (float(position @ x), float(x[:-1] @ x[1:]))
        for shuffled in orders(ranks[by_stratum], cuts, rng, n_permutations)
        for x in [shuffled if strata is None else shuffled[to_file_order]]
    ]
    null_rho, null_lag1 = (np.array(column) / norm for column in zip(*null, strict=True))
    rho, lag1 = float(position @ ranks) / norm, float(ranks[:-1] @ ranks[1:]) / norm

    def p(observed: float, null_values: Array) -> float:
        if exact:
            return float((null_values >= observed - 1e-12).mean())
        return permutation_p(observed, null_values, "greater")

    return OrderTrend(
        rho=rho,
        p_falls=p(-rho, -null_rho),
        p_two_sided=p(abs(rho), np.abs(null_rho)),
        lag1=lag1,
        p_lag1=p(lag1, null_lag1),
        n=n,
        n_permutations=len(null),
        exact=exact,
    )


def cluster_values(
    values: ArrayLike, clusters: Sequence[str], *, strata: Sequence[str] | None = None
) -> Array:
    """Return one value for each cluster, shape (n_clusters,), in the order of their mean positions.

    It is the mean rank of the cluster's values, less the mean rank in each value's stratum.

    Parameters
    ----------
    values : array_like, shape (N,)
    clusters, strata : sequence of str, shape (N,)

    Examples
    --------
    >>> cluster_values([5.0, 7.0, 1.0, 2.0], ["b", "b", "a", "a"]).tolist()
    [1.0, -1.0]
    """
    ranks = scipy.stats.rankdata(np.asarray(values, dtype=float))
    stratum = np.zeros(len(ranks), int) if strata is None else _numbered(strata)
    ranks -= (np.bincount(stratum, ranks) / np.bincount(stratum))[stratum]
    cluster = _numbered(clusters)
    sizes = np.bincount(cluster)
    order = np.argsort(np.bincount(cluster, np.arange(len(ranks))) / sizes, kind="stable")
    return np.asarray((np.bincount(cluster, ranks) / sizes)[order])


def _numbered(names: Sequence[str]) -> NDArray[np.int64]:
    return np.asarray(np.unique(names, return_inverse=True)[1])


def _random_orders(
    ranks: Array, cuts: NDArray[np.int64], rng: np.random.Generator, n: int
) -> Iterator[Array]:
    """Yield the same array, shuffled in place, which is faster than `permuted` on copies."""
    x = ranks.copy()
    parts = np.split(x, cuts)
    for _ in range(n):
        for part in parts:
            rng.shuffle(part)
        yield x


def _every_order(
    ranks: Array, cuts: NDArray[np.int64], _rng: np.random.Generator, _n: int
) -> Iterator[Array]:
    parts = [itertools.permutations(part) for part in np.split(ranks, cuts)]
    for orders in itertools.product(*parts):
        yield np.array([value for part in orders for value in part])
