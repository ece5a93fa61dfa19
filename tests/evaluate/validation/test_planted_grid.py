"""A grid with planted answers: what each detector is worth is known before it is computed."""

from __future__ import annotations

import csv
from dataclasses import replace
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipbench.core.errors import DataError
from flipbench.core.records import Score
from flipbench.evaluate.protocol.grid import GridModel, reference_of
from flipbench.evaluate.report.score_frame import score_frame
from flipbench.evaluate.report.score_tables import other_table
from flipbench.evaluate.report.titles import families, label
from flipbench.evaluate.report.validation_figures import make_validation_figures, overview_heats
from flipbench.evaluate.report.validation_tables import (
    by_default_rule,
    detectors_table,
    validation_frame,
    validation_table,
)
from flipbench.evaluate.validation.dose import Series, trend
from flipbench.evaluate.validation.requirements import requirements
from flipbench.evaluate.validation.validation import (
    ExternalAlarms,
    Validation,
    external_alarms,
    validate,
)
from flipbench.reporting import writers

SEEDS = range(4)
DOSES = (1, 2, 4)


def planted_grid() -> list[GridModel]:
    """Four clean seeds; of each, five clean fine-tunes and two strategies at three doses."""
    grid = []
    for seed in SEEDS:
        lineage = f"seed {seed}"
        base = GridModel(f"base {seed}", f"base {seed}", "f", "clean", 0, 0, lineage)
        grid.append(base)
        for epoch in range(1, 6):
            name = f"other {seed} {epoch}"
            grid.append(GridModel(name, name, "f", "LoRA", epoch, 0, lineage))
        for strategy in ("LoRA", "full"):
            for epoch, dose in enumerate(DOSES, 1):
                name = f"{strategy} {seed} {dose}"
                grid.append(GridModel(name, name, "f", strategy, epoch, dose, lineage))
    for name in ("blip2", "instructblip"):
        grid.append(GridModel(name, name, name, "clean", 0, 0, external=True))
    return grid


GRID = planted_grid()


def score(
    model: GridModel, detector: str, statistic: float | None, verdict: str, **more: Any
) -> Score:
    values = {
        "detector": detector,
        "rule": "planted",
        "model": model.name,
        "model_fingerprint": model.fingerprint,
        "benchmark": "b",
        "benchmark_id": "b",
        "statistic": statistic,
        "unit": "nats",
        "verdict": verdict,
        "n": 100,
        "direction": "falls",
    }
    return Score(**(values | more))


def planted_scores() -> list[Score]:
    scores = []
    for at, m in enumerate(GRID):
        # perfect: falls with the dose; called contaminated from dose 2 on
        flagged = "contaminated" if m.dose >= 2 else "not_detected"
        scores.append(score(m, "perfect", -float(m.dose), flagged))
        # any training at all sets it off, whatever the data: 20 of 26 clean models
        trained = m.strategy != "clean"
        verdict = "contaminated" if trained else "not_detected"
        scores.append(score(m, "training", float(trained), verdict, direction="rises"))
        # goes the wrong way, and fires on one external model
        verdict = "contaminated" if m.name == "blip2" else "not_detected"
        scores.append(score(m, "upside_down", m.dose + at / 1000, verdict))
        # compares with the clean model, which has nothing to compare itself with
        base = reference_of(m, GRID)
        if base is None:
            scores.append(score(m, "relative", None, "not_applicable"))
        else:
            scores.append(
                score(m, "relative", -float(m.dose), "inconclusive" if m.dose == 1 else flagged,
                      reference_fingerprint=base.fingerprint)
            )  # fmt: skip
    return scores


SCORES = planted_scores()


@pytest.fixture(scope="module")
def found() -> dict[str, Validation]:
    return {v.detector: v for v in validate(SCORES, GRID)}


