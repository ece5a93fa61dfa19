"""Overlap inflation against worked examples, brute force, and its invariances."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipbench.core.errors import DataError
from flipbench.evaluate.cohort.overlap_inflation import (
    accuracy_inflation,
    overlap_inflation,
)
from tests.evaluate.cohort.conftest import rows_of


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_worked_example() -> None:
    """METHODS: flagged (2, 4), unflagged (1, 1, 3): 1.3333, p = .30 over all ten splits."""
    [result] = rows_of(overlap_inflation([2, 4, 1, 1, 3], [1, 1, 0, 0, 0], list("abcde"), rng()))
    assert result.difference == pytest.approx(4 / 3)
    assert result.p_value == pytest.approx(0.3)
    assert result.p_items == pytest.approx(0.3)


@given(
    st.lists(st.integers(-5, 5), min_size=4, max_size=8),
    st.integers(1, 3),
    st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None)
def test_p_equals_enumeration_over_pictures(values: list[int], n_flagged: int, seed: int) -> None:
    """Each picture has one to three items; all assignments of flags to pictures are counted."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1, 4, size=len(values))
    picture = np.repeat(np.arange(len(values)), sizes)
    scores = np.repeat(values, sizes) + draw.integers(0, 3, size=len(picture))
    flags = picture < n_flagged

    def difference(chosen: set[int]) -> float:
        side = np.isin(picture, list(chosen))
        return float(scores[side].mean() - scores[~side].mean())

    observed = abs(difference(set(range(n_flagged))))
    null = [abs(difference(set(c))) for c in itertools.combinations(range(len(values)), n_flagged)]
    expected = np.mean([value >= observed - 1e-9 for value in null])
    names = [str(p) for p in picture]
    [result] = rows_of(overlap_inflation(scores, flags, names, rng(), n_bootstrap=10))
    assert result.p_value == pytest.approx(expected)
    order = draw.permutation(len(picture))
    [shuffled] = rows_of(
        overlap_inflation(
            scores[order], flags[order], [names[i] for i in order], rng(), n_bootstrap=10
        )
    )
    assert shuffled.p_value == pytest.approx(expected)


def test_shared_pictures_are_no_evidence() -> None:
    """Without inflation, 20 alike items a picture: items accuse far too often, pictures do not."""
    flags = np.repeat(np.arange(19) < 4, 20)
    names = [str(i) for i in np.repeat(np.arange(19), 20)]
    p_values = []
    for seed in range(40):
        draw = np.random.default_rng(seed)
        scores = np.repeat(draw.normal(size=19), 20) + draw.normal(size=380)
        [result] = rows_of(
            overlap_inflation(scores, flags, names, draw, n_permutations=199, n_bootstrap=10)
        )
        p_values.append((result.p_value, result.p_items))
    assert result.n_pictures_flagged == 4 and result.n_pictures_unflagged == 15
    by_picture, by_item = (np.array(p_values) < 0.05).mean(axis=0)
    assert by_picture <= 0.15 and by_item >= 0.4


def test_strata_and_missing_scores_are_counted() -> None:
    scores = [1.0, np.nan, 2.0, 3.0, 4.0, 5.0]
    results = rows_of(
        overlap_inflation(
            scores,
            [1, 1, 0, 0, 1, 0],
            list("aabbcd"),
            rng(),
            strata=["x", "x", "x", "y", "y", "y"],
        )
    )
    assert [r.stratum for r in results] == ["all items", "x", "y"]
    assert [r.n_missing for r in results] == [1, 1, 0]
    assert results[0].n_flagged + results[0].n_unflagged == 5
    assert results[1].interval is None  # a bootstrap needs two pictures on each side


def test_a_picture_flagged_for_some_of_its_items_is_an_error() -> None:
    with pytest.raises(DataError, match="picture a: 1 of its 2 items"):
        overlap_inflation([1, 2, 3], [1, 0, 0], list("aab"), rng())
    with pytest.raises(DataError, match="scores of 3 items"):
        overlap_inflation([1, 2, 3], [1, 0], list("ab"), rng())


def test_accuracy_form_and_churn() -> None:
    """METHODS: .7 over all ten items, .5 over six clean ones: +20 points."""
    flags = np.array([True] * 4 + [False] * 6)
    first = np.array([1.0] * 4 + [1, 1, 1, 0, 0, 0])  # .7, clean .5
    second = np.array([0.0, 0, 1, 0] + [1, 1, 1, 1, 0, 0])  # .5, clean .667
    frame, churn = accuracy_inflation(
        np.stack([first, second], axis=1), flags, list("abcdefghij"), ["m", "o"], rng()
    )
    results = rows_of(frame)
    assert results[0].inflation == pytest.approx(0.2)
    assert (results[0].k, results[0].n) == (7, 10)
    assert (results[0].k_clean, results[0].n_clean) == (3, 6)
    assert results[0].interval is not None
    assert results[0].interval.low <= 0.2 <= results[0].interval.high
    assert results[1].inflation == pytest.approx(0.5 - 4 / 6)
    assert churn.tau == pytest.approx(-1.0)
    assert churn.swapped == [("m", "o")]


def test_all_items_flagged_has_no_clean_accuracy() -> None:
    frame, churn = accuracy_inflation(np.ones((3, 1)), [True] * 3, list("abc"), ["m"], rng())
    (one,) = rows_of(frame)
    assert one.n_clean == 0 and np.isnan(one.inflation) and one.interval is None
    assert churn.tau is None
