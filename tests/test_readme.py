"""The figures on the pages are those of runs whose results are in the repository."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.robustness.counts import summary, table
from docs.results.demo_tables import (
    DEMO,
    RESULTS,
    tables,
    with_tables,
)
from flipbench.evaluate.report.results import Results, read_results, write_results

README = DEMO.parents[1] / "README.md"


@pytest.fixture(scope="module")
def results() -> Results:
    return read_results(RESULTS)


def test_the_tables_are_those_of_the_results(results: Results) -> None:
    text = DEMO.read_text()
    assert with_tables(text, tables(results)) == text


def test_the_readme_is_one_page() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 900


def test_the_pages_agree_on_how_long_the_demo_takes() -> None:
    (seconds,) = re.findall(r"This took (\d+) seconds on two cores", README.read_text())
    words = f"`flipbench demo` on 2 idle cores: {seconds} s"
    assert words in (README.parent / "docs" / "performance.md").read_text()


def test_the_table_of_kills_is_that_of_its_rounds() -> None:
    rows = [json.loads(line) for line in RESULTS.with_name("kills.jsonl").open()]
    page = DEMO.with_name("reliability.md").read_text()
    assert table(rows) in page and summary(rows) in page


def test_the_file_has_counts_intervals_and_p_values(results: Results, tmp_path: Path) -> None:
    raw = json.loads(RESULTS.read_text())
    test = next(gap for gap in raw["gaps"] if gap["rule"] == "mcnemar")
    assert test["p_value"] > 0 and test["interval"]["low"] < test["interval"]["high"]
    assert set(test["accuracies"]) == {"original", "perturbed"} and "per_item" not in test
    assert {"k", "n", "interval", "pooled"} <= set(raw["detectors"][0]["detected"])
    write_results(tmp_path / "again.json", results)
    assert (tmp_path / "again.json").read_bytes() == RESULTS.read_bytes()


def test_a_page_without_a_place_for_a_table_is_refused(results: Results) -> None:
    with pytest.raises(ValueError, match="0 places for the table 'detectors'"):
        with_tables("# flipbench", tables(results))
