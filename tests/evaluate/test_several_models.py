"""Group metrics, ConStat and kernel divergence: vectors, brute force, calibration, refusals."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from flipbench.evaluate.constat import ConStat, constat, difficulty_curve
from flipbench.evaluate.group_metrics import (
    Cell,
    earliest_choice,
    group_metrics,
    group_metrics_of_models,
)
from flipbench.evaluate.kernel_divergence import (
    checkpoint_divergence,
    divergence_against_control,
    embeddings,
    kernel_divergence,
)
from flipbench.paired import Pair
from flipbench.prompts import Asking

ASKING = Asking()
PLACES = tuple(itertools.product(("q0", "q1"), ("i0", "i1")))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def cells_of(groups: Any) -> list[Cell]:
    return [
        Cell(f"g{number}", *place, outcome)
        for number, group in enumerate(groups)
        for place, outcome in zip(PLACES, group, strict=True)
    ]


def test_the_group_vector_from_replies() -> None:
    truth, replies = (0, 1, 1, 0), ("Yes.", "no", "yes", "The answer is yes")
    right = [earliest_choice(r, "yes_no") == t for r, t in zip(replies, truth, strict=True)]
    assert right == [True, True, False, True]
    found = group_metrics(cells_of([right]))
    rates = (found.accuracy, found.question, found.image, found.group)
    assert [(r.k, r.n) for r in rates] == [(3, 4), (1, 2), (1, 2), (0, 1)]


@pytest.mark.parametrize(
    ("reply", "kind", "choice"),
    [
        ("B", "choice", 1),
        ("Option A, not B", "choice", 0),
        ("NO", "yes_no", 1),
        ("I know nothing", "yes_no", -1),
        ("a dog", "choice", -1),
        ("", "choice", -1),
    ],
)
def test_the_earliest_word_counts(reply: str, kind: str, choice: int) -> None:
    assert earliest_choice(reply, kind) == choice


@given(st.lists(st.tuples(*[st.sampled_from([True, False, None])] * 4), max_size=6))
def test_group_metrics_against_counting(groups: list[tuple[bool | None, ...]]) -> None:
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
        assert (rate.interval is None) == (rate.n == 0)
    assert found.n_missing == sum(x is None for g in groups for x in g)


def test_pairs_on_the_same_two_images_make_a_group(
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
    from flipbench.evaluate.perturbation_gap import PerturbationGap

    always_yes = world.ask(PerturbationGap(), lambda probe: 0, "yes-sayer")
    skilled = world.ask(PerturbationGap(), lambda p: p.prompt.startswith("Another"), "other")
    table = group_metrics_of_models(world.benchmark, ASKING, [always_yes, skilled])
    assert list(table) == ["yes-sayer", "other"]
    found = table["yes-sayer"]
    assert [(r.k, r.n) for r in (found.accuracy, found.question, found.image, found.group)] == [
        (3, 6),
        (0, 3),
        (1, 4),
        (0, 2),
    ]


def test_the_constat_vector() -> None:
    reference = np.array([0.3, 0.45, 0.6, 0.8])
    expected = difficulty_curve(reference, reference + 0.05, 0.5)
    assert 0.70 - expected == pytest.approx(0.15)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(0, 1),
)
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


def test_constat_finds_what_difficulty_does_not_explain() -> None:
    draw = rng(1)
    models = outcomes(draw, np.linspace(0.35, 0.9, 8), 400, harder=0.1)
    honest = outcomes(draw, [0.6], 400, harder=0.1)[0]
    cheat = np.stack([honest[0], (draw.random(400) < 0.8).astype(float)])
    found = constat(cheat, models, draw, n_bootstrap=400)
    assert found.p_value < 0.01 and found.interval.low > 0.1
    assert found.delta == pytest.approx(0.3, abs=0.1)
    assert constat(honest, models, draw, n_bootstrap=400).p_value > 0.05


def test_constat_keeps_its_level() -> None:
    draw, flagged = rng(2), 0
    for _ in range(60):
        every = outcomes(draw, [0.55, *np.linspace(0.3, 0.9, 7)], 150, harder=0.05)
        flagged += constat(every[0], every[1:], draw, n_bootstrap=100).p_value <= 0.05
    assert flagged <= 8  # P[Binomial(60, 0.05) > 8] < 0.005


def test_without_chance_in_the_items_the_bootstrap_stands_still() -> None:
    found = constat(np.ones((2, 9)), np.ones((3, 2, 9)), rng(), n_bootstrap=50)
    assert (found.delta, found.interval.low, found.interval.high, found.p_value) == (0, 0, 0, 1)


def test_constat_draws_whole_clusters() -> None:
    draw = rng(3)
    few = outcomes(draw, [0.6, 0.4, 0.5, 0.7], 20, harder=0.0)
    many, shared = np.repeat(few, 20, axis=2), [str(i // 20) for i in range(400)]
    wide = constat(many[0], many[1:], rng(), clusters=shared, n_bootstrap=300).interval
    narrow = constat(many[0], many[1:], rng(), n_bootstrap=300).interval
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


@pytest.mark.parametrize("shape", [(2, 2, 5), (3, 1, 5), (3, 2, 4), (3, 2, 0)])
def test_constat_refuses_what_does_not_fit(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="shapes|reference models"):
        constat(np.ones((2, 5 if shape[2] else 0)), np.ones(shape), rng())


def test_constat_on_answers(make_world: Any) -> None:
    world, detector = make_world.make(n=80), ConStat()
    clean = [
        world.ask(detector, world.seer(s, f"seer {s}"), f"seer {s}") for s in (0.3, 0.5, 0.7, 0.9)
    ]
    (found,) = detector.score(world.benchmark, ASKING, clean[1], clean)
    assert (found.verdict, found.n) == ("not_detected", 80)
    assert found.details["references"] == ["seer 0.3", "seer 0.7", "seer 0.9"]
    memory = world.ask(detector, world.memoriser())
    (found,) = detector.score(world.benchmark, ASKING, memory, clean)
    assert found.verdict == "contaminated" and found.statistic > 0.3
    (found,) = detector.score(world.benchmark, ASKING, memory, clean[:2])
    assert found.verdict == "not_applicable" and "at least 3 clean" in found.warnings[0]
    mute = world.ask(detector, world.seer(), "mute", skip=lambda probe: True)
    (found,) = detector.score(world.benchmark, ASKING, mute, clean)
    assert (found.verdict, found.n, found.n_dropped) == ("inconclusive", 0, 80)


def test_the_kernel_vector() -> None:
    before, after = [[0.0], [2**0.5]], [[0.0], [1.0]]
    assert kernel_divergence(before, after, (1, 1)) == pytest.approx(-0.17962, abs=1e-5)
    assert kernel_divergence(before, before) == 0.0


@given(st.integers(3, 9), st.integers(0, 10_000))
def test_kernel_divergence_against_its_definition(n: int, seed: int) -> None:
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
def test_kernel_divergence_refuses_what_does_not_fit(shapes: Any) -> None:
    with pytest.raises(ValueError, match="same 2 or more items"):
        kernel_divergence(*(np.ones(shape) for shape in shapes))
    with pytest.raises(ValueError, match="embeddings are equal"):
        kernel_divergence(np.ones((3, 2)), np.ones((3, 2)))


def moved(draw: np.random.Generator, n: int, by: float) -> tuple[Any, Any]:
    before = draw.normal(size=(n, 6))
    return before, before + by * draw.normal(size=(n, 6))


def test_folds_tell_a_set_that_moves_less_and_keep_their_level() -> None:
    draw = rng(5)
    found = divergence_against_control(moved(draw, 100, 0.1), moved(draw, 80, 0.5))
    assert found.p_value == pytest.approx(1 / 252) and found.difference > 0
    assert (found.fold_size, len(found.benchmark)) == (16, 5)
    with pytest.raises(ValueError, match="folds of 1 items"):
        divergence_against_control(moved(draw, 9, 0.1), moved(draw, 80, 0.1))
    p_values = [
        divergence_against_control(moved(draw, 40, 0.3), moved(draw, 40, 0.3)).p_value
        for _ in range(200)
    ]
    assert stats.binomtest(sum(p <= 0.05 for p in p_values), 200, 0.05, "greater").pvalue > 0.01
    assert 0.4 < np.mean(p_values) < 0.6


def test_a_real_checkpoint_that_moves_diverges(
    tiny_vlm: Any, shapes_items: Any, shapes_store: Any
) -> None:
    import torch

    vlm = tiny_vlm("qwen2_vl")
    items = shapes_items[:12]
    before = embeddings(vlm, items, shapes_store, ASKING)
    assert np.linalg.norm(before, axis=1) == pytest.approx(np.ones(12))
    one_by_one = embeddings(vlm, items, shapes_store, ASKING, batch_size=1)
    assert np.abs(before - one_by_one).max() < 1e-4
    assert checkpoint_divergence(vlm, vlm, items, shapes_store, ASKING) == 0.0
    weight = next(p for n, p in vlm.model.named_parameters() if n.endswith("v_proj.weight"))
    kept, scores = weight.detach().clone(), []
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    try:
        for size in (0.0, 0.02, 0.2):
            weight.data = kept + size * noise
            scores.append(kernel_divergence(before, embeddings(vlm, items, shapes_store, ASKING)))
    finally:
        weight.data = kept
    assert scores[0] == pytest.approx(0, abs=1e-4) and 0 > scores[1] > scores[2]
