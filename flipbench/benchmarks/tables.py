"""Checks of a file before its first row is read, and the rows of a CSV with their lines."""

from __future__ import annotations

import ast
import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flipbench.core.errors import DataError, nearest
from flipbench.core.files import plain_cell
from flipbench.core.limits import CELLS, ROWS, bounded_lines
from flipbench.prompting.prompts import LETTERS


def check_file(path: Path) -> None:
    """Check that a file exists and is not empty.

    Raises
    ------
    DataError
        If ``path`` is missing, a folder or another special file, or empty.
    """
    if path.is_dir():
        raise DataError(f"{path}: is a folder; give a file in it")
    if not path.is_file():
        kind = "not a regular file" if path.exists() else "no such file"
        raise DataError(f"{path}: {kind}; fix the path")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; download it again")


def check_columns(needed: Sequence[str], found: Sequence[str], where: str) -> None:
    """Check that a table has all needed columns.

    Raises
    ------
    DataError
        If a column is missing; the message gives those found, and the closest one.
    """
    for column in needed:
        if column not in found:
            by_lower = {name.lower(): name for name in found}
            close = by_lower.get(column.lower())
            guess = f"; did you mean {close!r}?" if close else nearest(column, list(found))
            raise DataError(
                f"{where}: there is no column {column!r} (found: {', '.join(found)}){guess};"
                f" rename a column to {column!r}, or map it"
            )


def option_columns(header: Sequence[str], where: str) -> list[str]:
    """Return the columns A, B, … of a table's options, with those after Z (AA, AB, …).

    Raises
    ------
    DataError
        If options are in columns a, b, …, which would be read as no options, or as fewer.

    Examples
    --------
    >>> option_columns(["index", "B", "A", "answer"], "x.tsv")
    ['A', 'B']
    """
    capital = [letter for letter in LETTERS if letter in header]
    small = [c.lower() for c in LETTERS if c.lower() in header and c not in capital]
    after = LETTERS[len(capital) : len(capital) + 1].lower()
    if small[:2] == ["a", "b"] or capital and after in small:
        raise DataError(
            f"{where}: options are in columns named by small letters ({', '.join(small)}), and"
            " columns of options are named A, B, …; rename them"
        )
    beyond = [f"A{letter}" for letter in LETTERS if f"A{letter}" in header]
    return [*capital, *beyond] if len(capital) == len(LETTERS) else capital


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text, of which one bad part must not end the program.

    Raises
    ------
    ValueError
        If it is not JSON (`json.JSONDecodeError`), is nested too deeply, or has an integer of more
        digits than Python converts.

    Examples
    --------
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        if "int_max_str_digits" in str(error):
            raise ValueError("an integer has thousands of digits") from None
        raise


_QUOTED = re.compile(r"""'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*"|['"].*""", re.DOTALL)
_ATOM = r"(?:None|True|False|-?\d{1,18}(?:\.\d{0,18})?)?"
_FLAT = re.compile(rf"[\[({{](?:{_ATOM}[\s,:])*{_ATOM}[\])}}]")


def parse_literal(text: str) -> Any:
    """Return a flat list, tuple or dict of texts and numbers in Python's notation.

    Raises
    ------
    ValueError
        If it is anything else. Python's parser can end the process, or take for ever, on deep
        expressions and long numbers, so it is not asked about them.

    Examples
    --------
    >>> parse_literal("['a', 2, None]"), parse_literal("{'A': '(b)'}")
    (['a', 2, None], {'A': '(b)'})
    >>> parse_literal("[" + "-" * 3000 + "1]")
    Traceback (most recent call last):
    ...
    ValueError: not a flat list
    """
    if not _FLAT.fullmatch(_QUOTED.sub("", text)):
        raise ValueError("not a flat list")
    try:
        return ast.literal_eval(text)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("not a flat list") from error


NumberedRow = tuple[int, Mapping[str, str]]


def numbered_rows(path: Path) -> tuple[list[str], list[NumberedRow]]:
    """Return the header of a CSV file, and its rows with their line numbers, as `plain_cell`.

    Raises
    ------
    DataError
        If the file is missing, empty, not UTF-8 or not well-formed, or the number of a row's cells
        differs from the header's; the message names the line.
    """
    check_file(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(bounded_lines(file, path), strict=True)
            rows: list[NumberedRow] = []
            for cells in reader:
                rows.append((reader.line_num, cells))
                ROWS.check(len(rows), path)
                CELLS.check(len(rows) * len(cells), path)
            header = list(reader.fieldnames or [])
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not a well-formed CSV") from error
    for line, row in rows:
        if None in row or None in row.values():
            raise DataError(f"{path}, line {line}: the number of cells differs from the header's")
    plain = ((line, {key: plain_cell(cell) for key, cell in row.items()}) for line, row in rows)
    return header, list(plain)


def not_utf8(path: Path) -> DataError:
    """Return the error that names the first line of ``path`` that is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return DataError(
                    f"{path}, line {number}: not UTF-8 (byte {error.object[error.start]:#04x} at"
                    f" position {error.start}); save the file as UTF-8, e.g. with iconv"
                )
    return DataError(f"{path}: not UTF-8; save the file as UTF-8, e.g. with iconv")
