"""A model's gap against 0, one reference, and the mean of several."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flipbench.evaluate.statistics.gap_tests import drop_p, mean_difference, scaled_drop_p
from flipbench.evaluate.statistics.paired import mcnemar_p

ITEMS = [str(i) for i in range(120)]


def test_without_references_the_test_is_mcnemar_s() -> None:
    changes = np.array([-1.0] * 9 + [1.0] * 2 + [0.0] * 5 + [np.nan])
    assert drop_p(changes, ITEMS[:17]) == pytest.approx(mcnemar_p(9, 2, "drop"))


def test_one_reference_is_compared_exactly() -> None:
    model, clean = np.array([-1.0, -1, 0, 0, np.nan]), np.array([0.0, 1, 0, 1, 0])
    assert drop_p(model, ITEMS[:5], [clean]) == pytest.approx(1 / 8)  # -1, -2, 0, -1: all negative


def test_references_that_agree_have_no_spread() -> None:
    model = np.array([-1.0] * 20 + [0.0] * 80)
    clean = np.zeros(100)
    result = mean_difference(model, [clean, clean, clean], ITEMS[:100])
    assert result is not None
    assert (result.difference, result.spread, result.n) == (-0.2, 0.0, 100)
    padded = np.append(model, [1, -1])
    t = padded.mean() / np.sqrt(padded.var(ddof=1) / 102)
    assert result.p_below == pytest.approx(stats.t.cdf(t, 101), rel=0.02)
    assert result.interval.low < -0.2 < result.interval.high < 0


def test_references_that_differ_widen_the_interval_and_cost_degrees_of_freedom() -> None:
    model = np.array([-1.0] * 20 + [0.0] * 80)
    steady, falls = np.zeros(100), np.array([0.0] * 50 + [-1.0] * 40 + [0.0] * 10)
    same = mean_difference(model, [falls, falls], ITEMS[:100])
    apart = mean_difference(model, [steady, falls], ITEMS[:100])
    assert same is not None and apart is not None
    assert (same.spread, same.df, apart.df) == (0, 101, 1) and apart.spread > 0.25
    assert apart.interval.low < same.interval.low - 1


@pytest.mark.parametrize("n_references", [2, 5])
def test_the_level_holds_where_clean_models_differ(n_references: int) -> None:
    """Clean models whose true gaps have a standard deviation of 10 points."""
    rng = np.random.default_rng(0)

    def clean() -> np.ndarray:
        fall = np.clip(0.15 + 0.1 * rng.standard_normal(), 0, 0.5)
        return rng.choice([-1.0, 0.0, 1.0], 120, p=[fall, 0.95 - fall, 0.05])

    def rate(n: int) -> float:
        p_values = [drop_p(clean(), ITEMS, [clean() for _ in range(n)]) for _ in range(300)]
        return float(np.mean(np.array(p_values) <= 0.05))

    assert rate(n_references) < 0.08
    assert rate(1) > 0.1, "one reference ignores that clean models differ"


def test_clusters_are_the_units() -> None:
    model = np.repeat([-1.0, 0, 0, 0, 0, 0], 20)
    single = mean_difference(model, [np.zeros(120)] * 2, ITEMS)
    shared = mean_difference(model, [np.zeros(120)] * 2, [str(i // 20) for i in range(120)])
    assert single is not None and shared is not None
    assert single.p_below < 0.001 and shared.p_below > 0.1
    assert mean_difference(model, [np.zeros(120)] * 2, ["a"] * 60 + ["b"] * 60) is None


def answers(rng: np.random.Generator, seen: float, seen_after: float, n: int = 400) -> np.ndarray:
    """Return right answers of a model that sees a share of the items, and else guesses 1 of 4."""
    return (
        rng.random((2, n)) < [[seen + (1 - seen) / 4], [seen_after + (1 - seen_after) / 4]]
    ) * 1.0


def test_failed_edits_cost_strong_and_weak_models_the_same_proportion() -> None:
    """A tenth of the edits shows nothing: 8 points for one model, 3 for the other."""
    rng = np.random.default_rng(0)
    names, chances = [str(i) for i in range(400)], np.full(400, 0.25)
    plain, proportional, memory = [], [], []
    for _ in range(200):
        strong, weak = answers(rng, 0.9, 0.77), answers(rng, 0.3, 0.257)
        plain.append(drop_p(strong[1] - strong[0], names, [weak[1] - weak[0]]))
        proportional.append(scaled_drop_p(strong, [weak], names, chances)[0])
        memory.append(scaled_drop_p(answers(rng, 0.9, 0.3), [weak], names, chances))
    assert np.mean(np.array(plain) <= 0.05) > 0.3
    assert np.mean(np.array(proportional) <= 0.05) < 0.09
    assert np.mean(np.array(memory).max(axis=1) <= 0.05) > 0.7


def test_too_few_clusters_have_no_scales() -> None:
    ones = np.ones((2, 4))
    assert scaled_drop_p(ones, [ones], ["a", "a", "b", "b"], np.zeros(4)) == (1.0, 1.0)
