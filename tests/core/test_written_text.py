"""Names that are formulas, markup or control characters: no program runs them; they read back."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipbench.benchmarks.tables import numbered_rows
from flipbench.core.files import (
    markdown_text,
    plain_cell,
    printable,
    printable_json,
    spreadsheet_cell,
    without_html,
)
from flipbench.core.records import Failure
from flipbench.core.run import Run
from flipbench.filters import funnel, kept_list
from flipbench.reporting.pages import environment
from flipbench.reporting.tables import Cell, Column, Row, Table
from flipbench.reporting.writers import (
    frame_csv,
    latex,
    markdown,
    records_csv,
    rows_csv,
    table_csv,
    write_tables,
)
from flipbench.streams import PrintableFormatter

ROOT = Path(__file__).parents[2]
FORMULAS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd|x", "@SUM(A1)", "=HYPERLINK(A1)", "\t=1"]
FORMULAS += [
    "\uff1d1+1",
    "\uff0b1+A1",
    "\uff0dcmd|x",
    "\uff20SUM(A1)",
    " =1+1",
    "\n=1+1",
    "\u3000@A1",
]
STEERING = "a\x1b]0;OWNED\x07\x1b[2J\x9b2J\r\u202egnp.exe\u202c\u200b\u2028\ufeff\x7f\x00b"
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
            assert not [cell for cell in row if re.match(r"\s*[=+@＝＋－＠]|\t", cell)]
            assert all(cell in ("-1.5",) for cell in row if cell.startswith("-"))


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_with_a_sign_stay_numbers(text: str) -> None:
    assert spreadsheet_cell(text) == text


@given(
    st.text()
    | st.builds(
        "".join, st.lists(st.sampled_from([*"'=＝+-@\t\r \x1b\u202ea1\\", "\\x5c", "\\u202e"]))
    )
)
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


@pytest.mark.parametrize("text", [STEERING, *STEERING.removeprefix("a").removesuffix("b")])
def test_no_file_or_message_steers_a_terminal(text: str, tmp_path: Path) -> None:
    table = Table("t", text, text, (Column(text),), ((text, (Row(text, (Cell(text),)),)),))
    written = [table_csv(table), markdown(table), latex(table), markdown_text(text)]
    written.append(environment().from_string("<p title='{{ x }}'>{{ x }}").render(x=text))
    written.append(PrintableFormatter().format(logging.makeLogRecord({"msg": text})))
    with Run(tmp_path / "run") as run:
        failure = Failure(stage="s", record_id="r", subject=text, error="E", message=text)
        run.append([failure])
        assert list(run.read(Failure)) == [failure]
        written += [p.read_text("utf-8") for p in (tmp_path / "run").rglob("*.jsonl")]
    assert len(written) == 7
    for content in written:
        assert all(c.isprintable() or c == "\n" for c in content), ascii(content)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("caf\xe9, 图, \t|\n", None),
        ("\u0645\u06cc\u200c\u062e", None),  # a word of Persian
        ("\U0001f469\u200d\U0001f52c", None),  # one emoji of two
        ("a\u200db", "a\\u200db"),
        ("\x9b\r", "\\x9b\\x0d"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_only_what_steers_or_hides_is_escaped(text: str, shown: str | None) -> None:
    assert printable(text) == (shown or text)
    assert printable(printable(text)) == printable(text)
    assert json.loads(printable_json(json.dumps(text, ensure_ascii=False))) == text


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
