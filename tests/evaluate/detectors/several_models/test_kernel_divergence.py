"""Kernel divergence: vectors, definition, calibration, refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng as rng
from scipy import stats

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Response
from flipbench.evaluate.detectors.several_models.kernel_divergence import (
    KernelDivergence,
    compare_divergences,
    kernel_divergence,
)
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.evaluate.validation.validation import validate
from flipbench.models.engine import Answers
from flipbench.models.vlm.scoring import pack_state, unpack_state
from flipbench.prompting.prompts import PromptSettings

ASKING = PromptSettings()


def grid_model(name: str, dose: int = 0, **more: Any) -> GridModel:
    facts = {"family": name, "strategy": "lora" if dose else "clean", "epoch": dose} | more
    return GridModel(name, f"fingerprint of {name}", dose=dose, **facts)


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
    found = compare_divergences([moved(draw, 100, 0.1)], [moved(draw, 100, 0.5)], rng(0))
    assert found.p_value == pytest.approx(1 / 256) and found.interval.low > 0
    assert found.difference == pytest.approx(np.mean(found.model) - np.mean(found.reference))
    assert (found.fold_size, len(found.model), found.n_items) == (12, 8, 100)
    before, after = moved(draw, 100, 0.1)
    after[:90] = np.nan
    with pytest.raises(ValueError, match="10 embedded items are too few for 8 folds"):
        compare_divergences([(before, after)], [moved(draw, 100, 0.1)], rng(0))
    p_values = [
        compare_divergences([moved(draw, 40, 0.3)], [moved(draw, 40, 0.3)], draw).p_value
        for _ in range(200)
    ]
    assert stats.binomtest(sum(p <= 0.05 for p in p_values), 200, 0.05, "greater").pvalue > 0.01
    assert 0.4 < np.mean(p_values) < 0.6


def test_several_finetunes_of_one_model_are_averaged() -> None:
    draw = rng(6)
    one, two, other = (moved(draw, 32, by) for by in (0.2, 0.4, 0.3))
    both = compare_divergences([one, two], [other], rng(0), 4)
    alone = [compare_divergences([move], [other], rng(0), 4).model for move in (one, two)]
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
    benchmark, detector, draw = (
        make_world.make(n=40).benchmark,
        KernelDivergence(),
        rng(7),
    )
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
