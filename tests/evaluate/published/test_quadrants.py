"""The tables of arXiv 2603.20985 recomputed from their counts, and where the print differs."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from flipbench.evaluate.published.consistency import possible_counts
from flipbench.evaluate.statistics.quadrants import FLAG, QUADRANTS, QuadrantCounts

PUBLISHED = Path(__file__).parents[2] / "published"


def rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


COUNTS = {
    (row["model"], row["dataset"]): QuadrantCounts(*(int(row[q]) for q in QUADRANTS))
    for row in rows("quadrants.csv")
}
SHARES = ("flip_rate", "dangerous_fraction", "dangerous_given_consistent", "expected")


@pytest.mark.parametrize("row", rows("quadrants.csv"), ids=lambda r: f"{r['model']} {r['dataset']}")
def test_every_fraction_follows_from_the_counts(row: dict[str, str]) -> None:
    counts = COUNTS[row["model"], row["dataset"]]
    assert counts.n == int(row["n"])
    columns = ("FR_pct_calc", "DF_pct_calc", "DF_given_consistent_calc", "independence_DF_calc")
    for share, column in zip(SHARES, columns, strict=True):
        assert 100 * getattr(counts, share) == pytest.approx(float(row[column]), abs=0.0051)


def test_flip_rate_and_dangerous_fraction_move_against_each_other_by_definition() -> None:
    flips, dangerous, bound, not_reliant = (
        np.array(values)
        for values in zip(
            *(
                (c.flip_rate, c.dangerous_fraction, c.bound, c.n_not_reliant / c.n)
                for c in COUNTS.values()
            ),
            strict=True,
        )
    )
    assert stats.pearsonr(flips, dangerous).statistic == pytest.approx(-0.896, abs=5e-4)
    assert stats.spearmanr(flips, dangerous).statistic == pytest.approx(-0.794, abs=5e-4)
    assert (dangerous <= bound).all() and np.allclose(bound, 1 - flips)
    assert stats.pearsonr(flips, not_reliant).statistic == pytest.approx(-0.83, abs=0.005)
    assert (int((dangerous > 0.25).sum()), int((dangerous > FLAG).sum())) == (9, 7)


def test_how_far_the_dangerous_fraction_is_from_independence() -> None:
    """DF - P(consistent) P(not reliant), in points: below 2 for four of the ten."""
    excess = {k: 100 * ((c.dangerous_fraction or 0) - (c.expected or 0)) for k, c in COUNTS.items()}
    assert max(excess.values()) == pytest.approx(13.25, abs=0.01)
    assert sum(abs(value) < 2 for value in excess.values()) == 4
    assert excess["LLaVA-Rad LoRA", "PadChest"] == pytest.approx(-3.73, abs=0.01)


@pytest.mark.parametrize(
    ("printed", "n", "k"),
    [("81.7", 861, 703), ("3.9", 78, 3), ("82.6", 732, 605)],
    ids=[
        "flip rate of MedGemma on PadChest",
        "ideal of LLaVA-Rad on MIMIC",
        "accuracy of LLaVA-Rad",
    ],
)
def test_printed_values_that_no_count_gives(printed: str, n: int, k: int) -> None:
    value = Decimal(100 * k) / n
    assert abs(value - Decimal(printed)) > Decimal("0.05")
    assert all(
        abs(Decimal(100 * j) / n - Decimal(printed)) > Decimal("0.05") for j in (k - 1, k + 1)
    )
    assert not list(possible_counts(Decimal(printed), n))


def test_overall_accuracy_follows_from_the_quadrants() -> None:
    right = {}
    for row in rows("quadrant_accuracy.csv"):
        counts = COUNTS[row["model"], "PadChest"]
        right[row["model"]] = sum(
            round(float(row[q]) / 100 * getattr(counts, q)) for q in QUADRANTS if row[q]
        )
        overall = 100 * right[row["model"]] / counts.n
        assert overall == pytest.approx(float(row["overall"]), abs=0.06)
    assert list(right.values()) == [364, 617, 357, 605, 452]
    # the text gives 82.5, which is the accuracy of the dangerous items alone
    found = {row["model"]: row for row in rows("quadrant_accuracy.csv")}["LLaVA-Rad Base"]
    assert (found["dangerous"], found["overall"]) == ("82.5", "82.6")


def test_items_that_rely_on_the_picture_are_nearly_always_wrong() -> None:
    """With 81 % "yes" and the prior "yes", reliant means "says no": the label prior confounds."""
    by_model = {row["model"]: row for row in rows("quadrant_accuracy.csv")}
    for model in ("MedGemma Base", "Full LoRA", "LLaVA-Rad LoRA"):
        row = by_model[model]
        assert max(float(row["ideal"]), float(row["fragile"])) < 10
        assert min(float(row["dangerous"]), float(row["worst"])) > 40
