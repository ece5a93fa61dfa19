"""Worked examples of the four quadrants, and what holds for any counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flipbench.evaluate.statistics.quadrants import (
    QUADRANTS,
    QuadrantCounts,
    distribution,
    entropy,
    kl_divergence,
    quadrant_of,
)


def test_no_items_have_no_fractions() -> None:
    counts = QuadrantCounts(0, 0, 0, 0)
    assert {counts.flip_rate, counts.dangerous_fraction, counts.expected} == {None}


@given(*[st.integers(1, 50)] * 4)
def test_fractions_of_any_counts(ideal: int, fragile: int, dangerous: int, worst: int) -> None:
    counts = QuadrantCounts(ideal, fragile, dangerous, worst)
    assert counts.bound is not None and counts.dangerous_fraction is not None
    assert counts.flip_rate == pytest.approx(1 - counts.bound)
    assert counts.dangerous_fraction <= counts.bound
    table = [[counts.dangerous, counts.worst], [counts.ideal, counts.fragile]]
    by_chance = stats.contingency.expected_freq(np.array(table))[0, 0]
    assert counts.expected == pytest.approx(by_chance / counts.n)
    assert QuadrantCounts.of(dict(zip(QUADRANTS, vars(counts).values(), strict=True))) == counts


def test_an_item_is_in_exactly_one_quadrant() -> None:
    both = (True, False)
    assert {quadrant_of(c, r) for c in both for r in both} == set(QUADRANTS)


def test_worked_divergences_and_entropy() -> None:
    p, q = [0.82, 0.18], [0.41, 0.59]
    assert float(kl_divergence(p, q)) == pytest.approx(0.35469, abs=1e-5)
    assert float(kl_divergence(q, p)) == pytest.approx(0.41624, abs=1e-5)
    p, q = [0.07, 0.93], [0.18, 0.82]
    assert float(kl_divergence(p, q)) == pytest.approx(0.05096, abs=1e-5)
    assert float(kl_divergence(q, p)) == pytest.approx(0.06678, abs=1e-5)
    assert float(entropy([0.5, 0.5])) == pytest.approx(0.6931, abs=1e-4)
    assert float(kl_divergence([1.0, 0.0], [0.0, 1.0])) == pytest.approx(27.631, abs=1e-3)
    assert float(entropy([1.0, 0.0])) == 0
    rows = distribution(np.log([[2.0, 6.0], [1.0, 1.0]]) - 900)
    assert rows == pytest.approx(np.array([[0.25, 0.75], [0.5, 0.5]]))


def test_a_model_without_a_fault_is_dangerous_where_its_prior_is_right() -> None:
    gold = np.random.default_rng(0).random(4_000) < 0.19  # the text prior is always "no"
    quadrants = [quadrant_of(True, bool(answer)) for answer in gold]  # always right
    counts = QuadrantCounts.of(Counter(quadrants))
    assert counts.dangerous_fraction == (~gold).mean() == pytest.approx(0.81, abs=0.02)
    assert counts.dangerous_given_consistent == counts.dangerous_fraction
