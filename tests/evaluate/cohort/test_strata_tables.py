"""What the tables of overlap inflation and subpopulations print."""

from __future__ import annotations

import numpy as np

from flipbench.evaluate.cohort.overlap_inflation import accuracy_inflation, overlap_inflation
from flipbench.evaluate.cohort.strata_tables import (
    accuracy_inflation_table,
    inflation_table,
    subpopulation_table,
    within_strata_table,
)
from flipbench.evaluate.cohort.subpopulations import models_within_strata, subpopulations
from flipbench.reporting.writers import markdown


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_inflation_prints_items_pictures_and_both_p_values() -> None:
    results = overlap_inflation([2, 4, 1, 1, 3], [1, 1, 0, 0, 0], list("abcde"), rng())
    text = markdown(inflation_table({"tiny": results}, "nats per token"))
    assert "+3.000 (2 items, 2 pictures)" in text and "+1.333 [" in text
    assert text.count(".300") == 2


def test_a_side_without_items_is_a_dash_and_no_p_value() -> None:
    results = overlap_inflation([1.0, 2.0], [0, 0], list("ab"), rng())
    text = markdown(inflation_table({"tiny": results}, "nats"))
    assert "| – (0 items, 0 pictures) | +1.500 (2 items, 2 pictures) | – | – | – | – |" in text


def test_churn_stands_in_the_caption() -> None:
    right = np.array([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 3 + [[1.0, 1.0]] * 2 + [[0.0, 0.0]])
    flags = [True] * 4 + [False] * 6
    names = list("abcdefghij")
    results, churn = accuracy_inflation(right, flags, names, ["one", "two"], rng())
    table = accuracy_inflation_table(results, churn)
    assert "one falls behind two" in table.caption and "−1.00" in table.caption
    assert "60.0 (6/10) | 33.3 (2/6)" in markdown(table)


def test_small_strata_are_marked() -> None:
    flags = np.zeros((60, 2), bool)
    flags[:20, 0] = True
    factors = {"answer": ["yes"] * 20 + ["open"] * 40}
    strata = subpopulations(flags, ["a", "b"], factors)
    text = markdown(subpopulation_table(strata, "a tail above 100"))
    assert "| yes | 20 (small) | 100.0 (20/20) [83.9, 100.0]" in text
    assert "| open | 40 | 0.0 (0/40) [0.0, 8.8], q" in text
    assert "a against b" in markdown(
        within_strata_table(models_within_strata(flags, "ab", factors))
    )
