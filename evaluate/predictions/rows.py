"""Rows of a table file (xlsx, tsv, csv, json, jsonl), each cell as it stands, nothing inferred."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from flipbench.benchmarks.tables import check_file, not_utf8
from flipbench.core.errors import DataError, need


@dataclass(frozen=True)
class TableRow:
    """One row: where it stands, and its cells by column."""

    where: str
    cells: dict[str, Any]


def read_rows(path: Path) -> list[TableRow]:
    """Return the rows of a table file, told by its suffix.

    Raises
    ------
    DataError
        Where the file is missing, empty, ill-formed, or of a kind that is not read; the message
        names the line.
    PrerequisiteError
        Where an .xlsx is given and openpyxl is not installed.
    """
    check_file(path)
    readers = {".csv": _delimited, ".tsv": _delimited, ".xlsx": _xlsx, ".jsonl": _jsonl}
    readers[".json"] = _json
    suffix = path.suffix.lower()
    if suffix in (".pkl", ".pickle"):
        raise DataError(
            f"{path}: pickle files can run code when opened and are not read; write the"
            " predictions as xlsx, tsv or json (VLMEvalKit: PRED_FORMAT=tsv)"
        )
    if suffix not in readers:
        raise DataError(f"{path}: give an .xlsx, .tsv, .csv, .json, .jsonl or .eval file")
    rows = list(readers[suffix](path))
    if not rows:
        raise DataError(f"{path}: there are no rows; write the predictions again")
    return rows


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises
    ------
    DataError
        Where it is no JSON, or not UTF-8.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno}: not JSON ({error.msg}); was it written to the end?"
        ) from error


def _delimited(path: Path) -> Iterator[TableRow]:
    before = csv.field_size_limit(2**31 - 1)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
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
                        " separator or a quote is missing or too many"
                    )
                yield TableRow(where, dict(zip(header, cells, strict=True)))
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not well-formed ({error})") from error
    finally:
        csv.field_size_limit(before)


def _xlsx(path: Path) -> Iterator[TableRow]:
    """Read the first sheet's cells.

    Formulas are not evaluated: a reply such as "=5" is written as one by pandas, and evaluating
    (or reading a value nobody has computed) would lose it.
    """
    openpyxl = need("openpyxl", "predictions")
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=False)
    except (BadZipFile, KeyError, ValueError, OSError) as error:
        raise DataError(f"{path}: not an .xlsx workbook ({error}); write it again") from error
    try:
        sheet = book.worksheets[0].iter_rows(values_only=True)
        header = ["" if cell is None else str(cell) for cell in next(sheet, ())]
        _check_header(path, header)
        for number, values in enumerate(sheet, 2):
            if any(value is not None for value in values):
                yield TableRow(
                    f"{path.name}, row {number}", dict(zip(header, values, strict=False))
                )
    finally:
        book.close()


def _json(path: Path) -> Iterator[TableRow]:
    """Read a list of objects, or pandas' {column: {row: cell}}."""
    data = read_json(path)
    if isinstance(data, dict) and data and all(isinstance(v, dict) for v in data.values()):
        labels = list(next(iter(data.values())))
        data = [{name: column.get(label) for name, column in data.items()} for label in labels]
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise DataError(
            f"{path}: neither a list of objects, nor columns as pandas writes them, nor an Inspect"
            " log; write one object for each prediction"
        )
    for number, row in enumerate(data, 1):
        yield TableRow(f"{path.name}, object {number}", row)


def _jsonl(path: Path) -> Iterator[TableRow]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}, line {number}: not JSON ({error.msg}); was it written to the end?"
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: not an object; one prediction for each line")
        yield TableRow(f"{path.name}, line {number}", row)


def _check_header(path: Path, header: list[str]) -> None:
    repeated = [name for name in header if name and header.count(name) > 1]
    if repeated:
        raise DataError(f"{path}: two columns are named {repeated[0]!r}; rename one")
