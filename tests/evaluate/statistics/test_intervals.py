"""Intervals of paired proportions against published software, brute force and simulation."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize_scalar

from flipbench.evaluate.statistics.intervals import (
    clustered_interval,
    difference_interval,
    tango_interval,
)
from flipbench.evaluate.statistics.paired import mcnemar_p, paired_comparison
from flipbench.evaluate.statistics.resampling import exact_label_swap_p

Z = stats.norm.ppf(0.975)


@pytest.mark.parametrize(
    ("b", "c", "n", "level", "low", "high"),
    [(25, 28, 618, 0.90, -0.0148, 0.0247), (48, 41, 549, 0.90, -0.0414, 0.0157)],
)
def test_tango_agrees_with_the_r_package_propcis(
    b: int, c: int, n: int, level: float, low: float, high: float
) -> None:
    found = tango_interval(b, c, n, level)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def score_by_brute_force(b: int, c: int, n: int, difference: float) -> float:
    """Return the score statistic with the nuisance parameter found by maximum likelihood."""

    def minus_log_likelihood(fell: float) -> float:
        rose = fell + difference
        same = 1 - fell - rose
        cells = [(b, fell), (c, rose), (n - b - c, same)]
        return -sum(k * math.log(p) if p > 0 else (math.inf if k else 0) for k, p in cells)

    bounds = (max(0.0, -difference) + 1e-12, (1 - difference) / 2 - 1e-12)
    fell = minimize_scalar(
        minus_log_likelihood, bounds=bounds, method="bounded", options={"xatol": 1e-12}
    ).x
    return float((c - b - n * difference) / math.sqrt(n * (2 * fell + difference - difference**2)))


@pytest.mark.parametrize(("b", "c", "n"), [(9, 1, 20), (3, 1, 10), (40, 20, 160), (2, 7, 50)])
def test_both_ends_are_where_the_score_test_begins_to_reject(b: int, c: int, n: int) -> None:
    found = tango_interval(b, c, n)
    assert score_by_brute_force(b, c, n, found.low) == pytest.approx(Z, abs=1e-3)
    assert score_by_brute_force(b, c, n, found.high) == pytest.approx(-Z, abs=1e-3)


@pytest.mark.parametrize(("b", "c", "n"), [(5, 0, 5), (0, 0, 100), (0, 5, 5), (1, 0, 2), (7, 3, 9)])
def test_the_interval_has_a_width_and_mirrors(b: int, c: int, n: int) -> None:
    if b + c > n:
        n = b + c
    found, mirrored = tango_interval(b, c, n), tango_interval(c, b, n)
    assert -1 <= found.low < found.high <= 1
    assert found.low <= (c - b) / n <= found.high
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low))


def test_five_pairs_that_all_fall_are_not_certainty() -> None:
    found = paired_comparison([True] * 5, [False] * 5).interval
    assert found is not None
    assert found.low == -1 and found.high > -0.2


def test_clusters_of_one_item_are_items() -> None:
    differences = [-1.0] * 9 + [1.0] * 2 + [0.0] * 29
    alone = tango_interval(9, 2, 40)
    one_each = clustered_interval(differences, [str(i) for i in range(40)])
    assert one_each is not None
    assert one_each.low == pytest.approx(alone.low, abs=0.01)
    assert one_each.high == pytest.approx(alone.high, abs=0.01)


def test_ten_identical_clusters_count_as_ten_pairs() -> None:
    found = clustered_interval([-1.0] * 200, [str(i // 20) for i in range(200)])
    assert found is not None
    assert found.high > tango_interval(10, 0, 10).high - 1e-9


def test_one_cluster_has_no_interval() -> None:
    assert clustered_interval([-1.0, 0.0], ["x", "x"]) is None
    assert difference_interval([-1.0, 0.0], ["x", "x"]) is None


def simulate(n_clusters: int, size: int, seed: int) -> tuple[np.ndarray, list[str]]:
    """Return paired differences without a true gap, both images of a cluster easy or hard."""
    rng = np.random.default_rng(seed)
    items = 1 + rng.normal(size=(n_clusters, size))
    sides = [
        rng.random((n_clusters, size))
        < 1 / (1 + np.exp(-items - rng.normal(0, 1.2, (n_clusters, 1))))
        for _ in range(2)
    ]
    differences = sides[1].astype(int) - sides[0].astype(int)
    return differences.ravel(), [str(i) for i in range(n_clusters) for _ in range(size)]


@pytest.mark.slow
def test_shared_images_alarm_mcnemar_but_not_the_clustered_test() -> None:
    """19 images of 20 questions each, no gap: plain McNemar alarms far more often than 5 %."""
    plain = clustered = covered = 0
    for seed in range(200):
        differences, clusters = simulate(19, 20, seed)
        b, c = int((differences < 0).sum()), int((differences > 0).sum())
        outcome = paired_comparison(
            [d < 0 for d in differences], [d > 0 for d in differences], clusters=clusters
        )
        plain += mcnemar_p(b, c, "drop") <= 0.05
        clustered += outcome.p_drop <= 0.05
        assert outcome.interval is not None
        covered += outcome.interval.low <= 0 <= outcome.interval.high
    assert plain > 25 and clustered <= 20 and covered >= 180


@pytest.mark.parametrize("totals", [[-3, 1, -1], [2, -2, -1, -1], [0, -1], [0, 0]])
def test_label_swaps_of_clusters_against_enumeration(totals: list[int]) -> None:
    sums = [
        sum(sign * total for sign, total in zip(signs, totals, strict=True))
        for signs in product([1, -1], repeat=len(totals))
    ]
    expected = sum(s <= sum(totals) for s in sums) / len(sums)
    assert exact_label_swap_p(totals) == pytest.approx(expected)


def test_the_clustered_test_of_single_items_is_mcnemar_s() -> None:
    assert exact_label_swap_p([-1] * 9 + [1] * 2 + [0] * 5) == pytest.approx(
        mcnemar_p(9, 2, "drop")
    )
