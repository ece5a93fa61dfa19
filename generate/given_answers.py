"""Read the new answers that a user supplies."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from flipbench.core.errors import DataError, nearest

_FIELDS = ("name", "new_answer")


def read_new_answers(path: Path, names: Collection[str]) -> dict[str, str]:
    """Return new answers by item name from a CSV, TSV or JSONL file.

    Every line has ``name``, the item's name in the benchmark, and ``new_answer``, an option's
    letter or text.

    Raises
    ------
    DataError
        Where the file cannot be read, a line lacks a field, or names no item of ``names``, or an
        item a second time. The message names file and line.
    """
    answers: dict[str, str] = {}
    for number, row in _rows(path):
        values = [row.get(field) for field in _FIELDS]
        if any(value is None or not str(value).strip() for value in values):
            raise DataError(f"{path}:{number}: needs 'name' and 'new_answer', has {row!r}")
        name, answer = (str(value).strip() for value in values)
        if name not in names:
            close = nearest(name, list(names))
            raise DataError(f"{path}:{number}: the benchmark has no item {name!r}{close}")
        if name in answers:
            raise DataError(f"{path}:{number}: a second new answer for item {name!r}; keep one")
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
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}:{number}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: not an object with 'name' and 'new_answer'")
        yield number, row
