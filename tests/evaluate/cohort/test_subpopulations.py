"""Subpopulations against the paper's figures and against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flipbench.core.errors import DataError
from flipbench.evaluate.cohort.subpopulations import models_within_strata, subpopulations
from tests.evaluate.cohort.conftest import rows_of


def test_the_papers_answer_types() -> None:
    """METHODS: OPEN 0/645, CLOSED 256/416 = 61.54 %, all 256/1061 = 24.13 %."""
    tail = [[0]] * 645 + [[1]] * 256 + [[0]] * 160
    closed, open_ = subpopulations(tail, ["m"], {"answer": ["OPEN"] * 645 + ["CLOSED"] * 416})
    assert closed.name == "CLOSED" and closed.n + open_.n == 1061
    assert round(100 * (closed.shares[0].rate.value or 0), 2) == 61.54
    assert open_.shares[0].rate.k == 0
    assert round(100 * (closed.shares[0].rate.k + open_.shares[0].rate.k) / 1061, 2) == 24.13
    assert closed.shares[0].p_value < 1e-50 and open_.shares[0].q_value is not None


def test_strata_of_a_factor_sum_to_all_items_and_missing_values_are_one() -> None:
    draw = np.random.default_rng(1)
    flags = draw.random((200, 3)) < 0.3
    modality = draw.choice(["", "CT", "MRI"], size=200).tolist()
    strata = subpopulations(flags, ["a", "b", "c"], {"modality": modality})
    assert [s.name for s in strata] == ["(none)", "CT", "MRI"]
    assert sum(s.n for s in strata) == 200
    for at in range(3):
        assert sum(s.shares[at].rate.k for s in strata) == flags[:, at].sum()
        rest = strata[0].shares[at].rest
        assert rest.n == 200 - strata[0].n


def test_small_strata_have_no_part_in_the_family() -> None:
    flags = np.zeros((100, 1), bool)
    flags[:50] = True
    factor = ["x"] * 10 + ["y"] * 90
    small, large = subpopulations(flags, ["m"], {"f": factor})
    assert small.small and small.shares[0].q_value is None
    assert not large.small and large.shares[0].q_value == large.shares[0].p_value


def test_score_test_of_independent_items_agrees_with_chi_square() -> None:
    draw = np.random.default_rng(2)
    inside = draw.random(600) < 0.4
    flags = draw.random(600) < np.where(inside, 0.25, 0.2)
    table = [[(flags & side).sum(), (~flags & side).sum()] for side in (inside, ~inside)]
    chi2 = stats.chi2_contingency(table, correction=False).pvalue
    strata = subpopulations(flags[:, None], ["m"], {"f": np.where(inside, "in", "out").tolist()})
    assert stats.norm.isf(strata[0].shares[0].p_value / 2) == pytest.approx(
        stats.norm.isf(chi2 / 2), rel=0.05
    )


def test_shared_pictures_widen_intervals_and_hold_the_level() -> None:
    """Alike items of one picture count for little: nominal .05, 200 draws without any effect."""
    rejected = []
    pictures = [str(i) for i in np.repeat(np.arange(30), 10)]
    for seed in range(200):
        draw = np.random.default_rng(seed)
        flags = np.repeat(draw.random(30) < 0.4, 10)
        inside = np.repeat(draw.random(30) < 0.5, 10)
        factor = {"f": np.where(inside, "in", "out").tolist()}
        clustered = subpopulations(flags[:, None], ["m"], factor, pictures=pictures)
        plain = subpopulations(flags[:, None], ["m"], factor)
        rejected.append((clustered[0].shares[0].p_value, plain[0].shares[0].p_value))
    by_picture, by_item = (np.array(rejected) < 0.05).mean(axis=0)
    assert by_picture <= 0.09 and by_item >= 0.3
    wide, narrow = clustered[0].shares[0].rate.interval, plain[0].shares[0].rate.interval
    assert wide is not None and narrow is not None
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_equal_counts_are_no_difference_in_spite_of_the_continuity_correction() -> None:
    flags = np.zeros((24, 2), bool)
    flags[0, 0] = flags[12, 1] = True
    [result] = rows_of(models_within_strata(flags, ["a", "b"], {"f": ["x"] * 12 + ["y"] * 12}))
    assert result.odds_ratio == 1 and result.p_value == 1


def test_cochran_mantel_haenszel_sees_a_difference_that_pooling_hides() -> None:
    """Two models with equal totals; within strata the second flags far more."""
    draw = np.random.default_rng(4)
    factor = ["A"] * 300 + ["B"] * 300
    base = np.where(np.array(factor) == "A", 0.2, 0.5)
    flags = np.stack([draw.random(600) < base, draw.random(600) < base + 0.25], axis=1)
    [result] = rows_of(models_within_strata(flags, ["one", "two"], {"f": factor}))
    assert result.odds_ratio < 0.6 and result.p_value < 1e-6
    [same] = rows_of(models_within_strata(flags[:, [0, 0]], ["one", "again"], {"f": factor}))
    assert same.odds_ratio == pytest.approx(1.0) and same.p_value > 0.9


def test_nothing_flagged_tests_nothing() -> None:
    flags = np.zeros((60, 2), bool)
    [stratum] = subpopulations(flags, ["a", "b"], {"f": ["x"] * 60})
    assert stratum.spread == 0 and stratum.shares[0].p_value == 1.0
    [pair] = rows_of(models_within_strata(flags, ["a", "b"], {"f": ["x"] * 60}))
    assert np.isnan(pair.odds_ratio) and pair.p_value == 1.0


def test_lengths_are_checked() -> None:
    with pytest.raises(DataError, match="factor f: 2 values for 3 items"):
        subpopulations(np.zeros((3, 1)), ["m"], {"f": ["x", "y"]})
    with pytest.raises(DataError, match="2 models need 2 columns"):
        subpopulations(np.zeros((3, 1)), ["m", "o"], {})
