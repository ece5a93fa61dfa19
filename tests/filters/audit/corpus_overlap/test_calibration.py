"""Thresholds and p-values: vectors of the paper's audit, brute force, and simulated error rates."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from flipbench.core.errors import DataError
from flipbench.filters.audit.corpus_overlap.calibration import (
    binomial_p,
    compare_with_clean,
    conformal_p,
    describe,
    sample_rows,
    sampled_p,
    threshold,
)


def test_vectors() -> None:
    assert threshold(np.array([0, 0.01, 0.02, 0.03, 0.04]), 0.1) == pytest.approx(0.004)
    assert binomial_p(4, 96, 0.01) == pytest.approx(0.0161, abs=5e-5)
    assert binomial_p(4, 451, 0.01) == pytest.approx(0.661, abs=5e-4)
    assert binomial_p(22, 451, 0.01) == pytest.approx(2e-9, rel=0.3)
    assert binomial_p(0, 5, 0.01) == 1.0


def test_sample_is_seeded_distinct_and_never_larger_than_the_corpus() -> None:
    first = sample_rows(10_000, 500, 3)
    assert (first == sample_rows(10_000, 500, 3)).all()
    assert (first != sample_rows(10_000, 500, 4)).any()
    assert len(set(first.tolist())) == 500 and (np.diff(first) > 0).all()
    assert sample_rows(7, 500, 0).tolist() == list(range(7))
    with pytest.raises(DataError, match="a corpus of 1 pictures"):
        sample_rows(1, 5, 0)


def test_a_matched_sample_has_the_shares_of_the_benchmark() -> None:
    types = ["ct"] * 900 + ["x-ray"] * 90 + ["plot"] * 9_000
    like = ["ct"] * 10 + ["x-ray"] * 10 + ["mri"] * 0
    rows = sample_rows(len(types), 100, 0, types=types, like=like)
    assert Counter(types[row] for row in rows) == {"ct": 50, "x-ray": 50}
    rows = sample_rows(len(types), 5_000, 0, types=types, like=like)
    assert Counter(types[row] for row in rows) == {"ct": 90, "x-ray": 90}, "as many as there are"
    thirds = ["ct", "x-ray", "plot"]
    assert len(sample_rows(len(types), 100, 0, types=types, like=thirds)) == 100
    with pytest.raises(DataError, match=r"no picture of type 'mri', 'us'; name the types"):
        sample_rows(len(types), 100, 0, types=types, like=["us", "mri", "ct"])


def test_copies_in_the_corpus_pull_the_threshold_down() -> None:
    null = np.r_[np.zeros(30), np.linspace(0.1, 1, 970)]
    found = describe(null, 0.01)
    assert (found.n, found.n_exact, found.minimum, found.threshold) == (1_000, 30, 0, 0)
    assert found.threshold_without_exact is not None and found.threshold_without_exact > 0.1
    assert describe(np.zeros(4), 0.01).threshold_without_exact is None
    assert describe(null[:4], 0.01, ["b", "a", "a", "a"]).shares == {"a": 0.75, "b": 0.25}


def test_conformal_p_is_the_share_of_clean_pictures_that_are_as_near() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        clean, own = (rng.integers(0, 9, n) / 8 for n in (17, 11))
        expected = [(1 + sum(c <= d for c in clean)) / 18 for d in own]
        assert conformal_p(own, clean).tolist() == pytest.approx(expected)


def test_sampled_p_is_the_exact_distribution_of_exchangeable_pictures() -> None:
    """All orders of 3 benchmark and 4 sampled pictures; the threshold is the second of the 4."""
    counts: Counter[int] = Counter()
    for own in combinations(range(7), 3):
        sampled = [at for at in range(7) if at not in own]
        counts[sum(at < sampled[1] for at in own)] += 1
    for k in range(4):
        share = sum(n for found, n in counts.items() if found >= k) / 35
        assert sampled_p(k, 3, 1, 4) == pytest.approx(share)
    assert sampled_p(3, 3, 4, 4) == 1.0


def test_error_rate_holds_with_a_small_sample_where_the_binomial_fails() -> None:
    rng = np.random.default_rng(1)
    alpha, m, n, n_runs = 0.01, 200, 500, 400
    sampled = binomial = 0
    for _ in range(n_runs):
        null, own = rng.random(m), rng.random(n)
        tau = threshold(null, alpha)
        k = int((own <= tau).sum())
        sampled += sampled_p(k, n, int((null <= tau).sum()), m) <= 0.05
        binomial += binomial_p(k, n, alpha) <= 0.05
    assert stats.binomtest(sampled, n_runs, 0.05, "greater").pvalue > 0.01
    assert binomial / n_runs > 0.2


def test_error_rate_of_the_comparison_with_a_clean_benchmark() -> None:
    rng = np.random.default_rng(2)
    n_runs = 300
    tests = [compare_with_clean(rng.random(120), rng.random(150), 0.05) for _ in range(n_runs)]
    for rejected in (
        sum(t.p_value <= 0.05 for t, _ in tests),
        sum(t.mann_whitney_p <= 0.05 for t, _ in tests),
        sum((q_values <= 0.05).any() for _, q_values in tests),
    ):
        assert stats.binomtest(rejected, n_runs, 0.05, "greater").pvalue > 0.01


def test_a_leak_of_a_few_pictures_shows_in_the_tail_and_a_shift_in_the_ranks() -> None:
    rng = np.random.default_rng(3)
    clean, own = rng.uniform(0.1, 0.3, 999), rng.uniform(0.1, 0.3, 300)
    leaked = own.copy()
    leaked[:15] = 0.001
    found, q_values = compare_with_clean(leaked, clean, 0.01)
    assert found.p_value < 1e-4 < 0.02 < found.mann_whitney_p
    assert (q_values[:15] <= 0.05).all() and (q_values[15:] > 0.05).all()
    assert found.flagged.k >= 15 and (found.n, found.n_significant) == (999, 15)
    nearer = np.where(own > 0.12, 0.12 + 0.8 * (own - 0.12), own)  # the near end is as before
    shifted, _ = compare_with_clean(nearer, clean, 0.01)
    assert shifted.mann_whitney_p < 0.001 < 0.05 < shifted.p_value


def test_a_clean_benchmark_too_small_for_alpha_is_refused() -> None:
    assert compare_with_clean(np.zeros(3), np.ones(99), 0.01)[0].flagged.k == 3
    with pytest.raises(DataError, match=r"has 98 pictures; alpha = 0\.01 needs at least 99"):
        compare_with_clean(np.zeros(3), np.ones(98), 0.01)
