"""The requirements: the paper's printed marks, recomputed, and grids made by hand."""

import csv
from pathlib import Path
from typing import Any

import pytest

from flipbench.core.errors import DataError
from flipbench.core.records import Score
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.protocol import rules
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.evaluate.validation.requirements import requirements, success

TABLES = Path(__file__).parents[2] / "published" / "perturbation_main_tables.csv"
COLUMNS = ("clean", "lora1", "lora2", "lora3", "sft1", "sft2", "sft3")
METRICS = {
    "perturbation_gap": "perturbed",
    "circular_eval": "circular",
    "choice_confusion": "generalised",
    "text_only_leakage": "text_only",
}
RULES = {
    "perturbation_gap": "sign",
    "circular_eval": "paper",
    "choice_confusion": "sign",
    "text_only_leakage": "paper",
}


def published() -> dict[tuple[str, str, str], dict[str, str]]:
    with TABLES.open() as file:
        return {(r["model"], r["bench"], r["metric"]): r for r in csv.DictReader(file)}


ROWS = published()
CELLS = sorted({(model, bench) for model, bench, _ in ROWS})


def grid() -> list[GridModel]:
    found = []
    for model, bench in CELLS:
        found.append(GridModel(f"{model} clean", f"{model} clean", model, "clean", 0, 0))
        for strategy in ("lora", "sft"):
            for epoch in (1, 2, 3):
                name = f"{model} {bench} {strategy}{epoch}"
                found.append(GridModel(name, name, model, strategy, epoch, epoch))
    return list({m.fingerprint: m for m in found}.values())


def count(model: str, bench: str, metric: str, column: str) -> tuple[int, int]:
    """Return the k of N right answers that a printed percentage stands for."""
    row = ROWS[model, bench, metric]
    return round(float(row[column]) * int(row["N"]) / 100), int(row["N"])


def score_of(detector: str, model: str, bench: str, column: str) -> Score:
    """Put printed accuracies through the detector's own rule."""
    k, n = count(model, bench, METRICS[detector], column)
    k_clean, _ = count(model, bench, METRICS[detector], "clean")
    k_original, _ = count(model, bench, "original", column)
    k_original_clean, _ = count(model, bench, "original", "clean")
    reference, direction = f"{model} clean", "falls"
    if detector == "text_only_leakage":
        statistic, direction = (k - k_clean) / n, "rises"
        verdict = rules.beyond(statistic, direction="rises")
    elif detector == "circular_eval":
        statistic = (k - k_original) / n
        verdict = rules.beyond(statistic, (k_clean - k_original_clean) / n)
    else:
        statistic, reference = (k - k_original) / n, ""
        verdict = rules.beyond(statistic)
    name = f"{model} clean" if column == "clean" else f"{model} {bench} {column}"
    return Score(
        detector=detector,
        rule=RULES[detector],
        model=name,
        model_fingerprint=name,
        benchmark=bench,
        benchmark_id=bench,
        reference_fingerprint=reference,
        statistic=statistic,
        verdict=verdict,
        n=n,
        direction=direction,
    )


def scores_of(detector: str) -> list[Score]:
    return [score_of(detector, *cell, column) for cell in CELLS for column in COLUMNS]


@pytest.mark.parametrize(
    ("detector", "hits", "weak", "strict", "glyphs"),
    [
        ("perturbation_gap", 24, 8, 7, "✓✓✓"),
        ("choice_confusion", 9, 6, 5, "✗✓▲"),
        ("circular_eval", 21, 3, None, "✗✗▲"),
        ("text_only_leakage", 22, 5, None, "✗✗▲"),
    ],
)
def test_the_paper_s_table_is_reproduced(
    detector: str, hits: int, weak: int, strict: int | None, glyphs: str
) -> None:
    practical = not DETECTORS[detector].about.needs_clean_model(RULES[detector])
    found = requirements(scores_of(detector), grid(), detector, RULES[detector], practical)
    assert found.reliability == (hits, 24) and len(found.misses) == 24 - hits
    assert found.consistency_weak == (weak, 8) and len(found.violations) == 8 - weak
    assert strict is None or found.consistency_strict == (strict, 8)
    marks = found.reliability_glyph + found.practicality_glyph + found.consistency_glyph
    assert marks == glyphs
    assert found.specificity == ((4, 4) if practical else (0, 0))
    assert found.false_alarms == ()


@pytest.mark.parametrize("detector", METRICS)
def test_every_printed_mark_is_reproduced(detector: str) -> None:
    models = {m.fingerprint: m for m in grid()}
    for model, bench in CELLS:
        row = ROWS[model, bench, f"success_{METRICS[detector]}"]
        for column in COLUMNS:
            score = score_of(detector, model, bench, column)
            found = success(score, models[score.model_fingerprint])
            assert {True: "1", False: "0", None: "-"}[found] == row[column], (model, bench, column)


