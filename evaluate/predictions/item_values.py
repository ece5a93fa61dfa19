"""Right or wrong and log-probabilities of many models, item by item, from one long table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from flipbench.benchmarks.tables import Row
from flipbench.core.errors import DataError, nearest

from .models_table import cell_text, find_columns
from .prediction import Prediction, truth

SIDES = ("original", "perturbed")
COLUMNS = {
    "model": ("model", "name"),
    "item": ("item", "item_id", "id", "index", "question_id"),
    "condition": ("condition", "version", "side"),
    "correct": ("correct", "hit", "is_correct"),
    "log_prob": ("logprob", "log_prob", "log_probability", "log_likelihood"),
    "group": ("group", "image_id", "g_index"),
}
"""What a column means → its possible names; case is ignored."""


@dataclass
class ItemValues:
    """One model's values by condition (a name in `SIDES`) and item.

    Attributes
    ----------
    predictions : dict of str to dict
        Right or wrong; a missing mark is an error of the item, not a wrong answer.
    log_probs : dict of str to dict
        Log-probability of the right answer, in nats; missing ones are left out.
    groups : dict of str
        What an item shares with others, such as its image.
    """

    predictions: dict[str, dict[str, Prediction]] = field(default_factory=dict)
    log_probs: dict[str, dict[str, float]] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)


def item_values(
    rows: Sequence[Row], source: str, *, model: str = "", marks: bool = True
) -> dict[str, ItemValues]:
    """Return each model's values in rows with the columns `COLUMNS`.

    Parameters
    ----------
    model : str
        The one model of a table without a column ``model``; its condition is "original" if the
        table has none.
    marks : bool
        Whether a column ``correct`` is used.

    Raises
    ------
    DataError
        If a column is missing, a value is given twice, or a cell cannot be read.
    """
    needed = ("item", *(() if model else ("model", "condition")))
    columns = find_columns(rows, COLUMNS, needed, source)
    if not marks:
        columns.pop("correct", None)
    if not {"correct", "log_prob"} & set(columns):
        wanted = "'correct' (0 or 1) or 'logprob'" if marks else "'logprob'"
        raise DataError(f"{source}: there is no column {wanted}")
    values: dict[str, ItemValues] = {}
    places: dict[tuple[str, str, str], str] = {}
    for row in rows:
        name = cell_text(row, columns, "model") or model
        item = cell_text(row, columns, "item")
        side = cell_text(row, columns, "condition").lower() or ("original" if model else "")
        if not name or not item:
            raise DataError(f"{row.where}: the {'item' if name else 'model'} is empty")
        if side not in SIDES:
            raise DataError(
                f"{row.where}: the condition is {side!r}; write original or perturbed"
                + nearest(side, list(SIDES))
            )
        if first := places.get((name, side, item)):
            raise DataError(
                f"{row.where}: {name}, item {item!r}, {side} is also in {first}; keep one"
            )
        places[name, side, item] = row.where
        _add(values.setdefault(name, ItemValues()), row, columns, side, item)
    return values


def _add(values: ItemValues, row: Row, columns: dict[str, str], side: str, item: str) -> None:
    group = values.groups[item] = cell_text(row, columns, "group")
    if "correct" in columns:
        text = cell_text(row, columns, "correct")
        mark = truth(text)
        if text and mark is None:
            raise DataError(f"{row.where}: correct is {text!r}; write 1, 0, or nothing")
        error = "" if text else "there is no answer"
        prediction = Prediction(item, row.where, None, "", correct=mark, group=group, error=error)
        values.predictions.setdefault(side, {})[item] = prediction
    if text := cell_text(row, columns, "log_prob"):
        values.log_probs.setdefault(side, {})[item] = _log_prob(text, row)


def _log_prob(text: str, row: Row) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{row.where}: the log-probability {text!r} is not a finite number")
    if value > 0:
        raise DataError(
            f"{row.where}: {text} is no log-probability, which is 0 or less; a loss has the other"
            " sign, a probability needs its logarithm"
        )
    return value
