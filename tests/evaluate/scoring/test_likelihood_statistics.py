"""The sharded tests of order and the membership scores: vectors, brute force, and calibration."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flipbench.evaluate.detectors.likelihood.codec import share_below
from flipbench.evaluate.detectors.likelihood.min_k import min_k, min_k_plus_plus
from flipbench.evaluate.detectors.likelihood.shared_likelihood import (
    shard_permutation_p,
    sharded_test,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_sharded_worked_example_with_both_ddofs() -> None:
    canonical, means = np.array([-100, -98, -101]), np.array([-103, -100, -102])
    found = sharded_test(canonical - means)
    assert (found.t, found.p_value) == pytest.approx((3.4641, 0.03709), abs=1e-4)
    assert (found.t_ddof0, found.p_ddof0) == pytest.approx((4.2426, 0.02566), abs=1e-4)
    assert found.interval.low < found.mean == 2 < found.interval.high


def test_fifty_shards_inflate_t_by_one_percent() -> None:
    found = sharded_test(rng().normal(size=50))
    assert found.t_ddof0 / found.t == pytest.approx(1.0102, abs=1e-4)


@pytest.mark.parametrize(("value", "p"), [(0.0, 1.0), (-2.0, 1.0), (2.0, 0.04)])
def test_equal_shards_have_no_t_statistic(value: float, p: float) -> None:
    assert sharded_test([value] * 5, floor=0.04).p_value == p


def test_one_shard_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 shards"):
        sharded_test([1.0])


@given(st.lists(st.lists(st.integers(-5, 5), min_size=2, max_size=4), min_size=1, max_size=4))
def test_shard_permutation_p_against_enumeration(shards: list[list[int]]) -> None:
    every = [sum(chosen) for chosen in itertools.product(*shards)]
    exact = sum(total >= sum(shard[0] for shard in shards) for total in every) / len(every)
    n = 4_000
    found = shard_permutation_p(shards, rng(), n)
    assert found == pytest.approx(exact, abs=5 * math.sqrt(0.25 / n) + 1 / n)
    assert found >= 1 / (n + 1)


@pytest.mark.slow
def test_shard_p_values_are_uniform_under_the_null() -> None:
    draw = rng(3)
    p_values, t_values = [], []
    for _ in range(300):
        shards = draw.normal(size=(8, 1)) + draw.normal(size=(8, 7))
        p_values.append(shard_permutation_p(list(shards), draw, 299))
        t_values.append(sharded_test(shards[:, 0] - shards[:, 1:].mean(1)).p_value)
    assert stats.kstest(p_values, "uniform").pvalue > 0.01
    assert stats.kstest(t_values, "uniform").pvalue > 0.01


def test_min_k_worked_examples() -> None:
    p = [0.7, 0.2, 0.1]
    log_p = [math.log(x) for x in p]
    mean = sum(x * math.log(x) for x in p)
    deviation = math.sqrt(sum(x * math.log(x) ** 2 for x in p) - mean**2)
    assert (mean, deviation) == pytest.approx((-0.80182, 0.70313), abs=1e-5)
    each = [min_k_plus_plus([x], [mean], [deviation]) for x in log_p]
    assert each == pytest.approx([0.6331, -1.1486, -2.1344], abs=1e-4)
    assert min_k_plus_plus(log_p, [mean] * 3, [deviation] * 3) == pytest.approx(-2.1344, abs=1e-4)
    assert min_k([-1, -5, -3, -0.5, -0.1, -0.2, -0.3]) == -4.0  # T = 7: two tokens, not one


@given(st.lists(st.floats(-20, 0), min_size=1, max_size=30), st.floats(0.01, 1))
def test_min_k_is_the_mean_of_the_lowest(values: list[float], fraction: float) -> None:
    n = max(1, math.ceil(round(fraction * len(values), 9)))
    assert min_k(values, fraction) == pytest.approx(sum(sorted(values)[:n]) / n)
    assert min_k(values, fraction) <= min_k(values, 1.0) + 1e-9


def test_a_certain_model_gives_finite_scores() -> None:
    assert math.isfinite(min_k_plus_plus([0.0, -1e-7], [0.0, 0.0], [0.0, 0.0]))
    with pytest.raises(ValueError, match="fraction"):
        min_k([], 0.2)


def test_codec_worked_example() -> None:
    assert share_below([-2.0, -1.5, -3.0], [-1.8, -1.9, -2.5]) == pytest.approx(1 / 3)
    assert share_below([-1.0], [-1.0]) == 0.0
