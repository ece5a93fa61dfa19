"""docs/validation.md and README.md have the tables of the results in the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.results.demo_tables import with_tables
from docs.results.validation_tables import FILES, PAGE, README, RESULTS, tables
from flipbench.evaluate.population.results import Results, read_results


@pytest.fixture(scope="module")
def results() -> Results:
    return read_results(RESULTS)


@pytest.mark.parametrize("page", [PAGE, README], ids=["validation", "README"])
def test_the_pages_have_the_tables_of_the_results(results: Results, page: Path) -> None:
    text = page.read_text()
    assert with_tables(text, tables(results)[page], "population") == text


def test_another_verdict_changes_the_summary(results: Results) -> None:
    scores = results.scores.assign(verdict="contaminated")
    changed = Results(scores, results.items, results.lineages)
    assert tables(changed)[README] != tables(results)[README]


def test_the_summary_is_short(results: Results) -> None:
    assert tables(results)[README]["summary"].count("\n") < 10


def test_the_results_stay_small() -> None:
    assert sum((RESULTS / name).stat().st_size for name in FILES) < 8_000_000
