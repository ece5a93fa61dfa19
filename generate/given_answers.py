"""Read the new answers a user supplies."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from flipbench.benchmarks.tables import cell_text, read_rows
from flipbench.core.errors import DataError, nearest

_FIELDS = ("name", "new_answer")


def read_new_answers(path: Path, names: Collection[str]) -> dict[str, str]:
    """Return new answers by item name from a table, such as a CSV, TSV or JSONL file.

    Each row has ``name``, the item's name in the benchmark, and ``new_answer``, an option's letter
    or text.

    Raises
    ------
    DataError
        If the file cannot be read, or a row lacks a field, names an item that is not in
        ``names``, or repeats an item. The message gives file and line.
    """
    answers: dict[str, str] = {}
    for row in read_rows(path):
        name, answer = (cell_text(row.cells.get(field)).strip() for field in _FIELDS)
        if not name or not answer:
            raise DataError(f"{row.where}: needs 'name' and 'new_answer', but has {row.cells!r}")
        if name not in names:
            hint = nearest(name, list(names))
            raise DataError(f"{row.where}: the benchmark has no item {name!r}{hint}")
        if name in answers:
            raise DataError(f"{row.where}: item {name!r} has a second new answer; remove one")
        answers[name] = answer
    return answers
