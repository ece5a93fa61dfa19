"""The test of a trend along the file: vectors, brute force, and calibration."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from flipbench.evaluate.statistics.order_trend import cluster_values, order_trend_test


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("values", "rho", "p"), [((-1, -2, -3, -4), -1, 1 / 24), ((-2, -1, -4, -3), -0.6, 5 / 24)]
)
def test_trend_worked_examples_are_exact(values: tuple[int, ...], rho: float, p: float) -> None:
    found = order_trend_test(values, rng())
    assert (found.rho, found.p_falls) == pytest.approx((rho, p), abs=1e-12)
    assert (found.n_permutations, found.floor) == (24, 1 / 24)


@given(st.lists(st.integers(-3, 3), min_size=4, max_size=6), st.integers(0, 63))
def test_the_trend_against_brute_force(values: list[int], cut: int) -> None:
    n = len(values)
    strata = ["ab"[cut >> i & 1] for i in range(n)]
    found = order_trend_test(values, rng(), strata=strata)
    doubled = [int(2 * rank) for rank in stats.rankdata(values)]

    def trend(order: tuple[int, ...]) -> int:
        return sum(i * doubled[j] for i, j in enumerate(order))

    def lag(order: tuple[int, ...]) -> Fraction:
        centred = [Fraction(doubled[j]) - (n + 1) for j in order]
        return sum((a * b for a, b in itertools.pairwise(centred)), Fraction(0))

    allowed = [
        order
        for order in itertools.permutations(range(n))
        if all(strata[i] == strata[j] for i, j in enumerate(order))
    ]
    own = tuple(range(n))
    middle = Fraction(sum(doubled) * (n - 1), 2)
    expected = [
        np.mean([trend(order) <= trend(own) for order in allowed]),
        np.mean([abs(trend(order) - middle) >= abs(trend(own) - middle) for order in allowed]),
        np.mean([lag(order) >= lag(own) for order in allowed]),
    ]
    assert [found.p_falls, found.p_two_sided, found.p_lag1] == pytest.approx(expected, abs=1e-12)
    if len(set(values)) > 1:
        assert found.rho == pytest.approx(stats.spearmanr(range(n), values).statistic)
    else:
        assert (found.rho, found.p_falls) == (0.0, 1.0)


def test_a_large_trend_agrees_with_the_t_approximation() -> None:
    draw = rng(1)
    values = draw.normal(size=1_061) - 0.0003 * np.arange(1_061)
    found = order_trend_test(values, draw, n_permutations=4_999)
    expected = stats.spearmanr(range(1_061), values, alternative="less")
    assert found.rho == pytest.approx(expected.statistic)
    assert found.p_falls == pytest.approx(expected.pvalue, abs=0.01)


def test_a_weak_trend_of_1061_items_has_the_published_p() -> None:
    """Spearman's rho -.0845 at n = 1,061: t = -2.760, p = .00294."""
    noise, position = rng(1).normal(size=1_061), np.arange(1_061)

    def distance(slope: float) -> float:
        return float(stats.spearmanr(position, noise - slope * position).statistic) + 0.0845

    slope = optimize.bisect(distance, 0, 0.001)
    found = order_trend_test(noise - slope * position, rng(), n_permutations=10_000)
    assert found.rho == pytest.approx(-0.0845, abs=2e-5)
    assert found.p_falls == pytest.approx(0.00294, abs=0.0015)  # 3 standard errors
    assert (found.exact, found.floor) == (False, pytest.approx(9.999e-5, abs=1e-9))


@pytest.mark.slow
def test_trend_p_values_are_uniform_under_the_null() -> None:
    draw = rng(2)
    strata = ["a"] * 12 + ["b"] * 8
    p_values = [
        order_trend_test(draw.normal(size=20), draw, strata=strata, n_permutations=199).p_falls
        for _ in range(300)
    ]
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_strata_remove_differences_between_groups() -> None:
    strata = ["easy"] * 20 + ["hard"] * 20
    values = rng(4).normal(size=40) - 9 * np.repeat([0, 1], 20)
    assert order_trend_test(values, rng(), n_permutations=999).p_falls == 0.001
    assert order_trend_test(values, rng(), strata=strata, n_permutations=999).p_falls > 0.05


def test_questions_about_one_image_are_one_case() -> None:
    """19 images with up to 19 questions, likelier about some than others, in no order."""
    draw, alarms = rng(5), {"items": 0, "images": 0}
    for _ in range(150):
        sizes = draw.integers(1, 20, size=19)
        images = np.repeat([f"image {i}" for i in range(19)], sizes).tolist()
        strata = draw.choice(["open", "closed"], size=len(images)).tolist()
        values = np.repeat(draw.normal(size=19), sizes) + 1.5 * draw.normal(size=len(images))
        by_image = cluster_values(values, images, strata=strata)
        for of, tested, within in (("items", values, strata), ("images", by_image, None)):
            trend = order_trend_test(tested, draw, strata=within, n_permutations=99)
            alarms[of] += trend.p_falls <= 0.05
    assert alarms["items"] > 0.15 * 150  # at level .05
    assert alarms["images"] < 0.10 * 150


def test_clusters_keep_a_trend_but_none_that_their_strata_explain() -> None:
    images, strata = list("aabbccddee"), ["easy"] * 4 + ["hard"] * 6
    falling = cluster_values(-np.arange(10.0), images)
    assert falling.tolist() == sorted(falling, reverse=True)
    by_stratum = cluster_values([1.0] * 4 + [0.0] * 6, images, strata=strata)
    assert by_stratum.tolist() == [0.0] * 5


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [1.0, 2.0, math.nan, 4.0]])
def test_too_few_or_invalid_values_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least 4 finite"):
        order_trend_test(values, rng())
