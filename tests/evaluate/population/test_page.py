"""docs/validation.md and README.md have the tables of the results in the repository."""

from __future__ import annotations

import pytest

from docs.results.demo_tables import with_tables
from docs.results.validation_tables import FILES, PAGE, README, RESULTS, page_tables, readme_tables
from flipbench.evaluate.population.results import Results, read_results


@pytest.fixture(scope="module")
def results() -> Results:
    return read_results(RESULTS)


def test_the_page_has_the_tables_of_the_results(results: Results) -> None:
    text = PAGE.read_text()
    assert with_tables(text, page_tables(results), "population") == text


def test_the_readme_has_the_table_of_the_results(results: Results) -> None:
    text = README.read_text()
    assert with_tables(text, readme_tables(results), "population") == text


def test_another_verdict_changes_the_summary(results: Results) -> None:
    scores = results.scores.assign(verdict="contaminated")
    changed = Results(scores, results.items, results.lineages)
    assert readme_tables(changed) != readme_tables(results)


def test_the_summary_is_short(results: Results) -> None:
    assert readme_tables(results)["summary"].count("\n") < 10


def test_the_results_stay_small() -> None:
    assert sum((RESULTS / name).stat().st_size for name in FILES) < 8_000_000
