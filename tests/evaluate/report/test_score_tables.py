"""Tables: the same numbers in every format, and nothing that a format could misread."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from flipbench.core.records import Count, Interval, PairedCounts, Score
from flipbench.evaluate.protocol.grid import GridModel, Requirements
from flipbench.evaluate.report.score_frame import score_frame, write_scores_csv
from flipbench.evaluate.report.score_tables import gap_table, other_table
from flipbench.evaluate.report.titles import families
from flipbench.evaluate.report.validation_tables import requirements_rows, requirements_table
from flipbench.reporting import formats, writers
from flipbench.reporting.tables import Cell, Table

GRID = [
    GridModel("llava-full-e1", "f1", "llava", "full", 1, 1),
    GridModel("llava", "f0", "llava", "clean", 0, 0),
    GridModel("llava-lora-e2", "f3", "llava", "lora_r8", 2, 2),
    GridModel("llava-lora-e1", "f2", "llava", "lora_r8", 1, 1),
]


def score(fingerprint: str, rule: str, k: int, k2: int, **changes: Any) -> Score:
    values: dict[str, Any] = {
        "detector": "perturbation_gap",
        "rule": rule,
        "model": "m",
        "model_fingerprint": fingerprint,
        "benchmark": "b",
        "benchmark_id": "0",
        "statistic": (k2 - k) / 440,
        "interval": Interval(low=(k2 - k - 9) / 440, high=(k2 - k + 9) / 440),
        "p_value": 0.0321,
        "verdict": "contaminated" if k2 < k else "not_detected",
        "n": 440,
        "direction": "falls",
        "accuracies": {"original": Count(k=k, n=440), "perturbed": Count(k=k2, n=440)},
        "paired": PairedCounts(n11=k2 - 7, b=k - k2 + 7, c=7, n00=433 - k),
    }
    return Score(**(values | changes))


SCORES = [
    score("f0", "sign", 229, 233, p_value=0.66),
    score("f0", "mcnemar", 229, 233, p_value=0.66),
    score("f2", "sign", 276, 226),
    score("f2", "mcnemar", 276, 226, verdict="inconclusive", warnings=("too few",)),
    score("f3", "sign", 308, 232, p_value=1e-9),
    score("f3", "mcnemar", 308, 232, p_value=1e-9, verdict="not_detected"),
]


def cells(table: Table, model: str) -> list[str]:
    rows = {row.header: row for _, rows in table.groups for row in rows}
    return [cell.plain() for cell in rows[model].cells]


def test_the_main_table_has_the_papers_rows_and_columns() -> None:
    table = gap_table(GRID, score_frame(SCORES, GRID))
    assert [c.header for c in table.columns] == [
        "Dose", "Original, %", "Perturbed, %", "Δ, pp", "p", "McNemar test",
    ]  # fmt: skip
    (family, rows) = table.groups[0]
    assert family == "llava"
    assert [row.header for row in rows] == [
        "clean",
        "full, epoch 1",
        "lora_r8, epoch 1",
        "lora_r8, epoch 2",
    ]
    assert cells(table, "clean") == [
        "0", "52.0 (229/440)", "53.0 (233/440)", "+0.9 [−1.1, +3.0]", ".660",
        "✓ not detected",
    ]  # fmt: skip
    assert cells(table, "lora_r8, epoch 1")[3:] == [
        "−11.4 [−13.4, −9.3]", ".032", "inconclusive",
    ]  # fmt: skip
    assert cells(table, "lora_r8, epoch 2")[4:] == ["<.001", "✗ not detected"]
    assert cells(table, "full, epoch 1") == ["1", *["–"] * 4, "not asked"]


def test_models_of_the_same_strategy_and_epoch_are_listed_by_full_name() -> None:
    grid = [*GRID, GridModel("llava-2", "f9", "llava", "clean", 0, 0)]
    table = gap_table(grid, score_frame(SCORES, grid))
    assert [row.header for row in table.groups[0][1]][:2] == ["llava", "llava-2"]
    assert [m.name for m in families(grid)["llava"]][:2] == ["llava", "llava-2"]


def test_an_unknown_detector_is_shown_with_its_statistic() -> None:
    changes: dict[str, Any] = {
        "detector": "some_trend",
        "unit": "nats",
        "interval": None,
        "accuracies": {},
        "paired": None,
    }
    scores = [
        score("f0", "permutation", 0, 0, statistic=-0.01234, p_value=0.4, **changes),
        score("f2", "permutation", 0, 0, statistic=None, verdict="not_applicable", **changes),
    ]
    table = other_table(GRID, score_frame(scores, GRID))
    assert table is not None
    assert [c.header for c in table.columns] == ["Dose", "Statistic, nats", "p", "Permutation"]
    assert {c.group for c in table.columns} == {"", "some trend"}
    assert cells(table, "clean")[1:] == ["−0.0123", ".400", "✓ not detected"]
    assert cells(table, "lora_r8, epoch 1")[1] == "–"
    assert cells(table, "lora_r8, epoch 1")[3] == "not applicable"
    assert other_table(GRID, score_frame(SCORES, GRID)) is None


def test_a_rule_with_its_own_statistic_gets_its_own_column() -> None:
    relative = [score("f2", "relative", 276, 226, statistic=-0.2, interval=None)]
    headers = [c.header for c in gap_table(GRID, score_frame(SCORES + relative, GRID)).columns]
    assert headers[-2:] == ["Δ, pp (vs clean)", "Vs clean"]


def test_one_rule_with_two_references_has_two_columns() -> None:
    scores = [
        score("f2", "relative", 276, 226, reference_fingerprint=fingerprint, verdict=verdict)
        for fingerprint, verdict in (("f0", "contaminated"), ("elsewhere", "inconclusive"))
    ]
    table = gap_table(GRID, score_frame(scores, GRID))
    assert [c.header for c in table.columns][-2:] == ["Relative vs llava", "Relative vs elsewher"]
    assert cells(table, "lora_r8, epoch 1")[-2:] == ["✓ contaminated", "inconclusive"]


@pytest.mark.parametrize("level, expected", [(0.95, "[−1.0, +2.0]"), (0.9, "[−1.0, +2.0] (90 %)")])
def test_an_interval_states_an_unusual_level(level: float, expected: str) -> None:
    assert formats.interval(Interval(low=-0.01, high=0.02, level=level)) == expected


@pytest.mark.parametrize(
    "p, expected",
    [(0, "<.001"), (0.00099, "<.001"), (0.001, ".001"), (0.05, ".050"), (0.99951, ">.999")],
)
def test_p_values_have_one_format(p: float, expected: str) -> None:
    assert formats.p_value(p) == expected


def test_markdown_parses_back_to_the_same_numbers() -> None:
    lines = writers.markdown(gap_table(GRID, score_frame(SCORES, GRID))).splitlines()
    head, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line
    ]
    assert all(len(row) == len(head) for row in rows)
    found = {}
    rates = [(row, re.match(r"([\d.]+) \((\d+)/(\d+)\)", row[2])) for row in rows]
    for row, match in [(row, match) for row, match in rates if match]:
        found[row[0]] = (int(match[2]), int(match[3]))
        assert float(match[1]) == pytest.approx(100 * int(match[2]) / int(match[3]), abs=0.05)
        second = re.match(r"[\d.]+ \((\d+)/", row[3])
        gap = re.match(r"([−+]?[\d.]+) \[", row[4])
        assert second and gap
        gap_points = float(gap[1].replace("−", "-"))
        assert gap_points == pytest.approx(100 * (int(second[1]) - int(match[2])) / 440, abs=0.05)
    assert found == {
        "clean": (229, 440),
        "lora_r8, epoch 1": (276, 440),
        "lora_r8, epoch 2": (308, 440),
    }


def test_csv_keeps_every_number_in_full(tmp_path: Path) -> None:
    write_scores_csv(tmp_path / "t.csv", score_frame(SCORES, GRID))
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(SCORES)
    for row, made in zip(rows, SCORES, strict=True):
        assert made.interval is not None
        assert float(row["statistic"]) == made.statistic
        assert (float(row["low"]), float(row["high"])) == (made.interval.low, made.interval.high)
        assert float(row["p_value"]) == made.p_value
        assert row["verdict"] == made.verdict
        assert int(row["k_perturbed"]) == made.accuracies["perturbed"].k
        assert float(row["accuracy_original"]) == int(row["k_original"]) / 440
        assert int(row["right_to_wrong"]) == made.paired.b
    assert [row["success"] for row in rows] == ["True", "True", "True", "", "True", "False"]
    assert rows[3]["warnings"] == "too few"
    assert rows[2]["model"] == "llava-lora-e1"


def test_latex_escapes_what_is_special_and_keeps_its_columns() -> None:
    odd = GridModel(r"50%_of{a}&b\c#$~^", "f0", r"50%_of{a}&b\c#$~^", "clean", 0, 0)
    text = writers.latex(gap_table([odd], score_frame(SCORES, [odd])))
    name = r"50\%\_of\{a\}\&b\textbackslash{}c\#\$\textasciitilde{}\textasciicircum{}"
    assert rf"\textit{{{name}}}" in text
    assert "$-$1.1, +3.0" in text and r"\ding{51} not detected" in text
    body = [line for line in text.splitlines() if line.startswith("clean")]
    assert len(body) == 1 and body[0].count(" & ") == 6
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_latex_groups_the_columns_of_several_detectors() -> None:
    scores = [
        score("f2", "paper", 276, 226, detector=name)
        for name in ("circular_eval", "choice_confusion")
    ]
    table = other_table(GRID, score_frame(scores, GRID))
    assert table is not None
    text = writers.latex(table)
    assert r" & \multicolumn{1}{c}{} & \multicolumn{4}{c}{CircularEval}" in text
    assert r"\cmidrule(lr){3-6}\cmidrule(lr){7-10}" in text


def test_markdown_escapes_what_would_end_a_cell() -> None:
    odd = GridModel("x", "f0", "a|b <script> `c`", "clean", 0, 0)
    assert r"| **a\|b &lt;script> \`c\`** |" in writers.markdown(
        gap_table([odd], score_frame(SCORES, [odd]))
    )


def test_requirements_show_fractions_and_names(tmp_path: Path) -> None:
    needed = [
        Requirements(
            "circular_eval", "paper", False, (21, 24), ("a", "b, c"), (3, 8), (2, 8), ("s",),
            (1, 1), (),
        )
    ]  # fmt: skip
    table = requirements_table(needed)
    assert table.groups[0][0] == "CircularEval"
    assert [cell.plain() for cell in table.groups[0][1][0].cells] == [
        "✗ not practical", "✗ 21/24", "▲ weak 3/8, strict 2/8", "✓ 1/1", "a, b, c", "s", "none",
    ]  # fmt: skip
    (tmp_path / "r.csv").write_text(writers.records_csv(requirements_rows(needed)))
    with (tmp_path / "r.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["reliability_hit"], row["reliability_total"]) == ("21", "24")
    assert row["misses"] == "a; b, c"


def test_a_cell_on_one_line() -> None:
    assert Cell("−11.4", "[−14.2, −8.6]").plain() == "−11.4 [−14.2, −8.6]"
