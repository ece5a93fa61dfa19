"""docs/validation.md, docs/deciding.md and README.md have the tables of the stored results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.statistics import verdicts
from docs.results.demo_tables import with_tables
from docs.results.validation_tables import (
    DECIDING,
    PAGE,
    README,
    RESULTS,
    deciding_tables,
    page_tables,
    readme_tables,
)
from studies.population.results import Results, read_results


@pytest.fixture(scope="module")
def results() -> Results:
    return read_results(RESULTS)


@pytest.mark.parametrize(
    ("page", "tables"),
    [(PAGE, page_tables), (DECIDING, deciding_tables), (README, readme_tables)],
    ids=["validation", "deciding", "README"],
)
def test_a_page_has_the_tables_of_the_results(
    results: Results, page: Path, tables: Callable[[Results], dict[str, str]]
) -> None:
    text = page.read_text()
    assert with_tables(text, tables(results), "population") == text


def test_the_page_of_statistics_has_the_counts_of_the_verdicts() -> None:
    text = verdicts.PAGE.read_text()
    assert with_tables(text, verdicts.page_tables(verdicts.read_counts()), "verdicts") == text
