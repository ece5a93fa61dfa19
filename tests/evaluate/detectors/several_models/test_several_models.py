"""Group metrics, ConStat and kernel divergence: vectors, brute force, calibration, refusals."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.rates import wilson_interval
from flipbench.core.records import Response, Score
from flipbench.evaluate.detectors.several_models.constat import ConStat, constat, difficulty_curve
from flipbench.evaluate.detectors.several_models.kernel_divergence import (
    KernelDivergence,
    compare_divergences,
    kernel_divergence,
)
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.evaluate.report.group_metrics import (
    GroupCell,
    group_metrics,
    group_table,
    has_groups,
)
from flipbench.evaluate.report.group_metrics import cells_of as read_cells
from flipbench.evaluate.validation.validation import validate
from flipbench.models.engine import Answers
from flipbench.models.vlm.scoring import pack_state, unpack_state
from flipbench.prompting.prompts import PromptSettings

ASKING = PromptSettings()
PLACES = tuple(itertools.product(("q0", "q1"), ("i0", "i1")))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def cells_of(groups: Any) -> list[GroupCell]:
    return [
        GroupCell(f"g{number}", *place, outcome)
        for number, group in enumerate(groups)
        for place, outcome in zip(PLACES, group, strict=True)
    ]


def test_group_metrics_of_the_worked_example() -> None:
    found = group_metrics(cells_of([(True, True, False, True)]))
    rates = (found.accuracy, found.question, found.image, found.group)
    assert [(r.k, r.n) for r in rates] == [(3, 4), (1, 2), (1, 2), (0, 1)]


def test_intervals_resample_whole_groups() -> None:
    draw = rng(4)
    alike = [(bool(x),) * 4 for x in draw.random(60) < 0.5]
    mixed = [tuple(bool(x) for x in row) for row in draw.random((60, 4)) < 0.5]
    wide, narrow = (group_metrics(cells_of(g)).accuracy.interval for g in (alike, mixed))
    assert wide is not None and narrow is not None
    assert wide.high - wide.low > 1.6 * (narrow.high - narrow.low)
    found = group_metrics(cells_of(mixed))
    assert found.group.interval == wilson_interval(found.group.k, 60)
    every = group_metrics(cells_of([(True,) * 4] * 60)).accuracy
    assert (every.k, every.n) == (240, 240) and every.interval == wilson_interval(60, 60)


@given(st.lists(st.tuples(*[st.sampled_from([True, False, None])] * 4), max_size=6))
def test_group_metrics_equal_direct_counting(groups: list[tuple[bool | None, ...]]) -> None:
    found = group_metrics(cells_of(groups))
    wanted = {
        "accuracy": [(x,) for g in groups for x in g],
        "question": [q for g in groups for q in (g[:2], g[2:])],
        "image": [i for g in groups for i in (g[::2], g[1::2])],
        "group": groups,
    }
    for name, sets in wanted.items():
        whole = [members for members in sets if None not in members]
        rate = getattr(found, name)
        assert (rate.k, rate.n) == (sum(all(m) for m in whole), len(whole))
        assert rate.interval is not None or rate.n == 0 or len(groups) == 1 or 0 < rate.k < rate.n
    assert found.n_missing == sum(x is None for g in groups for x in g)


def test_pairs_on_the_same_two_images_form_a_group(
    make_world: Any, make_item: Any, make_pair: Any
) -> None:
    first = make_pair(make_item("0", ("yes", "no"), 0), 1)
    images = (first.perturbed.images, first.original.images)
    changed = [
        item.model_dump() | {"id": "", "question": "Another?", "images": picture}
        for item, picture in zip((first.original, first.perturbed), images, strict=True)
    ]
    second = Pair(*(type(first.original).model_validate(c) for c in changed))
    world = make_world.of([first, second, make_pair(make_item("1", ("yes", "no"), 0), 1)])
    from flipbench.evaluate.detectors.perturbation.perturbation_gap import PerturbationGap

    always_yes = world.ask(PerturbationGap(), lambda probe: 0, "yes-sayer")
    skilled = world.ask(PerturbationGap(), lambda p: p.prompt.startswith("Another"), "other")
    assert has_groups(world.benchmark) and not has_groups(make_world.make().benchmark)
    metrics = {
        answers.fingerprint: group_metrics(read_cells(world.benchmark, ASKING, answers))
        for answers in (always_yes, skilled)
    }
    found = metrics[always_yes.fingerprint]
    assert [(r.k, r.n) for r in (found.accuracy, found.question, found.image, found.group)] == [
        (3, 6),
        (0, 3),
        (1, 4),
        (0, 2),
    ]
    table = group_table([grid_model("yes-sayer"), grid_model("other")], metrics)
    assert [name for name, _ in table.groups] == ["yes-sayer", "other"]
    (row,) = table.groups[0][1]
    assert [cell.text for cell in row.cells] == [
        "50.0 (3/6)", "0.0 (0/3)", "25.0 (1/4)", "0.0 (0/2)", "0",
    ]  # fmt: skip
    assert row.cells[1].small == "[0.0, 65.8]", "two groups, whatever the number of questions"


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
    found = constat(np.ones((2, 9)), np.ones((3, 2, 9)), rng(), n_bootstrap=50)
    assert (found.delta, found.interval.low, found.interval.high, found.p_value) == (0, 0, 0, 1)


def test_constat_resamples_whole_clusters() -> None:
    draw = rng(3)
    few = outcomes(draw, [0.6, 0.4, 0.5, 0.7], 20, harder=0.0)
    many, shared = np.repeat(few, 20, axis=2), [str(i // 20) for i in range(400)]
    wide = constat(many[0], many[1:], rng(), clusters=shared, n_bootstrap=300).interval
    narrow = constat(many[0], many[1:], rng(), n_bootstrap=300).interval
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


@pytest.mark.parametrize("shape", [(2, 2, 5), (3, 1, 5), (3, 2, 4), (3, 2, 0)])
def test_constat_refuses_mismatched_shapes(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="shapes|reference models"):
        constat(np.ones((2, 5 if shape[2] else 0)), np.ones(shape), rng())


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


def test_kernel_divergence_of_the_worked_example() -> None:
    before, after = [[0.0], [2**0.5]], [[0.0], [1.0]]
    assert kernel_divergence(before, after, (1, 1)) == pytest.approx(-0.17962, abs=1e-5)
    assert kernel_divergence(before, before) == 0.0


@given(st.integers(3, 9), st.integers(0, 10_000))
def test_kernel_divergence_equals_its_definition(n: int, seed: int) -> None:
    before, after = rng(seed).normal(size=(2, n, 4))
    kernels = []
    for z in (before, after):
        d = np.array([[np.linalg.norm(a - b) for b in z] for a in z])
        gamma = 1 / np.median([d[i, j] for i in range(n) for j in range(i)])
        kernels.append(np.exp(-gamma * d**2))
    k, after_k = kernels
    expected = -np.abs(k * np.log(k / after_k)).sum() / np.sqrt(k.sum())
    assert kernel_divergence(before, after) == pytest.approx(expected)


@pytest.mark.parametrize("shapes", [((1, 2), (1, 2)), ((3, 2), (4, 2))])
def test_kernel_divergence_refuses_mismatched_shapes(shapes: Any) -> None:
    with pytest.raises(ValueError, match="same 2 or more items"):
        kernel_divergence(*(np.ones(shape) for shape in shapes))
    with pytest.raises(ValueError, match="embeddings are equal"):
        kernel_divergence(np.ones((3, 2)), np.ones((3, 2)))


def moved(draw: np.random.Generator, n: int, by: float) -> tuple[Any, Any]:
    before = draw.normal(size=(n, 6))
    return before, before + by * draw.normal(size=(n, 6))


@pytest.mark.slow
def test_the_fold_test_finds_a_model_that_moves_less_at_its_level() -> None:
    draw = rng(5)
    found = compare_divergences([moved(draw, 100, 0.1)], [moved(draw, 100, 0.5)], rng())
    assert found.p_value == pytest.approx(1 / 256) and found.interval.low > 0
    assert found.difference == pytest.approx(np.mean(found.model) - np.mean(found.reference))
    assert (found.fold_size, len(found.model), found.n_items) == (12, 8, 100)
    before, after = moved(draw, 100, 0.1)
    after[:90] = np.nan
    with pytest.raises(ValueError, match="10 embedded items are too few for 8 folds"):
        compare_divergences([(before, after)], [moved(draw, 100, 0.1)], rng())
    p_values = [
        compare_divergences([moved(draw, 40, 0.3)], [moved(draw, 40, 0.3)], draw).p_value
        for _ in range(200)
    ]
    assert stats.binomtest(sum(p <= 0.05 for p in p_values), 200, 0.05, "greater").pvalue > 0.01
    assert 0.4 < np.mean(p_values) < 0.6


def test_several_finetunes_of_one_model_are_averaged() -> None:
    draw = rng(6)
    one, two, other = (moved(draw, 32, by) for by in (0.2, 0.4, 0.3))
    both = compare_divergences([one, two], [other], rng(), 4)
    alone = [compare_divergences([move], [other], rng(), 4).model for move in (one, two)]
    assert both.model == pytest.approx(np.mean(alone, axis=0))


def states_of(detector: KernelDivergence, benchmark: Any, z: Any, name: str) -> Answers:
    """Return answers that embed each item as a row of ``z`` says; no answer where it is NaN."""
    found = {
        probe.id: Response(
            probe_id=probe.id,
            model_fingerprint=name,
            model=name,
            state=pack_state(torch.tensor(row)),
        )
        for probe, row in zip(detector.probes(benchmark, ASKING), z, strict=True)
        if not np.isnan(row).any()
    }
    return Answers(name, f"fingerprint of {name}", found)


def test_divergence_compares_models_after_the_same_fine_tuning(make_world: Any) -> None:
    benchmark, detector, draw = make_world.make(n=40).benchmark, KernelDivergence(), rng(7)
    base = draw.normal(size=(40, 6))

    def after(z: Any, size: float) -> Any:
        return z + size * draw.normal(size=(40, 6))

    made = {
        "base": base, "base tuned": after(base, 0.6), "base tuned otherwise": after(base, 0.01),
        "seen": base, "seen tuned": after(base, 0.05), "seen tuned twice": base,
        "control": base, "control tuned": after(base, 0.6), "other plan": base, "untuned": base,
    }  # fmt: skip
    made["other plan tuned"] = after(base, 0.01)
    made["seen tuned"][0] = np.nan
    answers = {name: states_of(detector, benchmark, z, name) for name, z in made.items()}

    def model(name: str, dose: int = 0, strategy: str = "lora", **more: Any) -> GridModel:
        return grid_model(name, dose, family="f", strategy=strategy, **({"epoch": 0} | more))

    def tuned(name: str, strategy: str = "standard", **more: Any) -> GridModel:
        start = f"fingerprint of {name.partition(' tuned')[0]}"
        return model(name, 4, strategy, **({"epoch": 1, "trained_from": start} | more))

    clean = model("base", strategy="clean")
    grid = [
        clean, tuned("base tuned"), tuned("base tuned otherwise", "full"),
        model("seen", 4), tuned("seen tuned"),
        tuned("seen tuned twice", epoch=2, trained_from="fingerprint of seen tuned"),
        model("control"), tuned("control tuned"),
        model("other plan", 4), tuned("other plan tuned", "third"), model("untuned", 4),
    ]  # fmt: skip
    found = {
        score.model: score
        for score in detector.score_grid(benchmark, ASKING, grid, lambda m: answers[m.name])
    }
    score = found["seen"]
    assert (score.verdict, score.n, score.n_dropped) == ("contaminated", 39, 1)
    assert score.reference_fingerprint == clean.fingerprint
    assert score.details["after"] == ["seen tuned"]
    assert score.statistic is not None and score.statistic > 0
    for name, reason in {
        "base": "no clean reference",
        "seen tuned": "no standard fine-tune",
        "other plan": "no standard fine-tune",
        "untuned": "no standard fine-tune",
    }.items():
        assert (found[name].verdict, found[name].reason) == ("not_applicable", reason)
        assert name in found[name].warnings[0] and found[name].statistic is None
    assert found["control"].verdict == "not_detected" and found["control"].n == 40
    (found_rates,) = validate(list(found.values()), grid)
    assert (found_rates.detected.k, found_rates.detected.n) == (1, 1)
    assert (found_rates.alarms.k, found_rates.alarms.n) == (0, 1)


@pytest.mark.slow
def test_a_finetuned_real_checkpoint_diverges(
    tiny_vlm: Any, shapes_benchmark: PairedBenchmark
) -> None:
    vlm, detector = tiny_vlm("qwen2_vl"), KernelDivergence()
    probes = detector.probes(shapes_benchmark, ASKING)[:12]

    def embedded(size: int) -> Any:
        parts = [probes[start : start + size] for start in range(0, 12, size)]
        replies = [r for part in parts for r in vlm.ask(part, shapes_benchmark.images)]
        z = np.array([unpack_state(reply.state) for reply in replies], dtype=float)
        return z / np.linalg.norm(z, axis=1, keepdims=True)

    before = embedded(12)
    assert np.abs(before - embedded(1)).max() < 1e-4
    weight = next(p for n, p in vlm.model.named_parameters() if n.endswith("v_proj.weight"))
    kept, scores = weight.detach().clone(), []
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    try:
        for size in (0.0, 0.02, 0.2):
            weight.data = kept + size * noise
            scores.append(kernel_divergence(before, embedded(12)))
    finally:
        weight.data = kept
    assert scores[0] == pytest.approx(0, abs=1e-4) and 0 > scores[1] > scores[2]
