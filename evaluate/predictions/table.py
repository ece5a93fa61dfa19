"""Predictions in tables: VLMEvalKit's result files, or any CSV with equivalent columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flipbench.benchmarks.grouping import group_of, rotated_groups
from flipbench.benchmarks.tables import Row
from flipbench.core.errors import ConfigError, DataError, nearest
from flipbench.prompting.prompts import LETTERS

from .prediction import Prediction, PredictionFile, id_text, truth

COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ("index", "id", "item_id", "question_id", "name"),
    "prediction": ("prediction", "response", "reply", "output"),
    "answer": ("answer", "gold", "target", "label"),
    "correct": ("hit", "correct", "is_correct", "score"),
    "question": ("question",),
    "group": (),
    "error": ("error",),
}
"""What a column means → its possible names, in order of preference; case is ignored.

Without a name, groups are found by `flipbench.benchmarks.grouping`.
"""

API_FAILURE = "Failed to obtain answer via API"
"""What VLMEvalKit writes in place of a reply."""

_CELL_LIMIT = 32_767  # Excel's, at which pandas and openpyxl cut without a word


def table_predictions(
    path: Path, rows: Sequence[Row], columns: Mapping[str, str] | None = None
) -> PredictionFile:
    """Read rows with VLMEvalKit's columns or equivalent ones.

    VLMEvalKit writes all columns of its TSV except ``image``, plus ``prediction`` and, after
    scoring, ``hit``. Options are the columns A, B, …; an empty cell is an absent option.

    Parameters
    ----------
    columns : mapping of str to str, optional
        What a column means (a key of `COLUMNS`) → its name in this file.

    Raises
    ------
    ConfigError
        If ``columns`` has an unknown meaning.
    DataError
        If there is no column of ids, or neither replies nor marks.
    """
    header = list(dict.fromkeys(name for row in rows for name in row.cells))
    names = _columns(path, header, columns or {})
    letters = [letter for letter in LETTERS if letter in header]
    predictions = [_prediction(row, names, letters) for row in rows]
    rotated = rotated_groups([prediction.id for prediction in predictions])
    grouped = tuple(
        prediction
        if prediction.group or prediction.id not in rotated
        else replace(prediction, group=rotated[prediction.id])
        for prediction in predictions
    )
    return PredictionFile(path, "table", grouped)


def _columns(path: Path, header: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    for meaning, name in given.items():
        if meaning not in COLUMNS:
            raise ConfigError(
                f"unknown column meaning {meaning!r}: choose from {', '.join(COLUMNS)}"
                + nearest(meaning, list(COLUMNS))
            )
        if name not in header:
            raise DataError(
                f"{path}: there is no column {name!r} (found: {', '.join(header)})"
                + nearest(name, list(header))
            )
    lower = {name.lower(): name for name in reversed(header) if name}
    names = {
        meaning: next((lower[alias] for alias in aliases if alias in lower), "")
        for meaning, aliases in COLUMNS.items()
    } | dict(given)
    for meaning in ("id", *(("prediction",) if not names["correct"] else ())):
        if not names[meaning]:
            raise DataError(
                f"{path}: there is no column for the {meaning} ({' or '.join(COLUMNS[meaning])};"
                f" found: {', '.join(header)}); rename a column, or name it: {meaning}=COLUMN"
            )
    return {meaning: name for meaning, name in names.items() if name}


def _prediction(row: Row, columns: Mapping[str, str], letters: Sequence[str]) -> Prediction:
    def cell(meaning: str) -> Any:
        value = row.cells.get(columns.get(meaning, ""))
        return None if isinstance(value, float) and math.isnan(value) else value

    def text(meaning: str) -> str:
        value = cell(meaning)
        return "" if value is None else str(value)

    reply = text("prediction")
    correct = truth(cell("correct"))
    error = text("error").strip()
    if not error and API_FAILURE in reply:
        error = "the API gave no answer"
    if not error and _is_cut(reply):
        error = f"the reply is cut off at a spreadsheet's {_CELL_LIMIT:,} characters; write tsv"
    if not error and not reply.strip() and ("prediction" in columns or correct is None):
        error = "there is no reply"
    name = id_text(cell("id"))
    if not name:
        raise DataError(f"{row.where}: the id is empty; every prediction needs the id of its item")
    return Prediction(
        id=name,
        where=row.where,
        text=reply if "prediction" in columns and not error else None,
        gold=text("answer").strip(),
        options=tuple(
            (letter, str(value))
            for letter in letters
            if not _absent(value := row.cells.get(letter))
        ),
        correct=None if error else correct,
        question=text("question"),
        group=text("group") if "group" in columns else group_of(row.cells),
        error=error,
    )


def _is_cut(reply: str) -> bool:
    n = len(reply)
    if n != _CELL_LIMIT and not n < _CELL_LIMIT < 2 * n:
        return False
    return _CELL_LIMIT in (n, len(reply.encode("utf-16-le", "replace")) // 2)  # as Excel counts


def _absent(value: Any) -> bool:
    return value is None or not str(value).strip() or value != value
