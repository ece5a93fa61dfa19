"""CircularEval: its vectors, its rotations, and models made of rules."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipbench.core.records import Count
from flipbench.evaluate.detectors.perturbation.circular_eval import CircularEval, rotate
from flipbench.prompting.prompts import PromptSettings

DETECTOR = CircularEval()


@given(st.integers(1, 10).flatmap(lambda k: st.tuples(*[st.integers(0, k - 1)] * 2, st.just(k))))
def test_a_rotation_moves_the_right_answer(drawn: tuple[int, int, int]) -> None:
    answer, rotation, k = drawn
    options = [f"option {i}" for i in range(k)]
    turned, gold = rotate(options, answer, rotation)
    assert turned[gold] == options[answer] and sorted(turned) == sorted(options)
    assert all(turned[j] == options[(j + rotation) % k] for j in range(k))


def test_always_answering_a_passes_no_item(make_world: Any) -> None:
    world = make_world.make(n=3, k=3)
    score = world.scores(DETECTOR, world.ask(DETECTOR, lambda probe: 0))["paper"]
    assert score.accuracies == {
        "original": Count(k=1, n=3),
        "circular": Count(k=0, n=3),
    }
    assert score.statistic == pytest.approx(-1 / 3)
    assert score.details["chosen_slots"] == {"A": 9}
    assert score.verdict == "not_applicable"


def test_one_wrong_rotation_fails_the_item(make_world: Any) -> None:
    world = make_world.make(n=1, k=2)
    score = world.scores(DETECTOR, world.ask(DETECTOR, lambda probe: 0))["paper"]
    assert (score.paired.b, score.statistic) == (1, -1.0)


def test_rotation_0_is_the_plain_question(world: Any) -> None:
    prompt_settings = PromptSettings()
    probes = DETECTOR.probes(world.benchmark, prompt_settings)
    plain = {prompt_settings.probe(item, "original").id for item in world.benchmark.originals}
    assert len(probes) == 160 and len({p.id for p in probes}) == 160
    assert plain == {p.id for p in probes if p.variant == "original"}
    assert {p.variant for p in probes} == {"original", "rotated-1", "rotated-2", "rotated-3"}


def test_a_missing_rotation_drops_the_item(world: Any) -> None:
    first = world.benchmark.originals[0].id
    answers = world.ask(
        DETECTOR,
        world.seer(),
        skip=lambda p: p.item_id == first and p.variant == "rotated-2",
    )
    score = world.scores(DETECTOR, answers)["paper"]
    assert (score.n, score.n_dropped) == (39, 1) and first not in score.per_item


def test_an_equal_gap_is_not_detected(world: Any) -> None:
    always = world.ask(DETECTOR, lambda probe: 0)
    same = world.ask(DETECTOR, lambda probe: 0, "clean")
    scores = world.scores(DETECTOR, always, same)
    assert [s.verdict for s in scores.values()] == ["not_detected"] * 2
    assert scores["relative"].statistic == 0.0 and scores["relative"].p_value == 1.0