def test_planted_detectors_are_validated_as_designed(found: dict[str, Validation]) -> None:
    v = found["perfect"]
    assert v.separation is not None and v.separation.auroc == 1.0
    assert (v.separation.n_clean, v.separation.n_contaminated) == (26, 24)
    assert v.separation.n_clusters == 6 and not v.untestable and not v.wrong_direction
    assert v.separation.within is not None and v.separation.within.n_pairs == 4 * 6 * 6
    assert [(p.detected.k, p.detected.n) for p in v.separation.points] == [(24, 24)] * 3
    assert (v.untouched_alarms.k, v.untouched_alarms.n) == (0, 6)
    assert (v.finetuned_alarms.k, v.finetuned_alarms.n) == (0, 20)
    assert v.finetuned_alarms.interval is not None and v.finetuned_alarms.pooled is not None
    assert v.finetuned_alarms.pooled.high == pytest.approx(1 - 0.025 ** (1 / 20))
    high = v.finetuned_alarms.interval.high
    assert v.finetuned_alarms.pooled.high < high < 1 - 0.025 ** (1 / 4), "more than four models"
    assert (v.finetuned_alarms.n_clusters, v.untouched_alarms.n_clusters) == (4, 6)
    assert {dose: (r.k, r.n) for dose, r in v.power.items()} == {1: (0, 8), 2: (8, 8), 4: (8, 8)}
    assert (v.detected.k, v.detected.n) == (16, 24) and v.alarms.k == 0
    assert (v.trend.in_order, v.trend.n_steps) == (24, 24)
    assert v.trend.correlation == 1.0 and v.trend.p_value == pytest.approx(1e-4)
    assert (v.external_alarms.flagged, v.external_alarms.n) == (
        (),
        2,
    ) and not v.external_alarms.suspected


def test_clean_finetunes_expose_a_detector_of_mere_training(found: dict[str, Validation]) -> None:
    v = found["training"]
    assert (v.untouched_alarms.k, v.untouched_alarms.n) == (0, 6)
    assert (v.finetuned_alarms.k, v.finetuned_alarms.n) == (20, 20)
    assert (v.alarms.k, v.alarms.n) == (20, 26)
    assert v.separation is not None
    assert v.separation.auroc == pytest.approx((6 + 20 / 2) / 26)
    assert [p.detected.k for p in v.separation.points] == [0, 0, 0]
    assert (v.detected.k, v.detected.n) == (24, 24)
    assert (v.trend.in_order, v.trend.n_steps) == (8, 24)
    assert v.trend.correlation == pytest.approx(3 / 6)


def test_a_detector_that_fires_on_an_external_model_is_an_artifact(
    found: dict[str, Validation],
) -> None:
    v = found["upside_down"]
    assert v.external_alarms == ExternalAlarms(("blip2",), 2) and v.external_alarms.suspected
    assert v.external_alarms.by_chance() == pytest.approx(1 - 0.95**2)
    assert v.external_alarms.by_chance(0.5) == pytest.approx(1 - 0.5**2)
    assert v.separation is not None and v.separation.auroc == 0.0 and v.wrong_direction
    assert v.trend.in_order == 0 and v.trend.correlation == -1.0 and v.trend.p_value == 1.0
    suspected = {key for key, a in external_alarms(SCORES, GRID).items() if a.suspected}
    assert suspected == {("upside_down", "planted", "b")}
    table = other_table(GRID, score_frame(SCORES, GRID))
    assert table is not None
    (at,) = (
        i for i, c in enumerate(table.columns) if (c.group, c.header) == ("upside down", "Planted")
    )
    shown = [row.cells[at].plain() for _, rows in table.groups for row in rows]
    assert shown.count("false alarm suspected (not detected)") == len(GRID) - 1
    assert shown.count("false alarm suspected (contaminated)") == 1


def test_an_artifact_is_suspected_only_on_its_own_benchmark() -> None:
    other = [s.model_copy(update={"benchmark": "c", "benchmark_id": "c"}) for s in SCORES]
    other = [s.model_copy(update={"verdict": "not_detected"}) for s in other]
    both = {(v.detector, v.benchmark): v.external_alarms for v in validate([*SCORES, *other], GRID)}
    assert both["upside_down", "b"].suspected and not both["upside_down", "c"].suspected


def test_a_reference_model_does_not_count_as_evidence(found: dict[str, Validation]) -> None:
    v = found["relative"]
    assert v.untouched_alarms.n == 0 and (v.finetuned_alarms.k, v.finetuned_alarms.n) == (0, 20)
    assert v.separation is not None and v.separation.n_clean == 20
    assert {dose: (r.k, r.n) for dose, r in v.power.items()} == {1: (0, 8), 2: (8, 8), 4: (8, 8)}
    assert (v.trend.in_order, v.trend.n_steps) == (24, 24)
    assert [p.estimable for p in v.separation.points] == [True, False, True]
    own = [
        s.model_copy(update={"reference_fingerprint": s.model_fingerprint, "statistic": 0.0})
        for s in SCORES
        if s.detector == "relative" and s.verdict == "not_applicable"
    ]
    rest = [s for s in SCORES if s.detector == "relative" and s.statistic is not None]
    (again,) = validate([*own, *rest], GRID)
    assert again.separation == replace(v.separation)


