from __future__ import annotations

import math

import numpy as np
import pytest

from flipbench.evaluate.statistics import power as power_module
from flipbench.evaluate.statistics.paired import mcnemar_p
from flipbench.evaluate.statistics.power import (
    Design,
    detectable_drop,
    pairs_needed,
    power,
    with_memory,
)


def by_enumeration(design: Design, n: int) -> float:
    """Add up the probability of every outcome (b, c) that the test calls significant."""
    worse = (design.discordance - design.gap) / 2
    better = design.discordance - worse
    same = 1 - design.discordance
    total = 0.0
    for b in range(n + 1):
        for c in range(n + 1 - b):
            if mcnemar_p(b, c, "drop") <= design.alpha:
                ways = math.comb(n, b) * math.comb(n - b, c)
                total += ways * worse**b * better**c * same ** (n - b - c)
    return total


@pytest.mark.parametrize("n", [1, 4, 5, 6, 12, 30])
@pytest.mark.parametrize(
    "design",
    [Design(-0.2, 0.3), Design(-0.05, 0.5, 0.01), Design(0.0, 0.4), Design(-1.0, 1.0)],
)
def test_power_equals_the_sum_over_all_outcomes(design: Design, n: int) -> None:
    assert power(design, n) == pytest.approx(by_enumeration(design, n), abs=1e-12)


def test_without_a_gap_the_power_is_at_most_the_level() -> None:
    assert 0 < power(Design(0.0, 0.2), 440) <= 0.05


@pytest.mark.parametrize("design", [Design(-0.2, 0.3), Design(-0.05, 0.2), Design(-0.5, 0.5)])
def test_the_pairs_needed_are_the_fewest_with_enough_power(design: Design) -> None:
    needed = pairs_needed(design, 0.8)
    assert needed is not None
    assert power(design, needed - 1) < 0.8
    assert all(power(design, n) >= 0.8 for n in range(needed, needed + 30))


def test_the_critical_counts_are_worked_out_once_for_many_numbers_of_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    critical = power_module._critical

    def counted(m: power_module.Floats, alpha: float) -> power_module.Floats:
        sizes.append(len(m))
        return critical(m, alpha)

    monkeypatch.setattr(power_module, "_critical", counted)
    assert pairs_needed(Design(-0.05, 0.21)) == 552
    assert sizes == [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]


def test_no_sample_size_detects_a_zero_gap() -> None:
    assert pairs_needed(Design(0.0, 0.2)) is None
    assert pairs_needed(Design(0.1, 0.2)) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"gap": -0.3, "discordance": 0.2},
        {"gap": 0, "discordance": 0},
        {"gap": -0.1, "discordance": 0.2, "alpha": 1},
    ],
)
def test_an_impossible_design_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be in|needs at least"):
        Design(**wrong)


def test_the_detectable_drop_is_the_smallest_one() -> None:
    drop = detectable_drop(120, 0.2)
    assert drop is not None
    assert power(with_memory(-drop, 0.2, 0.05), 120) >= 0.8
    assert power(with_memory(-drop + 0.001, 0.2, 0.05), 120) < 0.8
    assert detectable_drop(4, 0.2) is None


def test_a_memory_of_the_detectable_drop_is_detected_four_times_in_five() -> None:
    """Its falls come on top of the changes that a clean model makes by chance."""
    rng = np.random.default_rng(0)
    drop = detectable_drop(120, 0.2)
    assert drop is not None
    draws = rng.multinomial(120, [0.1 + drop, 0.1, 0.8 - drop], size=2_000)
    detected = np.mean([mcnemar_p(int(b), int(c), "drop") <= 0.05 for b, c, _ in draws])
    assert 0.77 < detected < 0.86