@pytest.mark.parametrize("detector", METRICS)
def test_every_printed_gap_is_reproduced(detector: str) -> None:
    name = {"text_only_leakage": "leak_vs_clean"}.get(detector, f"delta_{METRICS[detector]}")
    for model, bench in CELLS:
        for column in COLUMNS:
            printed = float(ROWS[model, bench, name][column])
            statistic = score_of(detector, model, bench, column).statistic
            assert statistic is not None
            assert 100 * statistic == pytest.approx(printed, abs=0.0151)


def model(name: str, dose: int, strategy: str = "lora", family: str = "f") -> GridModel:
    return GridModel(name, name, family, strategy if dose else "clean", dose, dose)


def score(name: str, statistic: float | None, verdict: str = "contaminated", **other: Any) -> Score:
    return Score(
        **{
            "detector": "d",
            "rule": "r",
            "model": name,
            "model_fingerprint": name,
            "benchmark": "b",
            "benchmark_id": "b",
            "statistic": statistic,
            "verdict": verdict,
            "n": 10,
            "direction": "falls",
            **other,
        }
    )


MODELS = [model("clean", 0), model("e1", 1), model("e2", 2), model("e3", 3)]


def test_a_small_grid_by_hand() -> None:
    scores = [
        score("clean", -0.1, "contaminated"),
        score("e1", -0.2, "not_detected"),
        score("e2", -0.2, "inconclusive"),
        score("e3", -0.4),
        score("e3", 0.9, rule="other"),
        score("stranger", 0.9),
    ]
    found = requirements(scores, MODELS, "d", "r", True)
    assert found.reliability == (1, 3) and found.misses == ("e1", "e2")
    assert (found.consistency_weak, found.consistency_strict) == ((1, 1), (0, 1))
    assert found.specificity == (0, 1) and found.false_alarms == ("clean",)
    assert found.practical
    turned = requirements(scores[::-1], MODELS, "d", "r", True)
    assert turned.reliability == found.reliability
    assert turned.consistency_strict == found.consistency_strict


def test_a_model_without_a_score_is_a_miss() -> None:
    found = requirements([score("clean", 0.1), score("e1", -0.1)], MODELS, "d", "r", True)
    assert found.reliability == (1, 3)
    assert found.misses == ("e2 (no score)", "e3 (no score)")
    assert requirements([], MODELS, "d", "r", True).reliability == (0, 0)


def test_the_clean_model_is_part_of_a_dose_series() -> None:
    scores = [score("clean", -0.5, "not_detected"), score("e1", -0.2), score("e2", -0.3)]
    found = requirements(scores, MODELS[:3], "d", "r", True)
    assert found.consistency_weak == (0, 1) and found.violations == ("f, lora",)
    assert requirements(scores[1:], MODELS[:3], "d", "r", True).consistency_weak == (1, 1)


def test_the_reference_of_a_difference_counts_as_zero() -> None:
    scores = [score("clean", None, "not_applicable")]
    scores += [score(f"e{e}", s, reference_fingerprint="clean") for e, s in ((1, 0.1), (2, -0.2))]
    found = requirements(scores, MODELS[:3], "d", "r", True)
    assert found.consistency_weak == (0, 1) and not found.practical
    assert found.specificity == (0, 0) and found.specificity_glyph == "–"


def test_not_applicable_is_not_counted() -> None:
    scores = [score(f"e{e}", None, "not_applicable") for e in (1, 2, 3)]
    found = requirements(scores, MODELS, "d", "r", False)
    assert found.reliability == (0, 0) and found.consistency_weak == (0, 0)


def test_scores_of_one_rule_move_one_way() -> None:
    scores = [score("clean", 0.0), score("e1", 0.1, direction="rises")]
    with pytest.raises(DataError, match=r"d: .* these scores have \['falls', 'rises'\]"):
        requirements(scores, MODELS, "d", "r", True)


def test_a_clean_gap_of_zero_is_a_failure_of_the_sign_rule() -> None:
    clean = score("clean", 0.0, "not_detected", rule="sign")
    assert success(clean, MODELS[0]) is False
    assert success(clean.model_copy(update={"rule": "mcnemar"}), MODELS[0]) is True
    assert success(score("e1", None, "inconclusive"), MODELS[1]) is None


def test_real_scores_of_simulated_models(world: Any) -> None:
    """A series that memorises more and more comes out reliable, consistent and specific."""
    detector = DETECTORS["perturbation_gap"]
    memory, sight = world.memoriser(), world.seer()
    share = {"clean": 0, "e1": 12, "e2": 24, "e3": 40}
    scores = []
    for name, k in share.items():
        learnt = {i.id for p in world.benchmark.pairs[:k] for i in (p.original, p.perturbed)}
        answers = world.ask(
            detector, lambda p, learnt=learnt: (memory if p.item_id in learnt else sight)(p), name
        )
        scores += world.scores(detector, answers).values()
    models = [
        GridModel(m.name, f"fingerprint of {m.name}", "f", m.strategy, m.epoch, m.dose)
        for m in MODELS
    ]
    found = requirements(scores, models, "perturbation_gap", "mcnemar", True)
    assert found.reliability == (3, 3) and found.consistency_strict == (1, 1)
    assert found.specificity == (1, 1)
