"""The overlap of highest-scored items: published vectors, brute force, ties, strata."""

import itertools
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipbench.core.errors import DataError
from flipbench.evaluate.cohort.cohort import Cohort
from flipbench.evaluate.cohort.top_k import (
    chance_overlap,
    overlap_p,
    pair_overlaps,
    stratified_overlap,
    top_k,
)
from tests.evaluate.cohort.conftest import rows_of


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def cohort_of(scores: object, external: tuple[str, ...] = (), **covariates: object) -> Cohort:
    matrix = np.array(scores, dtype=float)
    items, models = [str(i) for i in range(len(matrix))], [f"m{j}" for j in range(matrix.shape[1])]
    given = {name: np.array(values) for name, values in covariates.items()}
    return Cohort("b", items, models, frozenset(external), matrix, given)


@pytest.mark.parametrize(
    ("n", "k", "intersection", "chance", "lift", "jaccard", "p"),
    [
        (6_719, 25, 11, 0.09302, 118.25, 0.2821, 6.2e-22),
        (6_719, 25, 4, 0.09302, 43.00, 0.0870, 1.8e-6),
        (1_061, 25, 25, 0.58907, 42.44, 1.0, 4.7e-51),
        (1_061, 25, 7, 0.58907, 11.88, 0.1628, 6.0e-7),
        (451, 25, 14, 1.38581, 10.10, 0.3889, 1.1e-13),
        (451, 25, 4, 1.38581, 2.89, 0.0870, 0.042),
        (451, 25, 21, 1.38581, 15.15, 0.7241, 2.3e-28),
        (1_000, 50, 10, 2.5, 4.0, 0.1111, 8.8e-5),
    ],
)
def test_the_published_overlaps(
    n: int, k: int, intersection: int, chance: float, lift: float, jaccard: float, p: float
) -> None:
    scores = np.zeros((n, 2)) - np.arange(n)[:, None] / n
    scores[:k, 0] += 2
    scores[k - intersection : 2 * k - intersection, 1] += 2
    (pair,) = rows_of(pair_overlaps(cohort_of(scores), k=k))
    assert (pair.intersection, pair.union) == (intersection, 2 * k - intersection)
    assert pair.chance == chance_overlap(n, k) == pytest.approx(chance, abs=5e-6)
    assert pair.lift == pytest.approx(lift, abs=0.005)
    assert pair.jaccard == pytest.approx(jaccard, abs=5e-5)
    assert pair.p == overlap_p(n, k, intersection) == pytest.approx(p, rel=0.05)


@given(st.integers(2, 9), st.data())
def test_the_hypergeometric_p_against_counting(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    observed = data.draw(st.integers(0, k))
    ways = sum(
        len(set(chosen) & set(range(k))) >= observed
        for chosen in itertools.combinations(range(n), k)
    )
    assert overlap_p(n, k, observed) == pytest.approx(ways / comb(n, k))


@given(st.lists(st.integers(0, 2), min_size=6, max_size=8), st.integers(2, 4), st.data())
def test_the_stratified_p_against_counting(stratum: list[int], k: int, data: st.DataObject) -> None:
    items = range(len(stratum))
    chosen = st.sets(st.sampled_from(items), min_size=k, max_size=k)
    first, second = data.draw(chosen), data.draw(chosen)
    profile = sorted(stratum[i] for i in second)
    same = [
        set(other)
        for other in itertools.combinations(items, k)
        if sorted(stratum[i] for i in other) == profile
    ]
    overlaps = [len(first & other) for other in same]
    expected, p = stratified_overlap(
        np.array(sorted(first)), np.array(sorted(second)), np.array(stratum)
    )
    assert expected == pytest.approx(np.mean(overlaps))
    assert p == pytest.approx(np.mean([x >= len(first & second) for x in overlaps]))


@given(st.lists(st.integers(0, 4), min_size=3, max_size=12), st.data())
def test_the_top_k_against_sorting(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    chosen, n_tied = top_k(np.array(values, dtype=float), k, rng())
    ordered = sorted(values, reverse=True)
    assert sorted((values[i] for i in chosen), reverse=True) == ordered[:k]
    is_tied = k < len(values) and ordered[k] == ordered[k - 1]
    assert n_tied == (values.count(ordered[k - 1]) if is_tied else 0)


def test_ties_are_broken_at_random_and_counted() -> None:
    scores = np.zeros((200, 2))
    scores[0] = -1
    (pair,) = rows_of(pair_overlaps(cohort_of(scores), k=20))
    assert pair.n_tied == (199, 199)
    assert pair.intersection < 10  # the file's first 20 would be the same for both
    assert rows_of(pair_overlaps(cohort_of(scores), k=20)) == [pair]
    drawn = [pair_overlaps(cohort_of(scores), k=20, seed=s) for s in range(9)]
    assert len({frame["intersection"][0] for frame in drawn}) > 1


def test_strata_explain_an_overlap_of_easy_items() -> None:
    """Both models find the 30 short answers familiar, in an order of their own."""
    scores = rng().normal(size=(300, 3))
    kind = np.array(["short"] * 30 + ["long"] * 270)
    scores[:30] += 9
    cohort = cohort_of(scores, ("m2",), kind=kind)
    for pair in rows_of(pair_overlaps(cohort, strata=("kind",))):
        assert pair.p_holm < 1e-10
        assert pair.expected_within == pytest.approx(25 * 25 / 30)
        assert pair.p_within > 0.01
        assert pair.p_within_holm >= pair.p_within
    assert pair_overlaps(cohort)["n_external"].tolist() == [0, 1, 1]


def test_holm_is_over_the_pairs() -> None:
    pairs = rows_of(pair_overlaps(cohort_of(rng().normal(size=(100, 4))), k=10))
    smallest = min(pairs, key=lambda pair: pair.p)
    assert len(pairs) == 6
    assert smallest.p_holm == pytest.approx(min(1, 6 * smallest.p))


def test_items_that_one_of_a_pair_lacks_are_counted() -> None:
    scores = rng().normal(size=(60, 3))
    scores[:8, 1] = np.nan
    pairs = rows_of(pair_overlaps(cohort_of(scores)))
    sizes = {pair.models: (pair.n, pair.n_missing) for pair in pairs}
    assert sizes == {("m0", "m1"): (52, 8), ("m0", "m2"): (60, 0), ("m1", "m2"): (52, 8)}


def test_too_few_items_and_unknown_covariates_are_refused() -> None:
    cohort = cohort_of(rng().normal(size=(25, 2)), kind=["x"] * 25)
    with pytest.raises(DataError, match="25 items in common, which is not more than k = 25"):
        pair_overlaps(cohort)
    with pytest.raises(DataError, match=r"no covariate 'length' \(there are: kind\)"):
        pair_overlaps(cohort, k=5, strata=("length",))
