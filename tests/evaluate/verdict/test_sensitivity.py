"""What would change a verdict: items, pairs, and pairs that share images."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipbench.evaluate.statistics.paired import mcnemar_p
from flipbench.evaluate.statistics.power import Design, power
from flipbench.evaluate.verdict import sensitivity as verdict_sensitivity
from flipbench.evaluate.verdict.sensitivity import (
    items_to_discount,
    items_to_fall,
    items_to_rise,
)
from flipbench.evaluate.verdict.verdict import ModelVerdict
from tests.fixtures.policies import by_hand
from tests.fixtures.verdicts import judge

COUNTS = st.integers(0, 40)


def test_numbers_of_items_are_rough_where_items_share_images(make_world: Any) -> None:
    world = make_world.make(n=60)

    def grouped(world: Any) -> Any:
        pairs = [
            replace(
                pair,
                original=pair.original.model_copy(update={"group": f"g{i // 4}"}),
                perturbed=pair.perturbed.model_copy(update={"group": f"g{i // 4}"}),
            )
            for i, pair in enumerate(world.benchmark.pairs)
        ]
        return type(world)(replace(world.benchmark, pairs=tuple(pairs)))

    world = grouped(world)
    falls = by_hand(world, [True] * 60, [i >= 32 for i in range(60)])
    finding = judge(world, falls, exchangeable=True)
    assert finding.verdict == "contaminated" and finding.gap.p_value == pytest.approx(1 / 256)
    assert "if about 16 of the 32 that fell" in finding.what_would_change[0]
    assert "or if about" in finding.what_would_change[0]
    assert "4.2 pairs are worth about one" in finding.what_would_change[0]
    assert finding.sensitivity.is_shared
    few = judge(world, by_hand(world, [True] * 60, [i >= 12 for i in range(60)]))
    assert few.verdict == "not_detected"
    assert "worth about 14 that share no image" in few.sentence
    assert "if about 2 more of the 48 right in both" in few.what_would_change[0]
    everything = judge(world, by_hand(world, [True] * 60, [False] * 60)).gap.interval
    assert everything.low == -1 and everything.high < -0.5


@given(b=COUNTS, c=COUNTS, n11=COUNTS, alpha=st.sampled_from([0.05, 0.01]))
def test_the_number_of_items_that_would_change_the_verdict_is_exact(
    b: int, c: int, n11: int, alpha: float
) -> None:
    totals = [-1] * b + [1] * c
    if mcnemar_p(b, c, "drop") <= alpha:
        lose, rise = items_to_discount(totals, alpha), items_to_rise(totals, alpha)
        assert mcnemar_p(b - lose, c, "drop") > alpha >= mcnemar_p(b - lose + 1, c, "drop")
        assert mcnemar_p(b, c + rise, "drop") > alpha >= mcnemar_p(b, c + rise - 1, "drop")
    else:
        fall = items_to_fall(totals, n11, alpha)
        if fall is None:
            assert mcnemar_p(b + n11, c, "drop") > alpha
        else:
            assert mcnemar_p(b + fall, c, "drop") <= alpha < mcnemar_p(b + fall - 1, c, "drop")


@pytest.mark.slow
@pytest.mark.parametrize(("fell", "rose"), [(0, 0), (6, 6), (20, 14)])
def test_the_detectable_gap_has_80_percent_power(make_world: Any, fell: int, rose: int) -> None:
    world = make_world.make(n=200)
    original = [i >= rose for i in range(200)]
    perturbed = [i < rose or i >= rose + fell for i in range(200)]
    finding = judge(world, by_hand(world, original, perturbed))
    gap = finding.gap
    assert (gap.paired.b, gap.paired.c) == (fell, rose)
    least = finding.sensitivity.detectable
    assert least is not None
    rise = (fell + rose + 1) / 400

    def reached(drop: float) -> float:
        return power(Design(-drop, min(1.0, 2 * rise + drop)), 200)

    assert reached(least) >= 0.8 > reached(least - 0.001)


@pytest.mark.slow
def test_the_verdict_sensitivity_where_the_page_predicts(
    make_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_sensitivity, "MOST_PAIRS", 256)  # no part of this test, and slow
    world = make_world.make(n=60)

    def verdict(fell: int, rose: int) -> ModelVerdict:
        original = [i >= rose for i in range(60)]
        perturbed = [not rose <= i < rose + fell or i < rose for i in range(60)]
        return judge(world, by_hand(world, original, perturbed), exchangeable=True)

    finding = verdict(12, 2)
    assert finding.verdict == "contaminated"
    k, m = map(int, re.findall(r"if (\d+) (?:of|more)", finding.what_would_change[0]))
    assert verdict(12 - k, 2).verdict == verdict(12, 2 + m).verdict == "not_detected"
    assert verdict(13 - k, 2).verdict == verdict(12, 1 + m).verdict == "contaminated"
    finding = verdict(4, 2)
    assert finding.verdict == "not_detected"
    (more,) = map(int, re.findall(r"if (\d+) more of the 54", finding.what_would_change[0]))
    assert verdict(4 + more, 2).verdict == "contaminated"
    assert verdict(3 + more, 2).verdict == "not_detected"


@pytest.mark.slow
def test_pairs_needed_match_the_power_analysis(make_world: Any) -> None:
    world = make_world.make(n=60)
    original = [i >= 2 for i in range(60)]
    model = by_hand(world, original, [i < 2 or i >= 6 for i in range(60)])
    finding = judge(world, model)
    rows = {round(row.gap, 3): row for row in finding.sensitivity.pairs}
    assert sorted(rows) == [-0.1, -0.05, -0.033, -0.02] and rows[-0.033].measured
    n = rows[-0.05].for_80
    design = Design(-0.05, 7 / 60 + 0.05)
    assert n is not None and power(design, n) >= 0.8 > power(design, n - 1)
    needed = rows[-0.033].for_80
    assert needed is not None
    assert (
        f"{needed:,} pairs to detect it four times in five: {needed - 60:,} more"
        in (finding.what_would_change[1])
    )


@pytest.mark.slow
def test_too_few_right_answers_cannot_change_the_verdict(make_world: Any) -> None:
    world = make_world.make(n=6)
    model = by_hand(world, [True, True, False, False, False, False], [False, True] + [False] * 4)
    finding = judge(world, model)
    assert finding.gap.verdict == "not_detected"
    assert (
        "not be significant even if every pair that is right in both versions (1)"
        in finding.what_would_change[0]
    )
