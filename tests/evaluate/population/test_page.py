"""docs/validation.md has the tables of the results in the repository."""

from __future__ import annotations

from docs.results.readme_figures import with_tables
from docs.results.validation_tables import FILES, PAGE, RESULTS, tables
from flipbench.evaluate.population.results import read_results


def test_the_page_has_the_tables_of_the_results() -> None:
    text = PAGE.read_text()
    assert with_tables(text, tables(read_results(RESULTS)), "population") == text


def test_the_results_stay_small() -> None:
    assert sum((RESULTS / name).stat().st_size for name in FILES) < 8_000_000
