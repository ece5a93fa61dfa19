"""Golden numbers (golden/statistics.json) and properties against brute force."""

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flipbench.core.rates import wilson_interval
from flipbench.evaluate.statistics.intervals import tango_interval
from flipbench.evaluate.statistics.paired import (
    PairedOutcome,
    adjust_p_values,
    gap_difference,
    mcnemar_p,
    min_pairs,
    paired_comparison,
)
from flipbench.evaluate.statistics.resampling import (
    bootstrap_interval,
    label_swap_p,
    permutation_p,
)

GOLDEN = json.loads((Path(__file__).parent / "golden" / "statistics.json").read_text())
outcomes = st.lists(st.tuples(*2 * [st.sampled_from([True, False, None])]), min_size=1, max_size=30)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def check_paired(case: dict[str, Any]) -> None:
    both, b, c = case["n"] - case["b"] - case["c"], case["b"], case["c"]
    first = [True] * (both + b) + [False] * c
    second = [True] * both + [False] * b + [True] * c
    found = paired_comparison(first, second)
    assert (found.n11, found.b, found.c, found.n00, found.n) == (both, b, c, 0, case["n"])
    points = [name for name in case if name.endswith("_pp")]
    p_values = [name for name in case if name.startswith("p_")]
    assert points or p_values
    for name in points:
        assert round(100 * getattr(found, name.removesuffix("_pp")), 2) == case[name]
    for name in p_values:
        assert getattr(found, name) == pytest.approx(case[name], rel=5e-3)
    assert found.interval == tango_interval(b, c, case["n"])


def check_wilson(case: dict[str, Any]) -> None:
    found = wilson_interval(case["k"], case["n"])
    assert (round(100 * found.low, 2), round(100 * found.high, 2)) == (
        case["low_pp"],
        case["high_pp"],
    )


def check_adjust(case: dict[str, Any]) -> None:
    family = [*case["p"], *[1.0] * (case.get("times", len(case["p"])) - len(case["p"]))]
    found = adjust_p_values(family, case["method"])[: len(case["p"])]
    assert found == pytest.approx(case["adjusted"])


def check_permutation_floor(case: dict[str, Any]) -> None:
    assert permutation_p(9.0, np.zeros(case["n"])) == pytest.approx(case["p"], rel=1e-4)


def check_min_pairs(case: dict[str, Any]) -> None:
    assert min_pairs(case["alpha"], two_sided=case["two_sided"]) == case["least"]


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "paired": check_paired,
    "wilson": check_wilson,
    "adjust": check_adjust,
    "permutation_floor": check_permutation_floor,
    "min_pairs": check_min_pairs,
}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['of']}: {case['name']}")
def test_golden_cases(case: dict[str, Any]) -> None:
    check_case = CHECKS[case["of"]]
    check_case(case)


@given(st.integers(0, 9), st.integers(0, 9))
def test_mcnemar_against_enumeration(b: int, c: int) -> None:
    heads = [sum(coins) for coins in product((0, 1), repeat=b + c)]
    drop = sum(h >= b for h in heads) / len(heads)
    rise = sum(h <= b for h in heads) / len(heads)
    assert mcnemar_p(b, c, "drop") == pytest.approx(drop)
    assert mcnemar_p(b, c, "rise") == pytest.approx(rise)
    assert mcnemar_p(b, c, "two-sided") == pytest.approx(min(1.0, 2 * min(drop, rise)))


@given(outcomes)
def test_a_pair_with_a_missing_answer_is_dropped_and_counted(pairs: Any) -> None:
    found = paired_comparison([o for o, _ in pairs], [v for _, v in pairs])
    full = [pair for pair in pairs if None not in pair]
    assert (found.n, found.n_dropped) == (len(full), len(pairs) - len(full))
    assert found.k_original == sum(o for o, _ in full)
    assert found.k_perturbed == sum(v for _, v in full)
    assert found.n11 == full.count((True, True)) and found.n00 == full.count((False, False))
    if full:
        d = np.array([int(v) - int(o) for o, v in full])
        assert found.gap == pytest.approx(d.mean())
        assert found.se == pytest.approx(d.std() / math.sqrt(len(d)))
    else:
        assert math.isnan(found.gap) and found.interval is None


@settings(max_examples=25, deadline=None)
@given(outcomes, st.randoms(use_true_random=False))
def test_the_order_of_items_changes_nothing(pairs: Any, random: Any) -> None:
    def score(rows: Any) -> Any:
        clusters = [str(hash((o, v)) % 3) for o, v in rows]
        first, second = [o for o, _ in rows], [v for _, v in rows]
        paired = paired_comparison(first, second, clusters=clusters)
        zero = [None if o is None else False for o in first]
        relative = gap_difference(first, second, zero, zero, rng(), n_permutations=99)
        return paired, repr(relative)

    shuffled = list(pairs)
    random.shuffle(shuffled)
    assert score(pairs) == score(shuffled)


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="one value for each item"):
        paired_comparison([True], [True, False])
    with pytest.raises(ValueError, match="not 3/2"):
        wilson_interval(3, 2)