def test_models_without_a_statistic_are_named() -> None:
    gone = score(GRID[1], "perfect", None, "inconclusive")
    rest = [s for s in SCORES if s.detector == "perfect" and s.model != GRID[1].name]
    (v,) = validate([gone, *rest], GRID)
    assert v.unranked == (GRID[1].name,) and v.separation is not None
    assert v.separation.n_clean == 25 and v.finetuned_alarms.n == 20
    assert "omit 1 verdicts without a statistic" in validation_table([v]).caption


def test_order_changes_nothing(found: dict[str, Validation]) -> None:
    again = {v.detector: v for v in validate(SCORES[::-1], GRID[::-1])}
    for name, v in found.items():
        assert again[name].separation == v.separation and again[name].power == v.power
        assert again[name].trend == v.trend


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=5))
def test_the_trend_test_equals_enumeration(values: list[int]) -> None:
    n = len(values)
    line = Series("s", tuple(range(n)), tuple(map(float, values)))
    got = trend([line], True, np.random.default_rng(0), n_permutations=2_000)
    assert (got.in_order, got.n_steps) == (sum(a < b for a, b in pairwise(values)), n - 1)

    def agreement(order: tuple[int, ...]) -> int:
        return sum(int(np.sign(order[j] - order[i])) for i in range(n) for j in range(i + 1, n))

    assert got.correlation == pytest.approx(agreement(tuple(values)) / (n * (n - 1) / 2))
    every = [agreement(order) for order in permutations(values)]
    exact = np.mean([x >= agreement(tuple(values)) for x in every])
    assert got.p_value == pytest.approx(exact, abs=0.05)
    falling = trend([line], False, np.random.default_rng(0), n_permutations=10)
    assert falling.correlation == pytest.approx(-got.correlation)


def test_without_a_dose_series_there_is_no_trend() -> None:
    got = trend([], True, np.random.default_rng(0))
    assert got.n_steps == 0 and got.p_value is None and np.isnan(got.correlation)


def test_a_model_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(DataError, match="x: a dose of 2 for a model that cannot have seen"):
        GridModel("x", "x", "f", "LoRA", 1, 2, external=True)
    with pytest.raises(DataError, match="x: dose -1 is negative"):
        GridModel("x", "x", "f", "LoRA", 1, -1)


@pytest.mark.parametrize(("strategy", "external"), [("clean", False), ("unknown", True)])
def test_an_unknown_history_is_neither_clean_nor_external(strategy: str, external: bool) -> None:
    with pytest.raises(DataError, match="x: .*a dose of unknown"):
        GridModel("x", "x", "f", strategy, 0, None, external=external)


@pytest.mark.slow
def test_models_of_unknown_dose_are_shown_but_do_not_count(
    found: dict[str, Validation], tmp_path: Path
) -> None:
    strangers = [GridModel(name, name, "f", "history unknown", 0, None, "seed 0") for name in "xy"]
    grid, alone = [*GRID, *strangers], GridModel("z", "z", "z", "history unknown", 0, None)
    unknown = [score(m, "perfect", -9.0, "contaminated") for m in strangers]
    unknown += [score(m, "relative", -9.0, "contaminated", reference_fingerprint="base 0")
             for m in strangers]  # fmt: skip
    again = {v.detector: v for v in validate([*SCORES, *unknown], grid)}
    assert again == found
    needed = requirements([*SCORES, *unknown], grid, "perfect", "planted", True)
    assert needed == requirements(SCORES, GRID, "perfect", "planted", True)
    assert (
        reference_of(strangers[0], grid) == GRID[0] and reference_of(alone, [*grid, alone]) is None
    )
    assert all(reference_of(m, strangers) is None for m in GRID)
    table = other_table(grid, score_frame([*SCORES, *unknown], grid))
    assert table is not None
    rows = {row.header: row for _, rows in table.groups for row in rows}
    assert [row.header for row in table.groups[0][1]][-2:] == ["x", "y"]
    headers = [(c.group, c.header) for c in table.columns]
    cell = rows["x"].cells[headers.index(("perfect", "Planted"))]
    assert (cell.plain(), rows["x"].cells[0].text) == ("contaminated", "unknown"), "no mark"
    validations = list(found.values())
    make_validation_figures(validations, grid, [*SCORES, *unknown], tmp_path)
    assert any("detectors_by_models" in path.name for path in tmp_path.iterdir())
    heats = overview_heats(validations, grid, [*SCORES, *unknown])
    assert [name for heat in heats.values() for name in heat.names if name in "xy"] == ["x", "y"]


