"""Kept against all items: the paper's table 3, the test's meaning, distributions, real models."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from flipbench.core.images import ImageStore
from flipbench.core.rates import Rate
from flipbench.core.records import Item
from flipbench.core.run import Run
from flipbench.filters.representativeness import (
    AccuracyShift,
    accuracy_shift,
    compare_kept,
    correct_for_models,
    distribution_shift,
    representativeness_tables,
)
from flipbench.models.engine import answers_of, ask
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.options import QUIET

TABLE_3 = Path(__file__).parents[1] / "published" / "filtered_vs_full.csv"


def table_3() -> dict[tuple[str, str], AccuracyShift]:
    """Return the paper's comparisons, as counts that its percentages stand for."""
    rates: dict[tuple[str, str, str], Rate] = {}
    for row in csv.DictReader(TABLE_3.open()):
        benchmark, part = row["quantity"].split("_")
        n = int(row["n"])
        k = round(float(row["value"]) * n / 100)
        assert 100 * k / n == pytest.approx(float(row["value"]), abs=0.011)
        rates[row["model"], benchmark, part] = Rate.wilson(k, n)
    pairs = sorted({(model, benchmark) for model, benchmark, _ in rates})
    shifts = [
        accuracy_shift(f"{model} {benchmark}", *(rates[model, benchmark, p] for p in PARTS))
        for model, benchmark in pairs
    ]
    return dict(zip(pairs, correct_for_models(shifts), strict=True))


PARTS = ("all", "filtered")


def test_the_paper_s_kept_items_are_easier_for_one_model() -> None:
    found = table_3()
    assert len(found) == 4
    llava = found["LLaVA-v1.5-7B", "MMStar"]
    assert (llava.everything.k, llava.kept.k) == (493, 187)
    assert 100 * (llava.difference or 0) == pytest.approx(4.91, abs=0.005)
    assert llava.p_adjusted < 0.05
    assert llava.interval and llava.interval.low > 0
    others = [shift for key, shift in found.items() if key != ("LLaVA-v1.5-7B", "MMStar")]
    assert all(s.p_adjusted > 0.1 and s.interval and s.interval.low < 0 for s in others)


def test_the_p_value_is_that_of_a_random_subset() -> None:
    """Draw subsets of the kept size from all items and count differences as improbable."""
    right = np.zeros(300, dtype=bool)
    right[:120] = True
    rng = np.random.default_rng(0)
    drawn = np.array([rng.permutation(right)[:80].sum() for _ in range(20_000)])
    for k_kept in (25, 32, 40, 44):
        shift = accuracy_shift("m", Rate.wilson(120, 300), Rate.wilson(k_kept, 80))
        chance = stats.hypergeom(300, 120, 80).pmf
        as_extreme = np.mean(chance(drawn) <= chance(k_kept) * (1 + 1e-7))
        assert shift.p_value == pytest.approx(as_extreme, abs=0.012)


@pytest.mark.slow
def test_the_interval_has_its_nominal_coverage() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        kept, dropped = int(rng.binomial(100, 0.7)), int(rng.binomial(60, 0.5))
        shift = accuracy_shift("m", Rate.wilson(kept + dropped, 160), Rate.wilson(kept, 100))
        assert shift.interval
        covered += shift.interval.low <= 60 / 160 * 0.2 <= shift.interval.high
    assert 0.92 < covered / 400 < 0.98


def test_a_part_that_does_not_fit_its_whole_is_refused() -> None:
    for kept in (Rate.wilson(5, 20), Rate.wilson(7, 8), Rate.wilson(0, 8)):
        with pytest.raises(ValueError, match="cannot be part of"):
            accuracy_shift("m", Rate.wilson(6, 10), kept)
    for kept in (Rate.wilson(6, 10), Rate.wilson(0, 0)):
        shift = accuracy_shift("m", Rate.wilson(6, 10), kept)
        assert (shift.p_value, shift.interval) == (1.0, None)


