"""The published audit's comparisons of models, recomputed from their printed tables."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from flipbench.core.errors import DataError
from flipbench.evaluate.cohort.falsification import count_external, falsify
from flipbench.evaluate.cohort.top_k import overlap_p
from flipbench.evaluate.published.consistency import possible_counts
from studies.published.__main__ import app
from studies.published.audit import (
    FLOOR,
    AuditRow,
    bonferroni_and_q,
    examine_audit,
    maxima,
    read_audit,
    same_p,
)

PUBLISHED = Path(__file__).parents[2] / "published"
NAMES = ("order_trend", "tail", "topk", "topk_external")
COHORT = (
    "InternVL3-8B",
    "Qwen2.5-VL-7B-Instruct",
    "CheXagent-8b",
    "llava-onevision-qwen2-7b-ov-hf",
)


def table(name: str) -> list[AuditRow]:
    return read_audit(PUBLISHED / f"audit_{name}.csv")


TREND, TAIL, TOP, TOP_EXTERNAL = map(table, NAMES)
ISSUES = examine_audit([TREND, TAIL, TOP, TOP_EXTERNAL])


def p_of(row: AuditRow, column: str = "p") -> float:
    return float(row.number(column) or 0)


def kinds(kind: str) -> list[tuple[str, str]]:
    return [(issue.row.bench, issue.row.model) for issue in ISSUES if issue.kind == kind]


# ---------------------------------------------------------------- what is right comes out


def test_no_printed_figure_is_wrong() -> None:
    assert len(TREND) == 27 and len(TAIL) == 12 and len(TOP) == 6 and len(TOP_EXTERNAL) == 9
    assert [str(issue) for issue in ISSUES if issue.wrong] == []


def test_every_corrected_p_value_is_recomputed() -> None:
    for row, (bonferroni, q) in zip(TREND, bonferroni_and_q(TREND), strict=True):
        assert bonferroni == pytest.approx(p_of(row, "bonf"), abs=7e-5)  # p has six decimals
        assert q == pytest.approx(p_of(row, "q"), abs=7e-5)
    assert sum(p_of(row, "bonf") < 0.01 for row in TREND) == 3
    assert all(p_of(row) == pytest.approx(FLOOR, abs=1e-6) for row in TREND if p_of(row) < 4e-4)
    assert 0.01 / 27 == pytest.approx(3.704e-4, abs=1e-7)


@pytest.mark.parametrize(
    ("bench", "model", "p", "bonferroni"),
    [
        ("slake_en", "Qwen2.5-VL-7B-Instruct", 0.0005, 0.0135),
        ("pathvqa", "blip2-opt-2.7b", 0.0016, 0.0432),
        ("omnimedvqa", "llava-onevision-qwen2-7b-ov-hf", 0.0008, 0.0216),
        ("omnimedvqa", "medgemma-4b-it", 0.0028, 0.0756),
    ],
)
def test_published_bonferroni_values(bench: str, model: str, p: float, bonferroni: float) -> None:
    corrected = dict(zip([(r.bench, r.model) for r in TREND], bonferroni_and_q(TREND), strict=True))
    (row,) = [row for row in TREND if (row.bench, row.model) == (bench, model)]
    assert p_of(row) == p
    assert corrected[bench, model][0] == pytest.approx(bonferroni)


@pytest.mark.parametrize(
    ("bench", "model", "k50", "k100", "n"),
    [
        ("PathVQA", "InternVL3-8B", 2, 0, 6_719),
        ("PathVQA", "CheXagent-8b", 44, 3, 6_719),
        ("PathVQA", "LLaVA-OneVision-7B", 56, 3, 6_719),
        ("SLAKE-En", "CheXagent-8b", 299, 256, 1_061),
        ("SLAKE-En", "LLaVA-OneVision-7B", 304, 257, 1_061),
        ("VQA-RAD", "CheXagent-8b", 1, 0, 451),
    ],
)
def test_every_threshold_share_is_a_count(
    bench: str, model: str, k50: int, k100: int, n: int
) -> None:
    (row,) = [row for row in TAIL if (row.bench, row.model) == (bench, model)]
    for column, k in (("pr50_pct", k50), ("pr100_pct", k100)):
        share = row.number(column)
        assert share is not None and k in possible_counts(share, n)


@pytest.mark.parametrize(("pct", "k"), [("19.79", 210), ("19.23", 204), ("19.60", 208)])
def test_shares_with_the_external_model_are_counts(pct: str, k: int) -> None:
    assert possible_counts(Decimal(pct), 1_061) == [k]


def test_overlaps_follow_from_the_intersections() -> None:
    for row in TOP:
        inter, n = int(row.number("inter") or 0), int(row.number("N") or 0)
        assert p_of(row, "jaccard") == pytest.approx(inter / (50 - inter), abs=5e-4)
        assert p_of(row, "chance") == pytest.approx(625 / n, abs=5e-4)
        assert p_of(row, "lift_calc") == pytest.approx(inter * n / 625, abs=5e-3)
        assert p_of(row, "lift_printed") == round(inter * n / 625)
    shared = [row for row in TOP_EXTERNAL if row.number("inter") is not None]
    assert len(shared) == 6
    for row in shared:
        assert (row.number("inter") or 0) + (row.number("union") or 0) == 50


# ---------------------------------------------------------------- what a reader should know


def test_sorting_by_question_length_did_nothing_in_all_27_cells() -> None:
    assert all(same_p(p_of(row, "abl_release"), p_of(row, "abl_question_len")) for row in TREND)
    found = [issue.what for issue in ISSUES if issue.kind == "order"]
    assert sum("abl_question_len has the p-values of the release" in what for what in found) == 4


def test_sorting_by_answer_length_did_nothing_or_gave_the_floor() -> None:
    no_key = [row for row in TREND if row.bench == "omnimedvqa"]
    assert all(same_p(p_of(row, "abl_answer_len"), p_of(row, "abl_release")) for row in no_key)
    assert {p_of(row, "abl_answer_len") for row in TREND if row not in no_key} == {0.0001}
    assert [row.external for row in TREND].count(True) == 7
    found = [(i.row.bench, i.what) for i in ISSUES if "abl_answer_len" in i.what]
    assert [(bench, "release" in what) for bench, what in found] == [
        ("omnimedvqa", True),
        ("pathvqa", False),
        ("slake_en", False),
        ("vqa_rad", False),
    ]


def test_an_external_baseline_is_itself_significant() -> None:
    assert kinds("baseline") == [("pathvqa", "blip2-opt-2.7b")]


def test_falsification_leaves_slake_and_omnimedvqa() -> None:
    rows = [("order trend", r.bench, r.model, p_of(r), None) for r in TREND]
    results = pd.DataFrame(rows, columns=["rule", "benchmark", "model", "p", "flag"])
    external = {row.model for row in TREND if row.external}
    falsified = falsify(results, external)
    assert count_external(falsified) == (1, "1 of 4 rules fired on external baselines")
    by_model = falsified.set_index(["benchmark", "model"])["status"].to_dict()
    assert by_model["pathvqa", "llava-onevision-qwen2-7b-ov-hf"] == "artefact_suspected"
    assert by_model["slake_en", "Qwen2.5-VL-7B-Instruct"] == "significant"
    assert list(by_model.values()).count("significant") == 6


def test_a_family_of_12_finds_more_than_one_of_27() -> None:
    """Table 1 counts 4 models x 3 held-out benchmarks; the correction is over 27 cells."""
    held_out = [r for r in TREND if r.bench != "omnimedvqa" and r.model in COHORT]
    assert len(held_out) == 12
    assert sum(p_of(row) < 0.01 for row in held_out) == 2  # 2/12, at a level of 1 %
    of_12 = [bonferroni for bonferroni, _ in bonferroni_and_q(held_out)]
    of_27 = dict(zip([(r.bench, r.model) for r in TREND], bonferroni_and_q(TREND), strict=True))
    assert sum(p < 0.01 for p in of_12) == 1
    assert sum(of_27[row.bench, row.model][0] < 0.01 for row in held_out) == 0


def test_one_more_model_halves_the_maximum() -> None:
    changed = {(row.bench, row.model): (int(a), int(b)) for row, a, b in maxima(TAIL, TOP_EXTERNAL)}
    assert changed["SLAKE-En", "CheXagent-8b"] == (3398, 1697)
    assert changed["SLAKE-En", "LLaVA-OneVision-7B"] == (3403, 1704)
    assert len(changed) == 6 and len(kinds("cohort")) == 5
    assert ("VQA-RAD", "LLaVA-OneVision-7B") not in kinds("cohort")  # 70.5 to 37: 1.9 times


def test_a_half_is_rounded_down() -> None:
    assert kinds("rounding") == [("VQA-RAD", "LLaVA-OneVision-7B")]


def test_a_lift_below_ten_is_significant() -> None:
    assert kinds("lift") == [("VQA-RAD", "InternVL3|Qwen2.5-VL")]
    assert overlap_p(451, 25, 4) == pytest.approx(0.042, abs=5e-4)


# ---------------------------------------------------------------- what is wrong is found


@pytest.mark.parametrize(
    ("name", "old", "new", "kind", "what"),
    [
        ("order_trend", "0.0432", "0.0433", "correction", "0.0432, printed 0.0433"),
        ("order_trend", "0.0600", "0.0610", "correction", "q of p = 0.019998"),
        ("tail", "24.13", "24.11", "impossible", "24.11 is not a whole number of 1061"),
        ("tail", "131.2", "91.2", "tail", "the maximum is 91.2"),
        ("tail", "46.8,131.2", "146.8,131.2", "tail", "not in order"),
        ("tail", "24.22,TAIL", "24.22,-", "tail", "printed flag '-'"),
        ("topk", ".282", ".292", "overlap", "jaccard of 11 shared items is 0.2821"),
        ("topk", "118.25", "118.52", "overlap", "lift_calc"),
        ("topk", ",.093,43", ",.098,43", "overlap", "chance"),
        ("topk_external", "17,33", "17,34", "overlap", "union of 17 shared items is 33"),
    ],
)
def test_a_changed_figure_is_found(
    tmp_path: Path, name: str, old: str, new: str, kind: str, what: str
) -> None:
    text = (PUBLISHED / f"audit_{name}.csv").read_text()
    assert text.count(old) >= 1
    changed = tmp_path / "t.csv"
    changed.write_text(text.replace(old, new, 1))
    rows = read_audit(changed)
    wrong = [issue for issue in examine_audit([rows]) if issue.wrong]
    assert kind in {issue.kind for issue in wrong}
    assert any(what in str(issue) for issue in wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("0.694231", "about .7"), "line 8, column 'p': 'about .7'"),
        (lambda text: text.replace("0.694231,", ""), "line 8: 10 cells, but the header has 11"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(
    tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(change((PUBLISHED / "audit_order_trend.csv").read_text()))
    with pytest.raises(DataError, match=message):
        examine_audit([read_audit(path)])


def test_other_tables_are_none_of_an_audit() -> None:
    with pytest.raises(DataError, match="no table of the audit"):
        read_audit(PUBLISHED / "perturbation_gaps.csv")


def test_the_command_lists_findings_and_refuses_other_tables(tmp_path: Path) -> None:
    tables = [str(PUBLISHED / f"audit_{name}.csv") for name in NAMES]
    result = CliRunner().invoke(app, tables)
    assert result.exit_code == 0 and "rows of audits: 54" in result.stdout
    assert "0 findings: cannot all be true" in result.stdout and "16 findings: odd" in result.stdout
    changed = tmp_path / "t.csv"
    changed.write_text(Path(tables[0]).read_text().replace("0.0432", "0.0433", 1))
    result = CliRunner().invoke(app, [str(changed)])
    assert result.exit_code == 1 and "0.0432, printed 0.0433" in result.stdout
    refused = CliRunner().invoke(app, [str(PUBLISHED / "perturbation_main_tables.csv")])
    assert isinstance(refused.exception, DataError) and "flipbench doctor" in str(refused.exception)
