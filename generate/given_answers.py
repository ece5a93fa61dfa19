"""Read the new answers a user supplies."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from flipbench.benchmarks.tables import parse_json
from flipbench.core.errors import DataError, nearest

_FIELDS = ("name", "new_answer")


def read_new_answers(path: Path, names: Collection[str]) -> dict[str, str]:
    """Return new answers by item name from a CSV, TSV or JSONL file.

    Each row has ``name``, the item's name in the benchmark, and ``new_answer``, an option's letter
    or text.

    Raises
    ------
    DataError
        If the file cannot be read, or a row lacks a field, names an item that is not in
        ``names``, or repeats an item. The message gives file and line.
    """
    answers: dict[str, str] = {}
    for number, row in _rows(path):
        values = [row.get(field) for field in _FIELDS]
        if any(value is None or not str(value).strip() for value in values):
            raise DataError(f"{path}:{number}: needs 'name' and 'new_answer', but has {row!r}")
        name, answer = (str(value).strip() for value in values)
        if name not in names:
            hint = nearest(name, list(names))
            raise DataError(f"{path}:{number}: the benchmark has no item {name!r}{hint}")
        if name in answers:
            raise DataError(f"{path}:{number}: item {name!r} has a second new answer; remove one")
        answers[name] = answer
    return answers


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as new answers ({error})") from error
    if path.suffix in (".csv", ".tsv"):
        reader = csv.DictReader(
            text.splitlines(keepends=True), delimiter="\t" if path.suffix == ".tsv" else ","
        )
        for row in reader:
            yield reader.line_num, row
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise DataError(f"{path}:{number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: not a JSON object with 'name' and 'new_answer'")
        yield number, row