def test_a_shift_of_categories_is_detected_and_chance_is_not() -> None:
    rng = np.random.default_rng(2)
    labels = [str(label) for label in rng.integers(0, 4, 400)]
    blind = [bool(x) for x in rng.random(400) < 0.5]
    picky = [bool(rng.random() < (0.8 if label == "0" else 0.4)) for label in labels]
    assert distribution_shift("category", labels, blind).p_value > 0.05
    found = distribution_shift("category", labels, picky)
    assert found.p_value < 0.001 and found.distance > 0.05
    table = np.array([found.kept, np.subtract(found.everything, found.kept)])
    assert stats.chi2_contingency(table, correction=False).pvalue < 0.001
    same = distribution_shift("category", ["a"] * 9, [True] * 3 + [False] * 6)
    assert (same.p_value, same.distance) == (1.0, 0.0)


def test_p_values_of_random_selection_are_uniform() -> None:
    rng = np.random.default_rng(3)
    labels = list("aabbcdef") * 10
    p_values = [
        distribution_shift("x", labels, [bool(x) for x in rng.random(80) < 0.5], seed=s).p_value
        for s in range(60)
    ]
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


@pytest.mark.slow
def test_accuracies_of_real_models_are_compared(
    tiny_vlm: Callable[[str], HuggingFaceVLM],
    shapes_items: list[Item],
    shapes_store: ImageStore,
    tmp_path: Path,
) -> None:
    items = shapes_items[:24]
    with Run(tmp_path) as run:
        run.images.folder = shapes_store.folder
        models = [tiny_vlm("llava"), tiny_vlm("qwen2_vl")]
        probes = [PromptSettings().probe(item, "original") for item in items]
        gold = [item.answer or 0 for item in items]
        outcomes = {}
        for vlm in models:
            ask(probes, vlm, run, run.images, QUIET)
            answers = answers_of(vlm.name, vlm.fingerprint, run).outcomes(probes, gold)
            outcomes[vlm.name] = {i.id: right for i, right in zip(items, answers, strict=True)}
    kept = {item.id for item in items if item.category != items[0].category}
    found = compare_kept(items, kept, outcomes)
    for shift, by_item in zip(found.accuracies, outcomes.values(), strict=True):
        assert shift.everything == Rate.wilson(sum(map(bool, by_item.values())), 24)
        assert shift.kept == Rate.wilson(sum(bool(by_item[i]) for i in kept), len(kept))
    by_what = {d.what: d for d in found.distributions}
    assert by_what["category"].p_value < 0.001
    assert sum(by_what["answer"].kept) == len(kept)
    distributions, accuracies = representativeness_tables(found)
    assert [row.header for row in accuracies.rows] == [vlm.name for vlm in models]
    name, rows = distributions.groups[0]
    assert name == "Category" and rows[-1].header == "total"
    assert [cell.text for cell in rows[-1].cells[:2]] == ["24", str(len(kept))]


def test_what_is_missing_is_named(shapes_items: list[Item]) -> None:
    items = shapes_items[:10]
    kept = {item.id for item in items[:6]}
    only_kept = {item.id: True if item.id in kept else None for item in items}
    everything = dict.fromkeys(only_kept, True)
    found = compare_kept(items, kept, {"a": only_kept, "b": everything})
    assert [shift.model for shift in found.accuracies] == ["b"]
    assert found.kept_only == {"a": Rate.wilson(6, 6)} and found.n_dropped == 4
    distributions, accuracies = representativeness_tables(found)
    assert [row.header for row in accuracies.rows] == ["b", "a"]
    assert accuracies.rows[1].cells[0].text == "not asked"
    assert "any of the 4 items" in accuracies.caption and "missing" not in distributions.caption
    (alone,) = representativeness_tables(compare_kept(items, kept, {}))
    assert alone.caption.endswith("Accuracies are missing: no clean model was asked.")


def test_without_dropped_items_no_model_lacks_answers_to_them(shapes_items: list[Item]) -> None:
    items = shapes_items[:10]
    outcomes = {item.id: None if i < 3 else True for i, item in enumerate(items)}
    found = compare_kept(items, {item.id for item in items}, {"m": outcomes})
    assert not found.kept_only and [shift.n_unanswered for shift in found.accuracies] == [3]


def test_missing_answers_are_dropped_and_counted(shapes_items: list[Item]) -> None:
    items = shapes_items[:10]
    outcomes = {item.id: None if i < 3 else i % 2 == 0 for i, item in enumerate(items)}
    (shift,) = compare_kept(items, {i.id for i in items[:6]}, {"m": outcomes}).accuracies
    assert (shift.n_unanswered, shift.everything, shift.kept) == (
        3,
        Rate.wilson(3, 7),
        Rate.wilson(1, 3),
    )
