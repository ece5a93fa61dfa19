"""The one source of rows: CSV, TSV, JSON, JSONL, parquet and xlsx, as the file's suffix says.

Benchmarks, predictions, kept lists, new answers and published tables are all read here: encoding,
limits, repeated columns and the line in each message are the same for all of them.
"""

from __future__ import annotations

import ast
import contextlib
import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipbench.core.errors import DataError, nearest, need, shorten
from flipbench.core.files import plain_cell
from flipbench.core.limits import (
    CELLS,
    COLUMNS,
    FILE_BYTES,
    ROWS,
    TABLE_BYTES,
    bounded_lines,
    check_parquet,
    check_zip,
)
from flipbench.prompting.prompts import LETTERS

_BATCH = 64  # rows of a parquet file that are unpacked at a time


class RowError(DataError):
    """A row that cannot be used: the problem, how to fix it, and its kind."""

    def __init__(self, kind: str, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.kind, self.what, self.remedy = kind, what, remedy


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes
    ----------
    where : str
        The file's name and the row's line or number, for messages.
    cells : dict
        The cells by column, unconverted.
    number : int
        The first line of the row in a text file; elsewhere its number, from 1 (xlsx: from 2).
    error : RowError or None
        Why the row cannot be used; what could be read of it is still in ``cells``.
    """

    where: str
    cells: dict[str, Any]
    number: int = 0
    error: RowError | None = None


@dataclass(frozen=True)
class Table:
    """A table's columns (none for JSON, whose rows name their own), and its rows, read lazily."""

    columns: list[str]
    rows: Iterator[Row]


def open_table(path: Path, *, in_memory: bool = False) -> Table:
    """Return a table whose rows are read one by one, of a file of any size.

    With ``in_memory``, a parquet file that unpacks to more than a table may hold is refused before
    anything is unpacked.

    Raises
    ------
    DataError
        Here or while rows are read: if the file is missing, empty, not UTF-8, malformed or of an
        unsupported type. A row that alone is wrong has its ``error`` instead.
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
    if suffix not in (*_READERS, ".parquet"):
        raise DataError(
            f"{path}: give an .xlsx, .tsv, .csv, .json, .jsonl or .parquet file (for predictions,"
            " an Inspect log .eval, too)"
        )
    parquet = suffix == ".parquet"
    rows = _parquet_rows(path, in_memory) if parquet else _READERS[suffix](path)
    return Table(list(next(rows).cells), rows)


def read_rows(path: Path) -> list[Row]:
    """Return all rows of a table that is held in memory.

    Raises
    ------
    DataError
        As `open_table`; if the table is over a limit, has no rows, or one of them has an error.
    """
    rows = list(_bounded(path, open_table(path, in_memory=True).rows))
    if not rows:
        raise DataError(f"{path}: there are no rows; write the file again")
    return rows


def _bounded(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows; raise at the first with an error, or once a limit is exceeded."""
    counts = {ROWS: 0, CELLS: 0, TABLE_BYTES: 0}
    maxima = {limit: limit.value for limit in counts}
    most_columns = COLUMNS.value
    for row in rows:
        if row.error:
            raise DataError(f"{row.where}: {row.error}") from row.error
        if len(row.cells) > most_columns:
            COLUMNS.check(len(row.cells), row.where)
        counts[ROWS] += 1
        counts[CELLS] += len(row.cells)
        counts[TABLE_BYTES] += sum(
            len(cell) for cell in row.cells.values() if isinstance(cell, str | bytes)
        )
        for limit, n in counts.items():
            if n > maxima[limit]:
                limit.check(n, path)
        yield row


NumberedRow = tuple[int, dict[str, str]]


def numbered_rows(path: Path) -> tuple[list[str], list[NumberedRow]]:
    """Return the columns of a table, and its rows of texts (`plain_cell`) with their lines.

    Raises
    ------
    DataError
        As `open_table`; if the table is over a limit, or the number of a row's cells differs from
        the header's.
    """
    table = open_table(path, in_memory=True)
    rows = list(_bounded(path, table.rows))
    columns = table.columns or columns_of(rows)
    texts = [(row.number, {c: cell_text(row.cells.get(c)) for c in columns}) for row in rows]
    return columns, texts


def cell_text(cell: Any) -> str:
    """Return a cell as text, without the guard of our own CSV files; "" if it is missing."""
    if isinstance(cell, str):
        return plain_cell(cell)
    return "" if cell is None or cell != cell else str(cell)


# --- checks before the first row -------------------------------------------------------------


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


def check_columns(required: Sequence[str], columns: Sequence[str], source: str) -> None:
    """Check that a table has all needed columns.

    Raises
    ------
    DataError
        If a column is missing; the message gives those found, and the closest one.
    """
    for column in required:
        if column not in columns:
            by_lower = {name.lower(): name for name in columns}
            close = by_lower.get(column.lower())
            guess = f"; did you mean {close!r}?" if close else nearest(column, list(columns))
            raise DataError(
                f"{source}: there is no column {column!r} (found: {join_names(columns)}){guess};"
                f" rename a column to {column!r}, or map it"
            )


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Return the names of all cells, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.cells))


