"""Commands beside the loop: audit, agreement, review, gap, doctor."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest

from flipbench.evaluate.page import report_page
from flipbench.reporting.writers import records_csv
from tests.fixtures.command_line import Flipbench
from tests.fixtures.flagged_run import flagged_run


@pytest.mark.slow
def test_audit_writes_a_page_of_the_benchmark(flipbench: Flipbench, config: Path) -> None:
    checks = "audit.checks=[duplicates, letter_balance]"
    result = flipbench("audit", config, checks, "--limit", "10", "-q")
    assert result.status == 0, result.err
    assert "10 of 10 items kept" in result.out and "0 of 2 checks" in result.out
    assert (config.parent / result.out.splitlines()[-1]).read_text().startswith("<!doctype html>")
    unknown = flipbench("audit", config, "audit.text_models=[nobody]", "-q")
    assert unknown.status == 2 and "nobody" in unknown.err


def test_agreement_compares_raters_with_a_reference(flipbench: Flipbench, config: Path) -> None:
    assert flipbench("filter", config, "--limit", "6", "-q").status == 0
    result = flipbench("review", config, "--agreement", "--reference", "shapes oracle")
    assert result.status == 0, result.err
    assert "policy" in result.out and "6" in result.out
    nobody = flipbench("review", config, "--agreement")
    assert nobody.status == 2 and "shapes oracle" in nobody.err
    elsewhere = flipbench("review", "runs/elsewhere", "--agreement")
    assert elsewhere.status == 2 and "elsewhere" in elsewhere.err and "filter" in elsewhere.err


def test_a_card_is_written_of_a_report(flipbench: Flipbench, tmp_path: Path) -> None:
    study = Path(__file__).parents[2] / "docs/results/demo.json"
    result = flipbench("card", study, "--out", tmp_path / "card")
    assert result.status == 0 and result.out.startswith("18 models, ")
    assert (tmp_path / "card" / "contamination-card.json").exists()
    refused = flipbench("card", study, "--rates", study)
    assert refused.status == 2 and "leave --rates out" in refused.err


def test_verdicts_are_exported_and_imported_as_csv(flipbench: Flipbench, config: Path) -> None:
    pytest.importorskip("starlette")
    assert flipbench("filter", config, "--limit", "3", "-q").status == 0
    run = config.parent / "runs" / "x"
    out = flipbench("review", run, "--export", "verdicts.csv")
    assert out.status == 0 and Path("verdicts.csv").exists(), out.err
    back = flipbench("review", run, "--import", "verdicts.csv")
    assert back.status == 0 and "3 rows without a decision" in back.out, back.err
    with Path("verdicts.csv").open(encoding="utf-8-sig") as file:
        rows = [row for row in csv.DictReader(file) if not row["rater"]]
    for row, decision in zip(rows, ("keep", "kep", "keep"), strict=True):
        row |= {"rater": "ann", "decision": decision}
    Path("filled.csv").write_text(records_csv(rows))
    some = flipbench("review", run, "--import", "filled.csv")
    assert some.status == 1 and "2 new verdicts" in some.out
    assert "left out: filled.csv:3: decision 'kep' is none of" in some.err
    blind = flipbench("review", run, "--blind", "--export", "v.csv")
    assert blind.status == 2 and "--blind is for the page" in blind.err
    missing = flipbench("review", "nowhere", "--export", "v.csv")
    assert missing.status == 2 and "nowhere" in missing.err


def test_flagged_pairs_are_adjudicated_in_a_spreadsheet(flipbench: Flipbench, config: Path) -> None:
    pytest.importorskip("starlette")
    none = flipbench("review", config, "--flagged", "--agreement")
    assert none.status == 2 and "run 'flipbench audit' with a corpus" in none.err
    flagged_run(config.parent / "runs" / "x", 4)
    assert "none of 4 flagged pairs" in flipbench("review", config, "--flagged", "--agreement").out
    out = flipbench("review", config, "--flagged", "--export", "labels.csv")
    assert out.status == 0 and "4 pairs" in out.out, out.err
    for rater, labels in {"anna": "3333", "ben": "3334"}.items():
        rows = list(csv.DictReader(Path("labels.csv").open(encoding="utf-8-sig")))
        for row, digit in zip(rows, labels, strict=True):
            row |= {"rater": rater, "label": {"3": "same view", "4": "ambiguous"}[digit]}
        Path(f"{rater}.csv").write_text(records_csv(rows))
        taken = flipbench("review", config, "--flagged", "--import", f"{rater}.csv")
        assert taken.status == 0 and "4 new verdicts" in taken.out, taken.err
    result = flipbench("review", config, "--flagged", "--agreement")
    assert "3 of 4 same view, different subject, 1 of 4 ambiguous" in result.out
    assert "2 raters, kappa 0.00" in result.out
    assert Path(result.out.splitlines()[-1]).with_name("adjudication.csv").exists()
    both = flipbench("review", config, "--flagged", "--agreement", "--export", "x.csv")
    assert both.status == 2 and "only one of" in both.err


def test_gap_reads_predictions_from_other_kits(flipbench: Flipbench, tmp_path: Path) -> None:
    for side, gold in (("original", "A"), ("perturbed", "B")):
        rows = "".join(f"{i},A,{gold}\n" for i in range(12))
        (tmp_path / f"{side}.csv").write_text("id,prediction,answer\n" + rows)
    result = flipbench("gap", "original.csv", "perturbed.csv", "--model", "parrot")
    assert result.status == 0, result.err
    assert "parrot" in result.out and "12/12" in result.out and "0/12" in result.out
    as_json = flipbench("gap", "original.csv", "perturbed.csv", "--format", "json")
    assert json.loads(as_json.out)
    wrong = flipbench("gap", "original.csv", "perturbed.csv", "--column", "qid")
    assert wrong.status == 2 and "NAME=COLUMN" in wrong.err


def test_validate_reads_models_that_others_have_asked(
    flipbench: Flipbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_page, "write_report", lambda _, folder: folder / "index.html")
    written = flipbench("validate", tmp_path / "new", "--example")
    models, items = map(pd.read_csv, written.out.splitlines())
    command = "validate {} --items {}".format(*written.out.splitlines())
    assert f"flipbench {command}  #" in written.err
    models[models["family"] == "A"].to_csv("models.csv", index=False)
    items[items["model"] < "B"].to_csv("items.csv", index=False)
    result = flipbench("validate", "models.csv", "--items", "items.csv", "--out", "made")
    assert result.status == 0, result.err
    assert "4 models of 1 lineage: 2 contaminated, 2 clean" in result.out
    assert result.out.endswith("\nmade/index.html\n")
    assert "| Perturbation gap | McNemar test | " in result.out and "| 2/2 [" in result.out
    assert flipbench("validate", "models.csv").status == 2
    Path("items.csv").write_text("model,item,condition,correct\nA clean,1,before,1\n")
    wrong = flipbench("validate", "models.csv", "--items", "items.csv")
    assert wrong.status == 2 and "items.csv, line 2: the condition is 'before'" in wrong.err
    again = flipbench("validate", tmp_path / "new", "--example")
    assert again.status == 2 and "exists" in again.err


def test_doctor_reads_a_table_of_printed_results(flipbench: Flipbench, tmp_path: Path) -> None:
    table = Path(__file__).parents[1] / "published" / "perturbation_main_tables.csv"
    result = flipbench("doctor", table)
    assert result.status == 1 and "43.4" in result.out
    several = flipbench("doctor", table, table.parent / "text_only_baselines.csv")
    assert several.status == 1 and "ngram_accuracy by rule 'paper'" in several.out
    mixed = flipbench("doctor", table, tmp_path)
    assert mixed.status == 2 and "CSV files only" in mixed.err
    missing = flipbench("doctor", "gone.csv")
    assert missing.status == 2 and "gone.csv" in missing.err
