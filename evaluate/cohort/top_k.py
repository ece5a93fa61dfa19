"""The same items among the highest-scored of two models: overlap, lift and exact tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from flipbench.core.errors import DataError
from flipbench.core.randomness import generator

from ..statistics.paired import adjust_p_values
from .cohort import Array, Cohort, strata_of

K = 25


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
    first_choice, second_choice : ndarray of int, shape (K,)
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
) -> pd.DataFrame:
    """Return the overlap of every pair of models, with Holm's correction over the pairs.

    Overlap above chance means that both models find the same items familiar. Short, common or
    formulaic answers are familiar to any model, so a pair of models with the same training data is
    only one explanation; compare pairs with an external model.

    Parameters
    ----------
    strata : sequence of str
        Covariates whose combinations are strata (numbers in tenths). Items of which one lacks a
        value are a stratum of their own.

    Returns
    -------
    DataFrame
        One row for each pair: ``models``; ``n_external``, how many of the two are external (their
        overlap shows what any models share); ``n`` items that both have a score for, and
        ``n_missing`` others; ``k``; ``n_tied``, by model, items tied at its K-th place, of which
        some were drawn by seed; ``intersection``, ``union``, ``jaccard``, ``chance`` (K²/n),
        ``lift``; ``p``, P(X >= intersection) for X ~ Hypergeometric(n, K, K), and ``p_holm``. With
        strata also ``expected_within``, ``p_within`` (for the sum of one hypergeometric count per
        stratum) and ``p_within_holm``.

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
    pairs = pd.DataFrame(
        _overlap(cohort, pair, k, seed, strata)
        for pair in itertools.combinations(range(len(cohort.models)), 2)
    )
    pairs["p_holm"] = adjust_p_values(pairs["p"].tolist(), "holm")
    pairs["p_within_holm"] = None
    if strata:
        pairs["p_within_holm"] = adjust_p_values(pairs["p_within"].tolist(), "holm")
    return pairs


def _overlap(
    cohort: Cohort, pair: tuple[int, int], k: int, seed: int, strata: Sequence[str]
) -> dict[str, object]:
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
    union, chance = 2 * k - intersection, chance_overlap(n, k)
    return {
        "models": names,
        "n_external": len(cohort.external.intersection(names)),
        "ranking": "score",
        "n": n,
        "n_missing": len(is_common) - n,
        "k": k,
        "n_tied": (tied_a, tied_b),
        "intersection": intersection,
        "union": union,
        "jaccard": intersection / union,
        "chance": chance,
        "lift": intersection / chance,
        "p": overlap_p(n, k, intersection),
        "expected_within": n_expected,
        "p_within": p_within,
    }
