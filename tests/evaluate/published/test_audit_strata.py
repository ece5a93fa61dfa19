"""Table 6 of the medical-VLM audit (arXiv 2606.10066): shares by stratum, from counts."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

import pytest

from flipbench.evaluate.cohort.subpopulations import models_within_strata, subpopulations
from flipbench.evaluate.published.consistency import possible_counts

TABLE = Path(__file__).parents[2] / "published" / "audit_strata.csv"
MODELS = ("CheXagent", "LLaVA-OV", "InternVL3", "Qwen2.5-VL")
N_ITEMS = 1061
with TABLE.open(encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))


def counts(factor: str, model: str) -> dict[str, tuple[int, int]]:
    """Return (k, n) by stratum; every printed share has exactly one possible count."""
    found = {}
    for row in [row for row in ROWS if row["factor"] == factor]:
        n = int(row["n"])
        (k,) = possible_counts(Decimal(row[model]), n)
        found[row["stratum"]] = (k, n)
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("factor", ["answer_type", "modality"])
def test_partitions_sum_to_the_benchmark(factor: str, model: str) -> None:
    """Both factors that partition the benchmark give the same total for each model."""
    strata = counts(factor, model)
    total = {"CheXagent": 256, "LLaVA-OV": 257}.get(model, 0)  # 24.13 and 24.22 % of 1061
    assert sum(n for _, n in strata.values()) == N_ITEMS
    assert sum(k for k, _ in strata.values()) == total


def test_content_types_are_printed_in_part_only() -> None:
    """The listed types hold 903 of 1,061 items and every flagged one: the other 158 have none."""
    strata = counts("content_type", "CheXagent")
    assert sum(n for _, n in strata.values()) == 903
    assert sum(k for k, _ in strata.values()) == 256


def test_printed_totals() -> None:
    assert round(100 * 256 / N_ITEMS, 2) == 24.13
    assert round(100 * 257 / N_ITEMS, 2) == 24.22


def test_the_tail_sits_in_the_closed_questions() -> None:
    """No stratum is small; the two high models flag alike within answer types, the others never."""
    columns = {model: counts("answer_type", model) for model in MODELS}
    factor = [name for name, (_, n) in columns["CheXagent"].items() for _ in range(n)]
    flags = [
        [columns[model][name][0] > at for model in MODELS]
        for name, (_, n) in columns["CheXagent"].items()
        for at in range(n)
    ]
    strata = subpopulations(flags, MODELS, {"answer_type": factor})
    by_name = {stratum.name: stratum for stratum in strata}
    assert not any(stratum.small for stratum in strata)
    assert by_name["OPEN"].spread == 0 and by_name["CLOSED"].spread > 0.6
    assert by_name["CLOSED"].shares[0].q_value is not None
    assert by_name["CLOSED"].shares[0].q_value < 1e-12
    pairs = models_within_strata(flags, MODELS, {"a": factor}).set_index("models")
    assert pairs["p_value"]["CheXagent", "LLaVA-OV"] > 0.9
    assert pairs["p_adjusted"]["CheXagent", "InternVL3"] < 1e-12
