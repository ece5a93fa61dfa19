"""The judge's counts that MedThinkVQA prints (table 2, appendix L, tables 8 to 10), recomputed."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from flipbench.evaluate.reasoning.replies import ERROR_TYPES
from flipbench.evaluate.reasoning.tables import clustered_rate

PUBLISHED = Path(__file__).parents[2] / "published"
COLUMNS = {
    "reasoning": "reason",
    "image": "image",
    "scenario": "clinical",
    "knowledge": "knowledge",
}


def rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


JUDGED = {(row["model"], row["split"]): row for row in rows("judge_step_counts")}
GPT_5 = [JUDGED["gpt-5", "right"], JUDGED["gpt-5", "wrong"]]


def total(column: str) -> int:
    return sum(int(row[column] or 0) for row in GPT_5)


@pytest.mark.parametrize("row", JUDGED.values(), ids=lambda row: f"{row['model']} {row['split']}")
def test_wrong_steps_are_the_rest(row: dict[str, str]) -> None:
    assert int(row["steps"]) - int(row["steps_true"]) == int(row["err"])
    assert int(row["critical"]) - int(row["critical_true"]) == int(row["err_crit"])


def test_shares_of_true_and_wrong_steps() -> None:
    shares = [round(100 * int(row["steps_true"]) / int(row["steps"]), 2) for row in GPT_5]
    assert shares == [84.83, 63.64]
    assert (total("steps"), total("err"), total("err_crit")) == (6_425, 1_509, 182)


@pytest.mark.parametrize("row", rows("judge_error_types"), ids=lambda row: row["type"])
def test_both_splits_sum_to_the_coverage_of_table_2(row: dict[str, str]) -> None:
    (key,) = [key for key, name in ERROR_TYPES.items() if name == row["type"]]
    k, n = total(COLUMNS[key]), total("err")
    assert (k, n) == (int(row["all_k"]), int(row["all_n"]))
    assert round(100 * k / n, 2) == float(row["all_pct"])
    k_critical, n_critical = int(row["crit_k"]), int(row["crit_n"])
    assert n_critical == total("err_crit") and k_critical <= k
    assert round(100 * k_critical / n_critical, 2) == float(row["crit_pct"])


def test_types_cover_errors_more_than_once() -> None:
    typed = sum(map(total, COLUMNS.values()))
    assert total("other") == 69 and typed == 2_095 > total("err") - 69
    assert sum(int(row["crit_k"]) for row in rows("judge_error_types")) == 279 > 182


def test_totals_of_the_rubrics_are_sums() -> None:
    table = [row for row in rows("sft_and_rubrics") if row["table"] == "10"]
    assert len(table) == 4
    for row in table:
        printed, *points = map(float, row["values"].split("|"))
        assert len(points) == 5 and round(sum(points), 2) == printed, row["model"]
        assert all(0 <= point <= 2 for point in points)


def test_accuracies_after_fine_tuning_are_of_753_items_although_the_test_set_has_751() -> None:
    found = [float(row["values"]) for row in rows("sft_and_rubrics") if row["table"] == "8"]

    def n_possible(n: int) -> int:
        return sum(value in {round(100 * k / n, 2) for k in range(n + 1)} for value in found)

    assert len(found) == 6
    assert {n: n_possible(n) for n in (720, 751, 753)} == {720: 0, 751: 0, 753: 6}


def test_steps_that_are_all_right_are_as_many_cases_as_they_are_of() -> None:
    """Nothing wrong in 8 steps of 4 cases: Wilson's interval of 4 of 4, not [100 %, 100 %]."""
    rate = clustered_rate([True] * 8, list("aabbccdd"))
    assert rate.interval is not None and rate.interval.high == 1.0
    assert round(rate.interval.low, 2) == 0.51
