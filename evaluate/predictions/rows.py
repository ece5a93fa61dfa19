"""Rows of a table file (xlsx, tsv, csv, json, jsonl, parquet), with cells unconverted."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipbench.benchmarks.tables import check_file, not_utf8, parse_json
from flipbench.benchmarks.tsv import wide_cells
from flipbench.core.errors import DataError, need


@dataclass(frozen=True)
class TableRow:
    """A row: its place in the file, and its cells by column."""

    where: str
    cells: dict[str, Any]


def read_rows(path: Path) -> list[TableRow]:
    """Return the rows of a table file; the suffix decides the format.

    Raises
    ------
    DataError
        If the file is missing, empty, malformed or of an unsupported type; the message names the
        line.
    PrerequisiteError
        If an .xlsx file is given and openpyxl is not installed.
    """
    check_file(path)
    suffix = path.suffix.lower()
    if suffix in (".pkl", ".pickle"):
        raise DataError(
            f"{path}: pickle files are not read, since opening one can run code; write the"
            " predictions as xlsx, tsv or json (VLMEvalKit: PRED_FORMAT=tsv)"
        )
    if suffix not in _READERS:
        raise DataError(f"{path}: give an .xlsx, .tsv, .csv, .json, .jsonl, .parquet or .eval file")
    rows = list(_READERS[suffix](path))
    if not rows:
        raise DataError(f"{path}: there are no rows; write the predictions again")
    return rows


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises
    ------
    DataError
        If it is not JSON or not UTF-8.
    """
    return _parsed(utf8_text(path), path, 1)


def utf8_text(path: Path) -> str:
    """Return the text of a file.

    Raises
    ------
    DataError
        If it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error


def _parsed(text: str, path: Path, line: int) -> Any:
    """Parse JSON that starts on ``line`` of the file."""
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {line + error.lineno - 1}"
        raise DataError(f"{where}: not JSON ({error.msg}); is the file complete?") from error
    except ValueError as error:
        raise DataError(f"{path}, line {line}: cannot be read ({error}); fix the file") from error


def _delimited(path: Path) -> Iterator[TableRow]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with wide_cells(), path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(reader, [])
            _check_header(path, header)
            line = reader.line_num + 1
            for cells in reader:
                start, line = line, reader.line_num + 1
                if not cells:
                    continue
                where = f"{path.name}, line {start}"
                if len(cells) != len(header):
                    raise DataError(
                        f"{where}: {len(cells)} cells, but the header has {len(header)}; a"
                        " separator or quote is missing or superfluous"
                    )
                yield TableRow(where, dict(zip(header, cells, strict=True)))
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not well-formed ({error})") from error


def _xlsx(path: Path) -> Iterator[TableRow]:
    """Read the first sheet's cells.

    Formulas are not evaluated: pandas writes a reply such as "=5" as one, and its computed value
    is missing or not the reply.
    """
    openpyxl = need("openpyxl", "predictions")
    try:
        with contextlib.closing(openpyxl.load_workbook(path, read_only=True)) as book:
            if not book.worksheets:
                raise DataError(f"{path}: the workbook has no sheet of cells; write it again")
            sheet = book.worksheets[0].iter_rows(values_only=True)
            header = ["" if cell is None else str(cell) for cell in next(sheet, ())]
            _check_header(path, header)
            for number, values in enumerate(sheet, 2):
                if any(value is not None for value in values):
                    yield TableRow(
                        f"{path.name}, row {number}", dict(zip(header, values, strict=False))
                    )
    except DataError:
        raise
    except Exception as error:  # zip, XML and openpyxl share no base class
        raise DataError(f"{path}: not an .xlsx workbook ({error}); write it again") from error


def _json(path: Path) -> Iterator[TableRow]:
    """Read a list of objects, or pandas' {column: {row: cell}}."""
    data = read_json(path)
    if isinstance(data, dict) and data and all(isinstance(v, dict) for v in data.values()):
        labels = list(next(iter(data.values())))
        data = [{name: column.get(label) for name, column in data.items()} for label in labels]
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise DataError(
            f"{path}: neither a list of objects, nor columns as pandas writes them, nor an Inspect"
            " log; write one object per prediction"
        )
    for number, row in enumerate(data, 1):
        yield TableRow(f"{path.name}, object {number}", row)


def _jsonl(path: Path) -> Iterator[TableRow]:
    for number, line in enumerate(utf8_text(path).split("\n"), 1):
        if not line.strip():
            continue
        row = _parsed(line, path, number)
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: not an object; write one prediction per line")
        yield TableRow(f"{path.name}, line {number}", row)


def _parquet(path: Path) -> Iterator[TableRow]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: not a parquet file ({reason}); write it again") from error
    for number, cells in enumerate(table.to_pylist(), 1):
        yield TableRow(f"{path.name}, row {number}", cells)


def _check_header(path: Path, header: list[str]) -> None:
    repeated = [name for name in header if name and header.count(name) > 1]
    if repeated:
        raise DataError(f"{path}: two columns are named {repeated[0]!r}; rename one")


_READERS = {
    ".csv": _delimited,
    ".tsv": _delimited,
    ".xlsx": _xlsx,
    ".json": _json,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}
