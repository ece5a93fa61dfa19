"""Paired means: the same test as McNemar's on right and wrong, and both directions."""

from typing import Any

import numpy as np
import pytest

from flipbench.evaluate.statistics.paired import gap_difference, mcnemar_p, mean_comparison


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(("b", "c"), [(3, 1), (5, 0), (2, 6), (0, 0)])
def test_binary_means_reduce_to_the_exact_mcnemar_test(b: int, c: int) -> None:
    first = [1.0] * b + [0.0] * c + [1.0] * 4
    second = [0.0] * b + [1.0] * c + [1.0] * 4
    falls = mean_comparison(first, second, rng(), rises=False)
    rises = mean_comparison(first, second, rng(), rises=True)
    assert falls.p_one_sided == pytest.approx(mcnemar_p(b, c, "drop"))
    assert rises.p_one_sided == pytest.approx(mcnemar_p(b, c, "rise"))
    assert (falls.n_fell, falls.n_rose) == (b, c)
    assert falls.gap == pytest.approx((c - b) / len(first))


def test_no_items_in_common_give_no_comparison() -> None:
    empty = mean_comparison([None], [0.5], rng(), rises=False)
    assert (empty.n, empty.n_dropped, empty.interval) == (0, 1, None) and np.isnan(empty.gap)


def test_a_rise_is_a_fall_with_the_signs_reversed() -> None:
    one, two = [0.2, 0.4, 0.1, 0.9, 0.5, 0.3], [0.7, 0.5, 0.9, 0.8, 0.9, 0.6]
    flat: Any = [0.5] * 6
    rises = gap_difference(one, two, flat, flat, rng(), rises=True)
    falls = gap_difference(two, one, flat, flat, rng())
    assert rises.p_below == pytest.approx(falls.p_below) and rises.p_below < 0.1
    assert rises.difference == pytest.approx(-falls.difference) and rises.difference > 0


def test_values_that_all_agree_do_not_give_an_interval_without_width() -> None:
    """Ten that all rise by a half: the mean is no better known than that of ten other items."""
    rise = mean_comparison([0.0] * 10, [0.5] * 10, rng(), rises=True).interval
    against = gap_difference([0.0] * 10, [0.5] * 10, [0.0] * 10, [0.0] * 10, rng()).interval
    images = mean_comparison(
        [0.0, 0.2] * 4, [0.2, 0.0] * 4, rng(), rises=True, clusters=list("aabbccdd")
    )
    assert rise is not None and rise.low < 0.4 and 0.5 < rise.high <= 1
    assert against is not None and against.low < 0.4 and against.high > 0.5
    assert images.interval is not None and images.interval.low < -0.05 < 0.05 < images.interval.high
