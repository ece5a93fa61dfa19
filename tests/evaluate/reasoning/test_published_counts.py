"""The judge's counts that MedThinkVQA prints (table 2, appendix L, tables 8 to 10), recomputed."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from flipbench.core.errors import DataError
from flipbench.evaluate.reasoning.counts import ERROR_TYPES, StepCounts, clustered_rate

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


def counts_of(row: dict[str, str]) -> StepCounts:
    return StepCounts(
        steps=int(row["steps"]),
        true=int(row["steps_true"]),
        critical=int(row["critical"]),
        critical_true=int(row["critical_true"]),
        untyped=int(row["other"] or 0),
        by_type={key: int(row[column] or 0) for key, column in COLUMNS.items()},
    )


JUDGED = {(row["model"], row["split"]): row for row in rows("judge_step_counts")}
GPT_5 = counts_of(JUDGED["gpt-5", "right"]) + counts_of(JUDGED["gpt-5", "wrong"])


@pytest.mark.parametrize("row", JUDGED.values(), ids=lambda row: f"{row['model']} {row['split']}")
def test_wrong_steps_are_the_rest(row: dict[str, str]) -> None:
    counts = counts_of(row)
    assert (counts.errors, counts.critical_errors) == (int(row["err"]), int(row["err_crit"]))


def test_shares_of_true_and_wrong_steps() -> None:
    right, wrong = (counts_of(JUDGED["gpt-5", split]) for split in ("right", "wrong"))
    assert round(100 * right.true / right.steps, 2) == 84.83
    assert round(100 * wrong.true / wrong.steps, 2) == 63.64
    assert (GPT_5.steps, GPT_5.errors, GPT_5.critical_errors) == (6_425, 1_509, 182)


@pytest.mark.parametrize("row", rows("judge_error_types"), ids=lambda row: row["type"])
def test_both_splits_sum_to_the_coverage_of_table_2(row: dict[str, str]) -> None:
    (key,) = [key for key, name in ERROR_TYPES.items() if name == row["type"]]
    rate = GPT_5.coverage(key)
    assert (rate.k, rate.n) == (int(row["all_k"]), int(row["all_n"]))
    assert rate.value is not None and round(100 * rate.value, 2) == float(row["all_pct"])
    k, n = int(row["crit_k"]), int(row["crit_n"])
    assert n == GPT_5.critical_errors and k <= rate.k
    assert round(100 * k / n, 2) == float(row["crit_pct"])


def test_types_cover_errors_more_than_once() -> None:
    typed = sum(GPT_5.by_type.values())
    assert GPT_5.untyped == 69 and typed == 2_095 > GPT_5.errors - GPT_5.untyped
    assert sum(int(row["crit_k"]) for row in rows("judge_error_types")) == 279 > 182


def test_totals_of_the_rubrics_are_sums() -> None:
    table = [row for row in rows("sft_and_rubrics") if row["table"] == "10"]
    assert len(table) == 4
    for row in table:
        total, *points = map(float, row["values"].split("|"))
        assert len(points) == 5 and round(sum(points), 2) == total, row["model"]
        assert all(0 <= point <= 2 for point in points)


def test_accuracies_after_fine_tuning_are_of_753_items_although_the_test_set_has_751() -> None:
    found = [float(row["values"]) for row in rows("sft_and_rubrics") if row["table"] == "8"]

    def n_possible(n: int) -> int:
        return sum(value in {round(100 * k / n, 2) for k in range(n + 1)} for value in found)

    assert len(found) == 6
    assert {n: n_possible(n) for n in (720, 751, 753)} == {720: 0, 751: 0, 753: 6}


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(DataError, match="critical_true: 3 of 2 critical"):
        StepCounts(steps=5, true=4, critical=2, critical_true=3)


def test_steps_that_are_all_right_are_as_many_cases_as_they_are_of() -> None:
    """Nothing wrong in 8 steps of 4 cases: Wilson's interval of 4 of 4, not [100 %, 100 %]."""
    rate = clustered_rate({name: (2, 2) for name in "abcd"})
    assert rate.interval is not None and rate.interval.high == 1.0
    assert round(rate.interval.low, 2) == 0.51
