"""The perturbation gap on models made of rules."""

from dataclasses import replace
from typing import Any

import pytest

from flipbench.core.paired import Pair
from flipbench.core.records import Count, PairedCounts
from flipbench.evaluate.detectors.perturbation.perturbation_gap import PerturbationGap
from flipbench.evaluate.scoring.comparison import Settings
from tests.fixtures.policies import by_hand

DETECTOR = PerturbationGap()


def test_a_worked_example_of_ten_pairs(make_world: Any) -> None:
    world = make_world.make(n=10)
    policy = by_hand(
        world, [True] * 7 + [False] * 3, [True] * 4 + [False] * 3 + [True] + 2 * [False]
    )
    scores = world.scores(DETECTOR, world.ask(DETECTOR, policy))
    sign, test = scores["sign"], scores["mcnemar"]
    assert sign.statistic == test.statistic == -0.2
    assert (sign.verdict, test.verdict) == ("contaminated", "not_detected")
    assert test.p_value == 0.3125
    assert sign.accuracies == {
        "original": Count(k=7, n=10),
        "perturbed": Count(k=5, n=10),
    }
    assert sign.paired == PairedCounts(n11=4, b=3, c=1, n00=2)
    assert sign.suspects.rate == 0.3
    assert sign.suspects.share == pytest.approx(0.4286, abs=5e-5)
    assert sorted(sign.per_item.values()) == [-1.0] * 3 + [0.0] * 6 + [1.0]


def test_an_epoch_series_has_the_expected_counts(make_world: Any) -> None:
    world = make_world.make(n=440, k=2)
    gaps = []
    for k_original, k_perturbed in ((276, 226), (308, 232), (350, 197)):
        first = [i < k_original for i in range(440)]
        second = [i < k_perturbed for i in range(440)]
        score = world.scores(DETECTOR, world.ask(DETECTOR, by_hand(world, first, second)))["sign"]
        assert score.verdict == "contaminated"
        gaps.append(round(100 * score.statistic, 2))
    assert gaps == [-11.36, -17.27, -34.77]


def test_a_memoriser_is_flagged_and_a_seer_is_not(world: Any) -> None:
    seer = world.ask(DETECTOR, world.seer(0.8), "clean")
    for rule, score in world.scores(DETECTOR, world.ask(DETECTOR, world.memoriser()), seer).items():
        assert score.verdict == "contaminated", rule
    memory = world.scores(DETECTOR, world.ask(DETECTOR, world.memoriser()), seer)
    assert memory["mcnemar"].statistic == -1.0 and set(memory["sign"].per_item.values()) == {-1.0}
    assert memory["relative"].statistic == -1.0 - memory["relative"].reference.statistic
    change = memory["relative"].details["change_against_reference"]
    assert change["perturbed"] - change["original"] == pytest.approx(memory["relative"].statistic)
    perfect = world.scores(DETECTOR, world.ask(DETECTOR, world.seer()), seer)
    assert perfect["sign"].statistic == 0.0 and perfect["sign"].verdict == "not_detected"
    assert perfect["sign"].interval.low < -0.05  # no pair changed, but a few might have
    assert perfect["mcnemar"].verdict == "not_detected"


def test_always_answering_a_is_not_flagged_by_the_test(world: Any) -> None:
    scores = world.scores(DETECTOR, world.ask(DETECTOR, lambda probe: 0))
    assert scores["mcnemar"].verdict == "not_detected"


def test_the_relative_rule_allows_for_harder_edits(make_world: Any) -> None:
    world = make_world.make(n=100)
    hard = by_hand(world, [True] * 100, [i % 3 > 0 for i in range(100)])
    also = by_hand(world, [True] * 100, [i % 3 > 0 or i == 0 for i in range(100)])
    scores = world.scores(DETECTOR, world.ask(DETECTOR, hard), world.ask(DETECTOR, also, "clean"))
    assert scores["mcnemar"].verdict == "contaminated"
    assert scores["relative"].verdict == "not_detected"
    assert scores["relative"].reference_fingerprint == "fingerprint of clean"
    assert scores["mcnemar"].reference_fingerprint == ""


def test_items_that_share_an_image_are_one_unit(make_world: Any, make_item: Any) -> None:
    pairs = []
    for number in range(30):
        picture = f"picture {number // 10}"
        one = make_item(str(number), ["x", "y"], 0, picture=picture)
        two = make_item(str(number), ["x", "y"], 1, picture="new " + picture)
        pairs.append(Pair(one, two))
    world = make_world.of(pairs)
    fallen = [number >= 10 for number in range(30)]
    score = world.scores(
        DETECTOR, world.ask(DETECTOR, by_hand(world, [True] * 30, [not f for f in fallen]))
    )["mcnemar"]
    assert score.interval is not None
    assert score.interval.low < -0.9 and score.interval.high > 0.5  # 3 images, not 30 items
    assert score.p_value == pytest.approx(1 / 4) and score.verdict == "inconclusive"
    assert any("share 3 images" in w for w in score.warnings)


def test_alpha_is_a_setting(make_world: Any) -> None:
    world = make_world.make(n=10)
    strict = PerturbationGap(Settings(alpha=0.01))
    policy = by_hand(world, [True] * 6 + [False] * 4, [False] * 10)
    assert world.scores(DETECTOR, world.ask(DETECTOR, policy))["mcnemar"].verdict == "contaminated"
    assert world.scores(strict, world.ask(strict, policy))["mcnemar"].verdict == "not_detected"


@pytest.mark.parametrize("exchangeable", [True, None, False])
def test_found_pairs_get_a_verdict_only_against_a_reference(
    make_world: Any, exchangeable: bool | None
) -> None:
    made = make_world.make(n=40)
    world = type(made)(replace(made.benchmark, exchangeable=exchangeable))
    memory, seer = world.memoriser(), world.seer(0.8)
    for policy in (memory, seer):
        alone = world.scores(DETECTOR, world.ask(DETECTOR, policy))
        for rule in ("sign", "mcnemar"):
            applies = exchangeable is not False
            assert (alone[rule].verdict != "not_applicable") is applies
            assert (alone[rule].p_value is not None) is applies
            assert any("found, not made" in w for w in alone[rule].warnings) is not applies
            assert alone[rule].statistic is not None and alone[rule].interval is not None
        assert alone["relative"].verdict == "not_applicable"
    clean = world.ask(DETECTOR, seer, "clean")
    against = world.scores(DETECTOR, world.ask(DETECTOR, memory), clean)
    assert against["relative"].verdict == "contaminated" and against["relative"].p_value < 0.05
    own = world.scores(DETECTOR, world.ask(DETECTOR, seer, "copy of the clean one"), clean)
    assert own["relative"].verdict == "not_detected"
