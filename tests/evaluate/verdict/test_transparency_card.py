"""The transparency card says what was measured, and that nothing was where that is so."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flipbench.core.errors import DataError
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.page.gallery import Gallery
from flipbench.evaluate.report.results import read_results
from flipbench.evaluate.report.titles import GAP
from flipbench.evaluate.verdict.transparency_card import (
    card_of,
    checks_table,
    markdown,
    write_card,
)
from flipbench.evaluate.verdict.verdict_page import VerdictPage, as_json
from tests.fixtures.policies import by_hand
from tests.fixtures.verdicts import judge

STUDY = Path(__file__).parents[3] / "docs/results/demo.json"


def detected(folder: Path, world: Any, *models: Any, **changes: Any) -> Path:
    """Write the JSON files of a detection into its report folder; return the run directory."""
    finding = replace(judge(world, *models, **changes), not_run={"min_k": "it asks"})
    page = VerdictPage(finding, [], {}, {"command": "flipbench detect …"})
    report = folder / "report"
    report.mkdir(parents=True)
    rows = "".join(score.model_dump_json() + "\n" for score in finding.scores)
    (report / "scores.jsonl").write_text(rows)
    verdict = as_json(page, Gallery((), len(world.benchmark.pairs), 0, 0))
    (report / "verdict.json").write_text(json.dumps(verdict))
    return folder


@pytest.fixture
def run(make_world: Any, tmp_path: Path) -> Path:
    """Return the run of a model that knows the originals, compared with one that looks."""
    world = make_world.make(n=100)
    return detected(tmp_path / "run", world, world.memoriser(), world.seer(0.8))


def replace_fingerprint(run: Path, fingerprint: str) -> Path:
    path = run / "report" / "verdict.json"
    verdict = json.loads(path.read_text())
    path.write_text(json.dumps(verdict | {"model_fingerprint": fingerprint}))
    return run


@pytest.mark.slow
def test_a_result_that_correction_takes_away_says_so(run: Path) -> None:
    path = run / "report" / "verdict.json"
    verdict = json.loads(path.read_text())
    (confusion,) = [
        one for one in verdict["other_detectors"] if one["detector"] == "choice_confusion"
    ]
    remark = "not significant once corrected for the number of detectors"
    for p_holm, verdict_of_it, expected in (
        (0.2, "contaminated", True),
        (0.01, "contaminated", False),
        (0.2, "not_detected", False),
    ):
        confusion |= {"p_holm": p_holm, "verdict": verdict_of_it}
        path.write_text(json.dumps(verdict))
        checks = {check.detector: check for check in card_of(run).checks}
        assert (remark in checks["choice_confusion"].remarks) == expected


def cells(card: Any) -> dict[str, dict[str, str]]:
    """Return the table of the checks as rule, then column, to text."""
    table = checks_table(card)
    names = [column.header for column in table.columns]
    return {
        f"{row.header}, {row.cells[0].plain()}": dict(
            zip(names, (cell.plain() for cell in row.cells), strict=True)
        )
        for row in table.rows
    }


@pytest.mark.slow
def test_a_card_without_a_study_states_no_error_rates(run: Path) -> None:
    card = card_of(run)
    assert [finding.verdict for finding in card.findings] == ["contaminated"]
    rows = cells(card)
    for row in rows.values():
        assert row["Contaminated models caught, %"] == "not measured"
        assert row["Clean models flagged, %"] == "not measured"
    assert rows["Perturbation gap, vs clean"]["Result"] == "contaminated"
    assert "100/100" in rows["Perturbation gap, vs clean"]["Measured"]
    text = markdown(card)
    assert "## Error rates\n\nNot measured." in text
    assert "does not mean clean" in text and "were not searched" in text
    assert card.not_checked["min_k"] == "it asks" and "Min-K %: it asks" in text
    assert card.not_checked["guided_prompting"] == "not run"
    checked = {check.detector for check in card.checks}
    assert checked | set(card.not_checked) == set(DETECTORS) and not checked & set(card.not_checked)


@pytest.mark.slow
def test_error_rates_are_those_of_the_same_rule_in_the_study(run: Path) -> None:
    card = card_of(run / "report", STUDY)
    known = {(one.detector, one.rule): one for one in read_results(STUDY).detectors}
    rows = cells(card)
    gap = rows["Perturbation gap, vs clean"]
    assert gap["Contaminated models caught, %"].startswith("100.0 (8/8)")
    assert len(card.checks) == 3
    for check in card.checks:
        one = known[check.detector, check.rule]
        assert check.detected is not None and check.false_alarms is not None
        assert (check.detected.k, check.detected.n) == (one.detected.k, one.detected.n)
        assert check.detected.interval == one.detected.interval
        assert (check.false_alarms.k, check.false_alarms.n) == (
            one.false_alarms.k,
            one.false_alarms.n,
        )
    text = markdown(card)
    assert "8 contaminated and 10 clean models of 2 lineages" in text
    assert "need not hold for other models" in text and "one of those behind" not in text
    assert "measured with 320 pairs, and this model was asked 100" in text
    among = replace_fingerprint(run, read_results(STUDY).models[0].fingerprint)
    assert "This model is one of those behind the error rates." in markdown(card_of(among, STUDY))


@pytest.mark.slow
def test_a_verdict_that_was_withheld_stays_withheld(make_world: Any, tmp_path: Path) -> None:
    world = make_world.make(n=12)
    noise = by_hand(world, [i < 10 for i in range(12)], [i in (0, 1, 11) for i in range(12)])
    card = card_of(detected(tmp_path, world, noise, made_by={}))
    (finding,) = card.findings
    gap = card.checks[0]
    assert (finding.verdict, gap.verdict, gap.detector) == ("inconclusive", "inconclusive", GAP)
    assert any(
        "edited images may be harder than their originals" in remark for remark in gap.remarks
    )


def test_a_study_s_card_states_its_own_error_rates() -> None:
    card = card_of(STUDY)
    assert len(card.findings) == 18 and not card.is_of_one_model
    rows = cells(card)
    assert rows["Guided prompting, permutation test"]["Clean models flagged, %"] == (
        "40.0 (4/10) [5.7, 84.5]"
    )
    caught = rows["Guided prompting, permutation test"]["Contaminated models caught, %"]
    assert caught == "not measured (letters must not set it off)", "they cannot test it"
    assert {"Perturbation gap, vs clean", "Perturbation gap, McNemar test"} <= set(rows)
    text = markdown(card)
    assert "were not searched" not in text
    assert text.count("contaminated**. Perturbation gap, vs clean") == 8


def test_a_report_is_found_by_its_run_directory(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    shutil.copy(STUDY, tmp_path / "report" / "results.json")
    assert card_of(tmp_path) == card_of(tmp_path / "report") == card_of(STUDY)


def test_the_files_hold_the_same_card(tmp_path: Path) -> None:
    card = card_of(STUDY)
    page, data = write_card(card, tmp_path)
    assert page.read_text() == markdown(card)
    assert type(card).model_validate_json(data.read_text()) == card


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no verdict.json or results.json"):
        card_of(tmp_path)
    with pytest.raises(DataError, match="leave --rates out"):
        card_of(STUDY, STUDY)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(DataError, match=r"not a report's results.json"):
        card_of(tmp_path)
    (tmp_path / "verdict.json").write_text("{}")
    (tmp_path / "scores.jsonl").write_text("")
    with pytest.raises(DataError, match=r"damaged verdict.json.*run flipbench detect again"):
        card_of(tmp_path)
