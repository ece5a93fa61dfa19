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
from flipbench.core.limits import (
    CELLS,
    FILE_BYTES,
    ROWS,
    TABLE_BYTES,
    bounded_lines,
    check_parquet,
    check_zip,
)

_BATCH = 256  # rows of a parquet file that are unpacked at a time


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
    rows = list(_bounded(path, _READERS[suffix](path)))
    if not rows:
        raise DataError(f"{path}: there are no rows; write the predictions again")
    return rows


def _bounded(path: Path, rows: Iterator[TableRow]) -> Iterator[TableRow]:
    """Yield the rows until there are more of them, of their cells or characters than allowed."""
    n_rows = n_cells = n_bytes = 0
    for row in rows:
        n_rows += 1
        n_cells += len(row.cells)
        n_bytes += sum(len(cell) for cell in row.cells.values() if isinstance(cell, str | bytes))
        for limit, n in ((ROWS, n_rows), (CELLS, n_cells), (TABLE_BYTES, n_bytes)):
            limit.check(n, path)
        yield row


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
        If it is not UTF-8, or too large to be read as a whole.
    """
    FILE_BYTES.check(path.stat().st_size, path)
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
            reader = csv.reader(bounded_lines(file, path), delimiter=delimiter, strict=True)
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
    n_cells = 0
    try:
        check_zip(path, FILE_BYTES, path)  # its texts take twice as much in memory
        with contextlib.closing(openpyxl.load_workbook(path, read_only=True)) as book:
            if not book.worksheets:
                raise DataError(f"{path}: the workbook has no sheet of cells; write it again")
            sheet = book.worksheets[0].iter_rows(values_only=True)
            header = ["" if cell is None else str(cell) for cell in next(sheet, ())]
            _check_header(path, header)
            for number, values in enumerate(sheet, 2):
                n_cells += len(values)  # blank rows, too
                CELLS.check(n_cells, path)
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
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(bounded_lines(file, path), 1):
                if not line.strip():
                    continue
                row = _parsed(line, path, number)
                if not isinstance(row, dict):
                    problem = "not an object; write one prediction per line"
                    raise DataError(f"{path}, line {number}: {problem}")
                yield TableRow(f"{path.name}, line {number}", row)
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error


def _parquet(path: Path) -> Iterator[TableRow]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            check_parquet(file, path)
            for batch in file.iter_batches(_BATCH):
                TABLE_BYTES.check(batch.nbytes, path)  # a dictionary's texts, written out
                for cells in batch.to_pylist():
                    number += 1
                    yield TableRow(f"{path.name}, row {number}", cells)
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: not a parquet file ({reason}); write it again") from error


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