def test_references_come_from_the_model_s_own_lineage() -> None:
    by_name = {m.name: m for m in GRID}
    assert reference_of(by_name["other 2 1"], GRID) == by_name["base 2"]
    assert reference_of(by_name["full 3 4"], GRID) == by_name["base 3"]
    assert reference_of(by_name["base 3"], GRID) is None


def test_clean_finetunes_are_labelled() -> None:
    of_seed = [m for m in GRID if m.lineage == "seed 1"]
    (models,) = families(of_seed).values()
    names = [label(m, models) for m in models]
    assert names[:2] == ["clean", "LoRA, epoch 1 (other data)"]
    assert [m.clean for m in models] == [True] * 6 + [False] * 6


def test_the_table_is_the_same_in_every_format(
    found: dict[str, Validation], tmp_path: Path
) -> None:
    validations = list(found.values())
    table = validation_table(validations)
    rows = dict(zip([c.header for c in table.columns], table.groups[0][1][0].cells, strict=True))
    assert (
        rows["AUROC"].text == "1.00"
        and rows["Power"].plain() == "16/24 [41.7, 84.8] pooled [46.7, 82.0]"
    )
    assert rows["TPR at FPR 1 %"].plain() == "not estimable (needs 100 clean)"
    assert rows["TPR at FPR 5 %"].text == "24/24"
    alarms = rows["False alarms: clean fine-tunes"].plain()
    assert alarms == "0/20 [0.0, 45.1] pooled [0.0, 16.8] too few models"
    assert rows["AUROC within lineages"].plain() == "1.00 [0.91, 1.00] 144/144 pairs"
    assert rows["External models"].plain() == "0/2 flagged"
    assert "smallest false-positive rate above 0 is 1/20 = 5.0 %" in table.caption
    text = writers.markdown(table)
    assert "false alarm suspected (1/2 flagged: blip2; by chance 10 % at level 0.05)" in text
    assert "pooled [0.00, 0.08]; wrong direction" in text
    tex = writers.latex(table)
    assert (
        r"\toprule" in tex
        and r"AUROC within lineages & TPR at 0 false alarms & TPR at FPR 1 \%" in tex
    )
    assert tex.count("{") - tex.count(r"\{") == tex.count("}") - tex.count(r"\}")
    (tmp_path / "v.csv").write_text(writers.frame_csv(validation_frame(validations)))
    with (tmp_path / "v.csv").open(newline="", encoding="utf-8") as file:
        lines = {(r["detector"], r["quantity"]): r for r in csv.DictReader(file)}
    assert float(lines["training", "auroc"]["value"]) == pytest.approx(16 / 26)
    assert (lines["perfect", "power_at_dose_2"]["k"], lines["perfect", "power"]["n"]) == ("8", "24")
    assert lines["perfect", "false_alarms_finetuned"]["n_lineages"] == "4"
    assert lines["perfect", "tpr_at_fpr_0.01"]["note"].startswith("not estimable")
    assert lines["upside_down", "external_models"]["note"] == "false alarm suspected: blip2"


def test_detectors_are_ranked_by_their_default_rule() -> None:
    """Detectors that are known go by their default rule; others have none to go by."""
    scores = [
        s.model_copy(update={"detector": known, "rule": rule})
        for s in SCORES
        for planted, known, rule in (
            ("perfect", "perturbation_gap", "mcnemar"),
            ("perfect", "perturbation_gap", "sign"),
            ("training", "circular_eval", "relative"),
        )
        if s.detector == planted
    ]
    validations = validate([*scores, *SCORES], GRID)
    assert by_default_rule(validate(SCORES, GRID)) == []
    assert [v.rule for v in by_default_rule(validations)] == ["mcnemar", "relative"]
    table = detectors_table(validations, GRID, scores)
    ((name, rows),) = table.groups
    assert name == "Made to catch: letters, answer texts"
    assert [row.header for row in rows] == ["Perturbation gap", "CircularEval"]
    first = dict(zip([c.header for c in table.columns], rows[0].cells, strict=True))
    assert first["AUROC"].text == "1.00" and first["Contaminated models caught"].text == "16/24"
    assert first["Clean models flagged"].text == "0/26", "released and fine-tuned together"
    assert [row.cells[-1].text for row in rows] == ["no", "yes"]
    text = writers.markdown(table)
    assert "****" not in text and text.splitlines()[3].startswith("| Perturbation gap |")
    assert r"\textit{}" not in writers.latex(table)
