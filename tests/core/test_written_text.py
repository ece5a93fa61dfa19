"""Names that are formulas or markup: written so that no program runs them, and read back."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipbench.benchmarks.tables import numbered_rows
from flipbench.core.files import markdown_text, plain_cell, spreadsheet_cell, without_html
from flipbench.filters import funnel, kept_list
from flipbench.reporting.tables import Cell, Column, Row, Table
from flipbench.reporting.writers import frame_csv, records_csv, rows_csv, table_csv, write_tables

ROOT = Path(__file__).parents[2]
FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd|x", "@SUM(A1)", "=HYPERLINK(A1)", "\t=1"]
NUMBERS = ["-0.5", "+4.31", "-", "-0.3 [-0.5, +0.1]", "+2.0 (<.001)", "-12.5%", "\u221211.4"]
TAG = "<script>alert(1)</script>"


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_any_table_is_a_formula(text: str, tmp_path: Path) -> None:
    import pandas as pd

    table = Table("t", text, text, (Column(text),), ((text, (Row(text, (Cell(text),)),)),))
    written = [
        table_csv(table),
        rows_csv(["a"], [[text]]),
        records_csv([{"a": text, "n": -1.5}]),
        frame_csv(pd.DataFrame({"a": [text], "n": [-1.5]})),
    ]
    write_tables([table], tmp_path, "page.md", text)
    written.append((tmp_path / "t.csv").read_text())
    for content in written:
        for row in csv.reader(io.StringIO(content)):
            assert not [cell for cell in row if cell[:1] in "=+@\t" and cell]
            assert all(cell in ("-1.5",) for cell in row if cell.startswith("-"))


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_with_a_sign_stay_numbers(text: str) -> None:
    assert spreadsheet_cell(text) == text


@given(st.text() | st.builds("".join, st.lists(st.sampled_from("'=+-@\t\ra1"))))
def test_every_text_is_read_back(text: str) -> None:
    written = spreadsheet_cell(text)
    assert plain_cell(written) == text
    assert written[:1] not in ("=", "@", "\t", "\r")


@pytest.mark.parametrize("text", FORMULAS)
def test_files_that_are_read_again_give_the_names_back(text: str, tmp_path: Path) -> None:
    path = tmp_path / "kept.csv"
    path.write_text(rows_csv(kept_list.HEADERS, [(text, "id", "e", "sha", text, text)]))
    (row,) = kept_list.read_kept(path)
    assert (row.item, row.item_id, row.decided_by) == (text, "id", text)
    assert funnel.read_columns(path, "item", "category") == [(text, text)]
    header, rows = numbered_rows(path)
    assert header == list(kept_list.HEADERS) and rows[0][1]["item"] == text


def test_csv_files_are_written_in_one_place() -> None:
    """Any other writer would have to think of formulas; kits' own formats are no spreadsheets."""
    own = {"flipbench/reporting/writers.py", "filters/review/exchange.py"}
    kits = {"flipbench/export/vlmeval.py"}
    rooms = ("flipbench", "generate", "filters", "contaminate", "evaluate")
    paths = {path.resolve() for room in rooms for path in (ROOT / room).rglob("*.py")}
    call = re.compile(r"csv\.writer\(|DictWriter\(|\.to_csv\(")
    found = {str(p.relative_to(ROOT)) for p in paths if call.search(p.read_text())}
    assert found == own | kits


def test_markup_in_names_is_text() -> None:
    assert markdown_text(f"a\n# {TAG}") == "a # &lt;script>alert(1)&lt;/script>"
    assert markdown_text("[x](javascript:alert(1))") == "[x]\\(javascript:alert(1))"
    assert (
        without_html("p <.001, x < y, <!-- -->, <?php") == "p <.001, x < y, &lt;!-- -->, &lt;?php"
    )


def test_the_title_of_a_page_of_tables_is_text(tmp_path: Path) -> None:
    table = Table("t", TAG, TAG, (Column(TAG),), ((TAG, (Row(TAG, (Cell(TAG),)),)),))
    assert TAG not in write_tables([table], tmp_path, "page.md", TAG).read_text()
