"""Rates over lineages: what the correlation within them costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from flipbench.core.rates import Rate
from flipbench.evaluate.statistics.design_effect import (
    clustered_rate,
    correlation_of_counts,
    kish_design_effect,
)

COUNTS = st.lists(
    st.integers(1, 9).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    min_size=1,
    max_size=6,
)


@given(COUNTS)
def test_the_interval_lies_between_pooled_and_one_case_per_cluster(
    counts: list[tuple[int, int]],
) -> None:
    found = clustered_rate(counts)
    k, n = sum(k for k, _ in counts), sum(n for _, n in counts)
    assert (found.k, found.n, found.n_clusters) == (k, n, len(counts))
    assert 1 <= found.design_effect <= sum(n * n for _, n in counts) / n + 1e-9
    assert found.pooled == Rate.wilson(k, n).interval
    assert found.interval is not None and found.pooled is not None
    assert found.interval.low <= found.pooled.low + 1e-9 <= k / n + 2e-9
    assert k / n - 1e-9 <= found.pooled.high <= found.interval.high + 1e-9


def test_unrelated_cases_have_one_interval() -> None:
    found = clustered_rate([(1, 1)] * 6 + [(0, 1)] * 3, exact=True)
    assert found.design_effect == 1 and found.interval == found.pooled
    assert found.interval == Rate.exact(6, 9).interval
    nothing = clustered_rate([])
    assert (nothing.interval, nothing.pooled, nothing.value) == (None, None, None)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [((4, 4), (4, 4)), ((4, 4), (0, 4)), ((2, 5), (2, 5))])
def test_the_correlation_is_the_posterior_mean(counts: tuple[tuple[int, int], ...]) -> None:
    """Against numerical integration of the beta-binomial likelihood."""

    def likelihood(rate: float, rho: float) -> float:
        a, b = rate * (1 - rho) / rho, (1 - rate) * (1 - rho) / rho
        prior = stats.beta.pdf(rate, 0.5, 0.5)
        return float(prior * np.prod([stats.betabinom.pmf(k, n, a, b) for k, n in counts]))

    def integral(power: int) -> float:
        grid = (np.arange(60) + 0.5) / 60
        angles = np.sin(np.pi / 2 * grid) ** 2
        jacobian = np.pi / 2 * np.sin(np.pi * grid)
        rows = [
            integrate.trapezoid(
                [likelihood(r, rho) * j for r, j in zip(angles, jacobian, strict=True)], grid
            )
            * rho**power
            for rho in grid
        ]
        return float(integrate.trapezoid(rows, grid))

    expected = integral(1) / integral(0)
    assert correlation_of_counts(counts) == pytest.approx(expected, abs=0.01)


def test_equal_lineages_say_the_cases_are_alike() -> None:
    alike = correlation_of_counts(((0, 9), (0, 9), (9, 9), (9, 9)))
    mixed = correlation_of_counts(((4, 9), (4, 9), (5, 9), (5, 9)))
    assert alike > 0.75 and mixed < 0.15
    assert kish_design_effect([9] * 4, alike) > 7


@pytest.mark.parametrize("correlation", [0.3, 0.9])
def test_intervals_cover_the_rate(correlation: float) -> None:
    generator, spread = np.random.default_rng(0), (1 - correlation) / correlation
    hits = {"pooled": 0, "clustered": 0}
    for rate in (0.2, 0.5, 0.8):
        for own in generator.beta(rate * spread, (1 - rate) * spread, (200, 4)):
            found = clustered_rate([(int(k), 6) for k in generator.binomial(6, own)])
            for name, between in (("pooled", found.pooled), ("clustered", found.interval)):
                assert between is not None
                hits[name] += between.low <= rate <= between.high
    assert hits["clustered"] >= 0.87 * 600 and hits["pooled"] < 0.87 * 600


def test_many_lineages_with_rare_alarms_are_not_taken_for_one() -> None:
    """Three alarms among 12 lineages of 12: a flat prior of the correlation gives 11 %."""
    found = clustered_rate([(1, 12)] * 3 + [(0, 12)] * 9, exact=True)
    assert found.interval is not None and found.pooled is not None
    assert found.pooled.high < 0.06 < found.interval.high < 0.09