def test_clusters_widen_the_interval() -> None:
    first, second = [True] * 80, [False, True] * 40
    second = sorted(second)  # whole clusters fall or stay
    clusters = [str(i // 20) for i in range(80)]
    alone = paired_comparison(first, second).interval
    shared = paired_comparison(first, second, clusters=clusters).interval
    assert alone is not None and shared is not None
    assert shared.high - shared.low > 2 * (alone.high - alone.low)
    one = paired_comparison(first, second, clusters=["x"] * 80)
    assert one.interval is None and one.gap == -0.5


def test_bootstrap_agrees_with_theory_and_repeats() -> None:
    values = np.repeat([-1.0, 0.0, 1.0], [60, 356, 24])
    found = bootstrap_interval(values, rng(), n_bootstrap=4000)
    assert found == bootstrap_interval(values[::-1], rng(), n_bootstrap=4000)
    assert found is not None
    exact = PairedOutcome(0, 60, 24, 356)
    assert found.low == pytest.approx(exact.gap - 1.96 * exact.se, abs=0.004)
    assert found.high == pytest.approx(exact.gap + 1.96 * exact.se, abs=0.004)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-2, 2), min_size=1, max_size=8))
def test_label_swaps_against_enumeration(differences: list[int]) -> None:
    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True))
        for signs in product((1, -1), repeat=len(differences))
    ]
    expected = sum(total <= sum(differences) for total in sums) / len(sums)
    assert label_swap_p(differences, rng()) == pytest.approx(expected)


@given(
    st.sampled_from([2, 3, 4, 5, 6, 8, 10, 12]),
    st.lists(st.integers(-12, 12), min_size=1, max_size=9),
)
def test_label_swaps_of_shares_are_exact(denominator: int, counts: list[int]) -> None:
    """Shares of few draws are whole numbers of a fraction: no draw of swaps is needed."""
    found = label_swap_p([n / denominator for n in counts], rng(), n_permutations=1)
    assert found == pytest.approx(label_swap_p(counts, rng()))


def test_gap_difference_decomposes_as_published() -> None:
    n = 440

    def right(k: int) -> list[bool]:
        return [i < k for i in range(n)]

    found = gap_difference(right(311), right(228), right(229), right(248), rng())
    assert round(100 * found.difference, 1) == -23.2
    assert round(100 * found.gap, 2) == -18.86 and round(100 * found.reference_gap, 2) == 4.32
    assert found.interval is not None and found.interval.high < 0 and found.p_below < 0.001


def test_gap_difference_drops_pairs_missing_in_either_model() -> None:
    one, two = [True, None, True], [False, True, True]
    found = gap_difference(one, two, [True, True, None], [True, True, True], rng())
    assert (found.n, found.n_dropped, found.difference, found.interval) == (1, 2, -1.0, None)
    empty = gap_difference([None], [True], [True], [True], rng())
    assert empty.n == 0 and math.isnan(empty.difference) and empty.p_below == 1.0


@given(st.lists(st.floats(-3, 3), max_size=30), st.floats(-3, 3))
def test_permutation_p_counts_ties_and_has_a_floor(null: list[float], observed: float) -> None:
    p = permutation_p(observed, null)
    assert 1 / (len(null) + 1) <= p <= 1
    assert permutation_p(observed, [*null, observed]) == pytest.approx(
        (p * (len(null) + 1) + 1) / (len(null) + 2)
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_corrections_against_their_definitions(p: list[float]) -> None:
    m = len(p)
    assert adjust_p_values(p, "bonferroni") == pytest.approx([min(1, m * x) for x in p])
    order = sorted(range(m), key=lambda i: p[i])
    expected = [0.0] * m
    for rank, i in enumerate(order):
        expected[i] = min(min(1, m * p[order[r]] / (r + 1)) for r in range(rank, m))
    assert adjust_p_values(p, "benjamini-hochberg") == pytest.approx(expected)


def test_holm_against_its_definition() -> None:
    p = [float(x) for x in rng().random(9) ** 3]  # one call: statsmodels collects garbage in each
    order = sorted(range(9), key=lambda i: p[i])
    expected = [0.0] * 9
    for rank, i in enumerate(order):
        expected[i] = min(1, max((9 - r) * p[order[r]] for r in range(rank + 1)))
    assert adjust_p_values(p, "holm") == pytest.approx(expected)


@example([1, -1, 2, 2, 2, -2, -2, -2], 1 / 7)  # sums that are 0 but for rounding
@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-2, 2), min_size=2, max_size=8), st.sampled_from([1 / 7, 1.0]))
def test_whole_and_fractional_differences_give_the_same_p(
    differences: list[int], scale: float
) -> None:
    scaled = [scale * d for d in differences]  # of sevenths, all swaps are enumerated instead
    assert label_swap_p(scaled, rng()) == pytest.approx(label_swap_p(differences, rng()))


def test_the_exact_label_swap_p_agrees_with_random_swaps_in_a_large_sample() -> None:
    generator = rng()
    differences = generator.choice([-2, -1, 0, 1, 2], size=600, p=[0.05, 0.2, 0.55, 0.17, 0.03])
    clusters = [str(n // 3) for n in range(600)]
    totals = np.add.reduceat(differences, np.arange(0, 600, 3))
    signs = generator.choice([-1, 1], size=(20_000, 200))
    expected = np.mean(signs @ totals <= totals.sum())
    found = label_swap_p(differences, rng(), clusters=clusters)
    assert 0.001 < found < 0.5
    assert found == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 20_000))
