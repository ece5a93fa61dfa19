"""Read predictions of other evaluation kits, whatever the file format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flipbench.benchmarks.grouping import group_of, rotated_groups
from flipbench.benchmarks.tables import (
    Row,
    check_file,
    columns_of,
    find_columns,
    join_names,
    read_json,
    read_rows,
    read_text,
)
from flipbench.core.errors import ConfigError, DataError, nearest
from flipbench.prompting.prompts import LETTERS

from .inspect_logs import inspect_predictions, is_log, read_eval
from .lmms_eval import is_samples, lmms_eval_predictions
from .prediction import Prediction, PredictionFile, id_text, listing, truth


@dataclass(frozen=True)
class ReadOptions:
    """How to read a file, beyond what it states itself.

    Attributes
    ----------
    columns : dict of str
        Tables: what a column means → its name. lmms-eval: ``id`` → the key of the id; ``filter`` →
        the filter whose rows are taken.
    scorer : str
        The Inspect scorer or lmms-eval metric that marks replies right or wrong.
    epoch : int or None
        Inspect: which repeat of each sample.
    """

    columns: dict[str, str] = field(default_factory=dict)
    scorer: str = ""
    epoch: int | None = None


def read_predictions(path: Path, options: ReadOptions | None = None) -> PredictionFile:
    """Read predictions of VLMEvalKit, lmms-eval or Inspect, or a plain table.

    ``.eval`` is an Inspect log; so is ``.json`` with Inspect's header, otherwise it is a table;
    ``.jsonl`` is lmms-eval's if it has ``doc_id`` and ``filtered_resps``, otherwise a table.

    Raises
    ------
    DataError
        If the file cannot be read; the message names the file, the line and the remedy.
    PrerequisiteError
        If an optional package is missing.
    """
    check_file(path)
    try:
        return _read(path, options or ReadOptions())
    except RecursionError as error:
        raise DataError(f"{path}: a value is nested too deeply; remove it") from error


def _read(path: Path, options: ReadOptions) -> PredictionFile:
    if path.suffix.lower() == ".eval":
        return inspect_predictions(path, read_eval(path), options.scorer, options.epoch)
    if path.suffix.lower() == ".json":
        data = read_json(path)
        if is_log(data):
            return inspect_predictions(path, data, options.scorer, options.epoch)
    rows = read_rows(path)
    if is_samples(rows):
        keys = (options.columns.get(meaning, "") for meaning in ("id", "filter"))
        return lmms_eval_predictions(path, rows, options.scorer, *keys)
    return table_predictions(path, rows, options.columns)


def read_ids(path: Path) -> list[str]:
    """Return the ids of a keep list, one per line; blank lines are ignored.

    Raises
    ------
    DataError
        If the file is missing, empty or not UTF-8, or an id occurs twice.
    """
    check_file(path)
    ids = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    repeated = [name for name, n in Counter(ids).items() if n > 1]
    if repeated or not ids:
        problem = f"repeated ids: {listing(repeated)}" if repeated else "there is no id"
        raise DataError(f"{path}: {problem}; list each id once, one per line")
    return ids


# --- tables: VLMEvalKit's result files, or any others with equivalent columns ------------------

COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ("index", "id", "item_id", "question_id", "name"),
    "prediction": ("prediction", "response", "reply", "output"),
    "answer": ("answer", "gold", "target", "label"),
    "correct": ("hit", "correct", "is_correct", "score"),
    "question": ("question",),
    "group": (),
    "error": ("error",),
    "judged_by": ("judged_by",),
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
    header = columns_of(rows)
    names = _column_names(path, rows, header, columns or {})
    letters = [letter for letter in LETTERS if letter in header]
    predictions = [_prediction(row, names, letters) for row in rows]
    rotated = rotated_groups([prediction.id for prediction in predictions])
    with_groups = tuple(
        prediction
        if prediction.group or prediction.id not in rotated
        else replace(prediction, group=rotated[prediction.id])
        for prediction in predictions
    )
    return PredictionFile(path, "table", with_groups)


def _column_names(
    path: Path, rows: Sequence[Row], header: Sequence[str], overrides: Mapping[str, str]
) -> dict[str, str]:
    for meaning, name in overrides.items():
        if meaning not in COLUMNS:
            raise ConfigError(
                f"unknown column meaning {meaning!r}: choose from {', '.join(COLUMNS)}"
                + nearest(meaning, list(COLUMNS))
            )
        if name not in header:
            raise DataError(
                f"{path}: there is no column {name!r} (found: {join_names(header)})"
                + nearest(name, list(header))
            )
    names = find_columns(rows, COLUMNS, str(path)) | dict(overrides)
    required = ("id",) if "correct" in names else ("id", "prediction")
    if absent := [meaning for meaning in required if meaning not in names]:
        remedy = f", or name it: {absent[0]}=COLUMN"
        find_columns(rows, COLUMNS, str(path), required=absent, remedy=remedy)
    return names


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
        judged_by=text("judged_by").strip(),
    )


def _is_cut(reply: str) -> bool:
    n = len(reply)
    if n != _CELL_LIMIT and not n < _CELL_LIMIT < 2 * n:
        return False
    return _CELL_LIMIT in (n, len(reply.encode("utf-16-le", "replace")) // 2)  # as Excel counts


def _absent(value: Any) -> bool:
    return value is None or not str(value).strip() or value != value
