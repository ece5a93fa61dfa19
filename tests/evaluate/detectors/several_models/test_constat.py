"""ConStat: vectors, calibration, refusals."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng as rng

from flipbench.core.records import Score
from flipbench.evaluate.detectors.several_models.constat import ConStat, constat, difficulty_curve
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.prompting.prompts import PromptSettings

ASKING = PromptSettings()


def test_constat_on_the_worked_example() -> None:
    reference = np.array([0.3, 0.45, 0.6, 0.8])
    expected = difficulty_curve(reference, reference + 0.05, 0.5)
    assert 0.70 - expected == pytest.approx(0.15)


ACCURACIES = st.integers(1, 2_000).flatmap(lambda n: st.integers(0, n).map(lambda k: k / n))


@given(st.lists(st.tuples(ACCURACIES, ACCURACIES), min_size=1, max_size=8), ACCURACIES, ACCURACIES)
def test_the_curve_is_monotone_and_stays_within_chance_and_one(
    models: list[tuple[float, float]], one: float, two: float
) -> None:
    x, y = zip(*models, strict=True)
    low, high = (difficulty_curve(x, y, at) for at in sorted((one, two)))
    assert 0 <= low <= high + 1e-12 <= 1 + 1e-9


def outcomes(draw: np.random.Generator, skills: Any, n: int, harder: float) -> Any:
    """Return (M, 2, N) of models whose test accuracy is their skill - harder."""
    p = np.array([[skill, skill - harder] for skill in skills])
    return (draw.random((len(skills), 2, n)) < p[..., None]).astype(float)


def test_constat_finds_what_difficulty_cannot_explain() -> None:
    draw = rng(1)
    models = outcomes(draw, np.linspace(0.35, 0.9, 8), 400, harder=0.1)
    honest = outcomes(draw, [0.6], 400, harder=0.1)[0]
    cheat = np.stack([honest[0], (draw.random(400) < 0.8).astype(float)])
    found = constat(cheat, models, draw, n_bootstrap=400)
    assert found.p_value < 0.01 and found.interval.low > 0.1
    assert found.delta == pytest.approx(0.3, abs=0.1)
    assert constat(honest, models, draw, n_bootstrap=400).p_value > 0.05


@pytest.mark.slow
def test_constat_keeps_its_false_alarm_rate() -> None:
    draw, flagged = rng(2), 0
    for _ in range(60):
        every = outcomes(draw, [0.55, *np.linspace(0.3, 0.9, 7)], 150, harder=0.05)
        flagged += constat(every[0], every[1:], draw, n_bootstrap=100).p_value <= 0.05
    assert flagged <= 8  # P[Binomial(60, 0.05) > 8] < 0.005


def test_identical_items_have_no_bootstrap_variance() -> None:
    found = constat(np.ones((2, 9)), np.ones((3, 2, 9)), rng(0), n_bootstrap=50)
    assert (found.delta, found.interval.low, found.interval.high, found.p_value) == (0, 0, 0, 1)


def test_constat_resamples_whole_clusters() -> None:
    draw = rng(3)
    few = outcomes(draw, [0.6, 0.4, 0.5, 0.7], 20, harder=0.0)
    many, shared = np.repeat(few, 20, axis=2), [str(i // 20) for i in range(400)]
    wide = constat(many[0], many[1:], rng(0), clusters=shared, n_bootstrap=300).interval
    narrow = constat(many[0], many[1:], rng(0), n_bootstrap=300).interval
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


@pytest.mark.parametrize("shape", [(2, 2, 5), (3, 1, 5), (3, 2, 4), (3, 2, 0)])
def test_constat_refuses_mismatched_shapes(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="shapes|reference models"):
        constat(np.ones((2, 5 if shape[2] else 0)), np.ones(shape), rng(0))


def grid_model(name: str, dose: int = 0, **more: Any) -> GridModel:
    facts = {"family": name, "strategy": "lora" if dose else "clean", "epoch": dose} | more
    return GridModel(name, f"fingerprint of {name}", dose=dose, **facts)


@pytest.mark.slow
def test_constat_scores_answers(make_world: Any) -> None:
    world, detector = make_world.make(n=80), ConStat()
    answers = {
        name: world.ask(detector, world.seer(skill, name), name)
        for name, skill in {"a": 0.3, "b": 0.5, "c": 0.7, "d": 0.9}.items()
    }
    answers["memory"] = world.ask(detector, world.memoriser(), "memory")
    answers["mute"] = world.ask(detector, world.seer(), "mute", skip=lambda probe: True)

    def scores(*grid: GridModel) -> dict[str, Score]:
        found = detector.score_grid(world.benchmark, ASKING, grid, lambda m: answers[m.name])
        assert len({score.id for score in found}) == len(grid)
        return {score.model: score for score in found}

    clean = [grid_model(name) for name in "abcd"]
    found = scores(*clean, grid_model("memory", 1))
    assert (found["b"].verdict, found["b"].n) == ("not_detected", 80)
    assert found["b"].details["references"] == ["a", "c", "d"]
    assert found["memory"].details["references"] == ["a", "b", "c", "d"]
    assert found["memory"].verdict == "contaminated" and found["memory"].statistic > 0.3
    few = scores(*clean[:2], grid_model("memory", 1))["memory"]
    assert few.verdict == "not_applicable" and "at least 3 clean" in few.warnings[0]
    assert few.reason == "2 of 3 clean references"
    mute = scores(*clean, grid_model("mute", 1))["mute"]
    assert (mute.verdict, mute.n, mute.n_dropped) == ("inconclusive", 0, 80)
    alike = [grid_model(name, family="one") for name in "abc"]
    warned = scores(*alike, grid_model("memory", 1))["memory"].warnings
    assert any("3 clean references descend from 1 clean model" in text for text in warned)
