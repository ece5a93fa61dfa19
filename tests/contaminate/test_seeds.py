"""Means over seeds and items, against hand calculation and simulation."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.shapes.seeds import seed_mean


def test_the_interval_over_seeds_is_students() -> None:
    values = np.repeat([[0.1], [0.2], [0.6]], 50, axis=1)
    found = seed_mean(values, np.random.default_rng(0))
    assert found.mean == pytest.approx(0.3) and found.by_seed == pytest.approx((0.1, 0.2, 0.6))
    reach = 4.302653 * np.std([0.1, 0.2, 0.6], ddof=1) / 3**0.5  # t(0.975) with 2 degrees
    assert found.over_seeds is not None
    assert found.over_seeds.high - 0.3 == pytest.approx(reach, rel=1e-5)
    assert found.over_seeds.low == pytest.approx(0.3 - reach)


def test_each_interval_covers_what_it_is_about() -> None:
    """Items that differ widen one interval, seeds that differ the other, and only that one."""
    rng = np.random.default_rng(1)
    by_item = np.tile(rng.random(200) < 0.5, (5, 1)).astype(float)
    found = seed_mean(by_item, rng)
    assert found.over_items is not None
    assert found.over_seeds is None, "seeds that agree do not show how other seeds would vary"
    assert found.over_items.high - found.over_items.low == pytest.approx(
        2 * 1.96 * (0.25 / 200) ** 0.5, rel=0.1
    )
    turned = seed_mean(by_item.T, rng)
    assert turned.over_items is None and turned.over_seeds is not None


def test_few_seeds_or_items_have_no_interval() -> None:
    rng = np.random.default_rng(0)
    one_seed = seed_mean([[0, 1, 1]], rng)
    assert one_seed.over_seeds is None and one_seed.over_items is not None
    one_item = seed_mean([[1], [0]], rng)
    assert one_item.over_items is None and one_item.over_seeds is not None
    nothing = seed_mean(np.zeros((3, 0)), rng)
    assert nothing.mean is None and nothing.by_seed == ()
    with pytest.raises(ValueError, match=r"shape \(seeds, items\), not \(3,\)"):
        seed_mean([1, 0, 1], rng)
