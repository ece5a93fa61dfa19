"""Predictions in tables: VLMEvalKit's result files, and anybody's CSV with the same columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flipbench.core.errors import ConfigError, DataError, nearest
from flipbench.prompting.prompts import LETTERS

from .prediction import Prediction, PredictionFile, id_text, truth
from .rows import TableRow

COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ("index", "id", "item_id", "question_id", "name"),
    "prediction": ("prediction", "response", "reply", "output"),
    "answer": ("answer", "gold", "target", "label"),
    "correct": ("hit", "correct", "is_correct"),
    "question": ("question",),
    "group": ("g_index", "group", "image_id", "image_path"),
    "error": ("error",),
}
"""What a column means → the names it goes by, the first that is there (whatever the case)."""

API_FAILURE = "Failed to obtain answer via API"
"""What VLMEvalKit writes where a reply should be."""


def table_predictions(
    path: Path, rows: Sequence[TableRow], columns: Mapping[str, str] | None = None
) -> PredictionFile:
    """Read rows whose columns are VLMEvalKit's, or mean the same.

    VLMEvalKit writes all columns of its TSV except ``image``, and ``prediction``; after scoring
    also ``hit``. Options are the columns A, B, …; an empty one is an absent option.

    Parameters
    ----------
    columns : mapping of str to str, optional
        What a column means (a key of `COLUMNS`) → its name in this file.

    Raises
    ------
    ConfigError
        Where ``columns`` names what is not a meaning.
    DataError
        Where there is no column of ids, or neither replies nor marks.
    """
    header = list(dict.fromkeys(name for row in rows for name in row.cells))
    found = _columns(path, header, columns or {})
    letters = [letter for letter in LETTERS if letter in header]
    predictions = tuple(_prediction(row, found, letters) for row in rows)
    return PredictionFile(path, "table", predictions)


def _columns(path: Path, header: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    for meaning, name in given.items():
        if meaning not in COLUMNS:
            raise ConfigError(
                f"no column means {meaning!r}: choose from {', '.join(COLUMNS)}"
                + nearest(meaning, list(COLUMNS))
            )
        if name not in header:
            raise DataError(
                f"{path}: there is no column {name!r} (found: {', '.join(header)})"
                + nearest(name, list(header))
            )
    lower = {name.lower(): name for name in reversed(header) if name}
    found = {
        meaning: next((lower[alias] for alias in aliases if alias in lower), "")
        for meaning, aliases in COLUMNS.items()
    } | dict(given)
    for meaning in ("id", *(("prediction",) if not found["correct"] else ())):
        if not found[meaning]:
            raise DataError(
                f"{path}: there is no column of the {meaning} ({' or '.join(COLUMNS[meaning])};"
                f" found: {', '.join(header)}); rename one, or name it: {meaning}=COLUMN"
            )
    return {meaning: name for meaning, name in found.items() if name}


def _prediction(row: TableRow, columns: Mapping[str, str], letters: Sequence[str]) -> Prediction:
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
    if not error and not reply.strip() and ("prediction" in columns or correct is None):
        error = "there is no reply"
    name = id_text(cell("id"))
    if not name:
        raise DataError(f"{row.where}: the id is empty; every prediction needs its item's id")
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
        group=text("group"),
        error=error,
    )


def _absent(value: Any) -> bool:
    return value is None or not str(value).strip() or value != value