def find_columns(
    rows: Sequence[Row],
    aliases: Mapping[str, tuple[str, ...]],
    source: str,
    *,
    required: Sequence[str] = (),
    remedy: str = "",
) -> dict[str, str]:
    """Return what a column means → its name in a table, ignoring case and outer blanks.

    Parameters
    ----------
    aliases : mapping
        What a column means → its possible names, in order of preference.
    required : sequence of str
        Meanings without which the table is refused.
    remedy : str
        What can be done besides renaming a column.

    Raises
    ------
    DataError
        If a required column is missing, or there are no rows.
    """
    if not rows:
        raise DataError(f"{source}: there are no rows")
    columns = columns_of(rows)
    by_lower = {str(name).strip().lower(): name for name in reversed(columns) if name}
    names = {
        meaning: next((by_lower[alias] for alias in options if alias in by_lower), "")
        for meaning, options in aliases.items()
    }
    for meaning in required:
        if not names[meaning]:
            raise DataError(
                f"{source}: there is no column for the {meaning} ({' or '.join(aliases[meaning])};"
                f" found: {join_names(columns)}){nearest(aliases[meaning][0], list(by_lower))};"
                f" rename a column{remedy}"
            )
    return {meaning: name for meaning, name in names.items() if name}


def join_names(names: Sequence[object]) -> str:
    """Return names for a message, without the rest of a long list."""
    return shorten(", ".join(map(str, names[:200])), 400)


def option_columns(columns: Sequence[str], source: str) -> list[str]:
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
    capital = [letter for letter in LETTERS if letter in columns]
    small = [c.lower() for c in LETTERS if c.lower() in columns and c not in capital]
    next_letter = LETTERS[len(capital) : len(capital) + 1].lower()
    if small[:2] == ["a", "b"] or capital and next_letter in small:
        raise DataError(
            f"{source}: options are in columns named by small letters ({', '.join(small)}), and"
            " columns of options are named A, B, …; rename them"
        )
    beyond = [f"A{letter}" for letter in LETTERS if f"A{letter}" in columns]
    return [*capital, *beyond] if len(capital) == len(LETTERS) else capital


# --- texts -----------------------------------------------------------------------------------


def read_text(path: Path) -> str:
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


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises
    ------
    DataError
        If it is not JSON or not UTF-8.
    """
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise DataError(f"{path}, line {line}: {_not_json(error)}") from error


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


def _not_json(error: ValueError) -> RowError:
    reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    return RowError("json", f"not JSON ({reason})", "is the file complete?")


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


# --- one reader per format: each yields a row of the columns' names, then the rows ------------


def _header(path: Path, names: Sequence[object]) -> Row:
    if len(names) > COLUMNS.value:
        COLUMNS.check(len(names), path)
    columns = ["" if name is None else str(name) for name in names]
    for name, n in Counter(columns).items():
        if name and n > 1:
            raise DataError(f"{path}: two columns are named {name!r}; rename one")
    return Row(str(path), dict.fromkeys(columns))


def _delimited_rows(path: Path) -> Iterator[Row]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            records = split_lines(bounded_lines(file, path), delimiter, path)
            _, columns = next(records, (1, []))
            yield _header(path, columns)
            for number, cells in records:
                error = None
                if len(cells) != len(columns):
                    problem = f"{len(cells)} cells, but the header has {len(columns)}"
                    remedy = "a separator or quote is missing or superfluous: fix the row"
                    error = RowError("cells", problem, remedy)
                cells_by_column = dict(zip(columns, cells, strict=False))
                yield Row(f"{path.name}, line {number}", cells_by_column, number, error)
    except UnicodeDecodeError as error:
        raise not_utf8(path) from error


def split_lines(
    lines: Iterator[str], delimiter: str, source: object
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line's number and the cells of each row that is not blank.

    ``csv``, which needs up to eight bytes for a character, reads only lines with some quoted cells.

    Raises
    ------
    DataError
        If a quoted cell does not end, or a row has more cells than a table may have columns.
    """
    number, most_columns = 1, COLUMNS.value
    longest_cell = min(FILE_BYTES.value, 2**31 - 1)
    for line in lines:
        if line.count(delimiter) > most_columns:
            n_cells = 1 + sum(part.count(delimiter) for part in line.split('"')[::2])
            COLUMNS.check(n_cells, f"{source}, line {number}")
        n_lines, cells = 1, _split(line.rstrip("\r\n"), delimiter)
        if cells is None:
            default = csv.field_size_limit(longest_cell)
            reader = csv.reader(itertools.chain([line], lines), delimiter=delimiter, strict=True)
            try:
                cells = next(reader)
            except csv.Error as error:
                kind = "TSV" if delimiter == "\t" else "CSV"
                raise DataError(
                    f"{source}, line {number + reader.line_num - 1}: not a well-formed {kind}"
                    f" ({error}); a cell that starts with a quote must end with one, and quotes"
                    " inside must be doubled: write the file with pandas or csv"
                ) from error
            finally:
                csv.field_size_limit(default)
            n_lines = reader.line_num
        line = ""  # not kept beside its cells
        if cells:
            yield number, cells
        number += n_lines


