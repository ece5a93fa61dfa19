"""The same items among the highest-scored of two models: overlap, lift and exact tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from flipbench.core.errors import DataError
from flipbench.core.randomness import generator

from ..statistics.paired import adjust_p_values
from .cohort import Array, Cohort, strata_of

K = 25


@dataclass(frozen=True)
class PairOverlap:
    """The overlap of two models' K highest-scored items.

    Attributes
    ----------
    models : (str, str)
    n_external : int
        How many of the two are external (0, 1 or 2): their overlap shows what any models share.
    ranking : str
        "score": each model is ranked by its own.
    n, n_missing, k : int
        Items that both models have a score for, those that they do not, and K.
    n_tied : tuple of int
        By model, the items tied at its K-th place, of which some were drawn by seed; 0 if none.
    intersection : int
    p : float
        P(X >= intersection) for X ~ Hypergeometric(n, K, K), corrected over the pairs in `p_holm`.
    expected_within, p_within : float or None
        The same within strata of the covariates: expected overlap, and P(X >= intersection) for
        the sum of one hypergeometric count per stratum; None if no covariates are given.
    """

    models: tuple[str, str]
    n_external: int
    n: int
    n_missing: int
    k: int
    n_tied: tuple[int, int]
    intersection: int
    p: float
    p_holm: float
    expected_within: float | None = None
    p_within: float | None = None
    p_within_holm: float | None = None
    ranking: str = "score"

    @property
    def union(self) -> int:
        """Number of items that are among the highest of either model."""
        return 2 * self.k - self.intersection

    @property
    def jaccard(self) -> float:
        """Intersection over union."""
        return self.intersection / self.union

    @property
    def chance(self) -> float:
        """Expected intersection of two random choices of K among n items, K²/n."""
        return chance_overlap(self.n, self.k)

    @property
    def lift(self) -> float:
        """Intersection over chance."""
        return self.intersection / self.chance


def chance_overlap(n: int, k: int = K) -> float:
    """Return the expected overlap of two random choices of k among n items.

    >>> round(chance_overlap(6_719), 5), chance_overlap(1_000, 50)
    (0.09302, 2.5)
    """
    return k * k / n


def overlap_p(n: int, k: int, intersection: int) -> float:
    """Return P(X >= intersection) for X ~ Hypergeometric(n, k, k).

    >>> f"{overlap_p(6_719, 25, 11):.1e}", round(overlap_p(451, 25, 4), 3)
    ('6.2e-22', 0.042)
    """
    return float(stats.hypergeom.sf(intersection - 1, n, k, k))


def stratified_overlap(
    first_choice: NDArray[np.int64], second_choice: NDArray[np.int64], stratum: NDArray[np.int64]
) -> tuple[float, float]:
    """Return (expected overlap, p) if both choices are random within strata.

    Both keep the number of items that they have in each stratum; the overlap is then a sum of
    independent hypergeometric counts, whose distribution is computed exactly.

    Parameters
    ----------
    first, second : ndarray of int, shape (K,)
        Indices of the chosen items.
    stratum : ndarray of int, shape (N,)

    >>> stratified_overlap(np.array([0, 1]), np.array([0, 1]), np.array([0, 0, 1, 1]))
    (2.0, 1.0)
    """
    sizes = np.bincount(stratum)
    in_first = np.bincount(stratum[first_choice], minlength=len(sizes))
    in_second = np.bincount(stratum[second_choice], minlength=len(sizes))
    distribution = np.ones(1)
    for size, a, b in zip(sizes.tolist(), in_first.tolist(), in_second.tolist(), strict=True):
        if a and b:
            count = np.arange(min(a, b) + 1)
            distribution = np.convolve(distribution, stats.hypergeom.pmf(count, size, a, b))
    intersection = len(np.intersect1d(first_choice, second_choice))
    n_expected = float((in_first * in_second / np.maximum(sizes, 1)).sum())
    return n_expected, min(1.0, float(distribution[intersection:].sum()))


def top_k(values: Array, k: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], int]:
    """Return the indices of the k highest values, and how many are tied at the k-th place.

    Ties are broken at random. The count is 0 if the tied items all belong to the k.

    >>> top_k(np.array([3.0, 1.0, 2.0]), 2, np.random.default_rng(0))
    (array([0, 2]), 0)
    """
    order = np.lexsort((rng.random(len(values)), -values))
    tied = values == values[order[k - 1]]
    n_tied = int(tied.sum()) if k < len(values) and values[order[k]] == values[order[k - 1]] else 0
    return np.sort(order[:k]), n_tied


def pair_overlaps(
    cohort: Cohort,
    *,
    k: int = K,
    seed: int = 0,
    strata: Sequence[str] = (),
) -> list[PairOverlap]:
    """Return the overlap of every pair of models, with Holm's correction over the pairs.

    Overlap above chance means that both models find the same items familiar. Short, common or
    formulaic answers are familiar to any model, so a pair of models with the same training data is
    only one explanation; compare pairs with an external model.

    Parameters
    ----------
    strata : sequence of str
        Covariates whose combinations are strata (numbers in tenths). Items of which one lacks a
        value are a stratum of their own.

    Raises
    ------
    DataError
        If a pair of models has fewer than ``k`` items in common, or a covariate is unknown.

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, section 4, detector 4 and Tables 4 and 5. Differs from the
    paper: each model is ranked by its own score, and a p-value replaces lift > 10.
    """
    for name in strata:
        if name not in cohort.covariates:
            raise DataError(
                f"cohort {cohort.benchmark!r}: there is no covariate {name!r} (there are:"
                f" {', '.join(cohort.covariates) or 'none'})"
            )
    pairs = [
        _overlap(cohort, pair, k, seed, strata)
        for pair in itertools.combinations(range(len(cohort.models)), 2)
    ]
    holm = adjust_p_values([pair.p for pair in pairs], "holm")
    pairs = [replace(pair, p_holm=p) for pair, p in zip(pairs, holm, strict=True)]
    if not strata:
        return pairs
    within = adjust_p_values([p for pair in pairs if (p := pair.p_within) is not None], "holm")
    return [replace(pair, p_within_holm=p) for pair, p in zip(pairs, within, strict=True)]


def _overlap(
    cohort: Cohort, pair: tuple[int, int], k: int, seed: int, strata: Sequence[str]
) -> PairOverlap:
    names = (cohort.models[pair[0]], cohort.models[pair[1]])
    is_common = np.asarray(~np.isnan(cohort.scores[:, pair]).any(axis=1))
    n = int(is_common.sum())
    if n <= k:
        raise DataError(
            f"cohort {cohort.benchmark!r}: {names[0]!r} and {names[1]!r} have {n} items in common,"
            f" which is not more than k = {k}; take a smaller k"
        )
    (a, tied_a), (b, tied_b) = (
        top_k(
            cohort.scores[is_common, column],
            k,
            generator(seed, f"{cohort.benchmark}\x00{name}", "top-k"),
        )
        for column, name in zip(pair, names, strict=True)
    )
    n_expected = p_within = None
    if strata:
        columns = [strata_of(cohort.covariates[name][is_common]) for name in strata]
        stratum = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].ravel()
        n_expected, p_within = stratified_overlap(a, b, stratum.astype(np.int64))
    intersection = len(np.intersect1d(a, b))
    p = overlap_p(n, k, intersection)
    return PairOverlap(
        models=names,
        n_external=len(cohort.external.intersection(names)),
        n=n,
        n_missing=len(is_common) - n,
        k=k,
        n_tied=(tied_a, tied_b),
        intersection=intersection,
        p=p,
        p_holm=p,
        expected_within=n_expected,
        p_within=p_within,
    )