def _split(text: str, delimiter: str) -> list[str] | None:
    """Return the cells of a line that quotes none of them or all, and holds no other quote."""
    if text[:1] == text[-1:] == '"' and len(text) > 1:
        cells = text[1:-1].split(f'"{delimiter}"')
        return None if any('"' in cell for cell in cells) else cells
    if '"' in text:
        return None
    return text.split(delimiter) if text else []


def _xlsx_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of the first sheet.

    Formulas are not evaluated: pandas writes a reply such as "=5" as one, and its computed value
    is missing or not the reply.
    """
    openpyxl = need("openpyxl", "predictions")
    n_cells, most_cells = 0, CELLS.value
    try:
        check_zip(path, FILE_BYTES, path)  # its texts take twice as much in memory
        with contextlib.closing(openpyxl.load_workbook(path, read_only=True)) as book:
            if not book.worksheets:
                raise DataError(f"{path}: the workbook has no sheet of cells; write it again")
            sheet = book.worksheets[0].iter_rows(values_only=True)
            columns = next(sheet, ())
            yield _header(path, columns)
            names = ["" if name is None else str(name) for name in columns]
            for number, values in enumerate(sheet, 2):
                n_cells += len(values)  # blank rows, too
                if n_cells > most_cells:
                    CELLS.check(n_cells, path)
                if any(value is not None for value in values):
                    cells = dict(zip(names, values, strict=False))
                    yield Row(f"{path.name}, row {number}", cells, number)
    except DataError:
        raise
    except Exception as error:  # zip, XML and openpyxl share no base class
        raise DataError(f"{path}: not an .xlsx workbook ({error}); write it again") from error


def _json_rows(path: Path) -> Iterator[Row]:
    """Yield the members of a list, the rows of pandas' {column: {row: cell}}, or of each line."""
    text = read_text(path)
    try:
        data = parse_json(text)
    except ValueError:
        if text.lstrip().startswith("{"):  # several values: one in each line
            yield from _jsonl_rows(path)
            return
        data = read_json(path)  # for its error
    yield Row(str(path), {})
    if isinstance(data, dict):
        if data and all(isinstance(column, dict) for column in data.values()):
            labels = list(next(iter(data.values())))
            data = [{name: column.get(label) for name, column in data.items()} for label in labels]
        else:
            data = [data]
    if not isinstance(data, list):
        raise DataError(
            f"{path}: neither a list of objects nor columns as pandas writes them; write one object"
            " for each row"
        )
    for number, value in enumerate(data, 1):
        yield _json_row(f"{path.name}, object {number}", number, value)


def _jsonl_rows(path: Path) -> Iterator[Row]:
    yield Row(str(path), {})
    with path.open("rb") as file:
        for number, line in enumerate(bounded_lines(file, path), 1):
            place = f"{path.name}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(path) from error
            if not text.strip():
                continue
            try:
                row = _json_row(place, number, parse_json(text))
            except ValueError as error:
                row = Row(place, {}, number, _not_json(error))
            yield row


def _json_row(place: str, number: int, value: Any) -> Row:
    if isinstance(value, dict):
        return Row(place, value, number)
    return Row(place, {}, number, RowError("json", "not a JSON object", "write it as {…}"))


def _parquet_rows(path: Path, in_memory: bool) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            check_parquet(file, path, in_memory=in_memory)
            yield _header(path, file.schema_arrow.names)
            for batch in file.iter_batches(_BATCH):
                TABLE_BYTES.check(batch.nbytes, path)  # a dictionary's texts, written out
                for cells in batch.to_pylist():
                    number += 1
                    yield Row(f"{path.name}, row {number}", cells, number)
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: not a parquet file ({reason}); write it again") from error


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": _delimited_rows,
    ".tsv": _delimited_rows,
    ".xlsx": _xlsx_rows,
    ".json": _json_rows,
    ".jsonl": _jsonl_rows,
}
