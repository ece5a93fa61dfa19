"""The two tables of `flipbench validate`: models of known dose, and their answers item by item."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flipbench.benchmarks.tables import Row, find_columns
from flipbench.core.confined import confined_path
from flipbench.core.errors import ConfigError, DataError, nearest, result_or_error
from flipbench.core.files import write_atomically
from flipbench.core.randomness import generator
from flipbench.reporting.writers import records_csv

from ..protocol.grid import KINDS, UNTOUCHED, GridModel, Kind
from .prediction import Prediction, PredictionFile, id_text, truth

MODEL_COLUMNS = {
    "model": ("model", "name"),
    "family": ("family",),
    "lineage": ("lineage",),
    "strategy": ("strategy",),
    "dose": ("dose",),
    "epoch": ("epoch",),
    "external": ("external",),
    "kind": ("kind",),
    "original": ("original",),
    "perturbed": ("perturbed",),
    "log_probs": ("logprobs", "log_probs"),
}
"""Of the table of models: what a column means → its possible names; case is ignored."""

ITEM_COLUMNS = {
    "model": ("model", "name"),
    "item": ("item", "item_id", "id", "index", "question_id"),
    "condition": ("condition", "version", "side"),
    "correct": ("correct", "hit", "is_correct"),
    "log_prob": ("logprob", "log_prob", "log_probability", "log_likelihood"),
    "group": ("group", "image_id", "g_index"),
}
"""Of the long table of items."""

SIDES = ("original", "perturbed")
_FILES = ("original", "perturbed", "log_probs")


class _Cells:
    """The cells of a row as texts, by what their columns mean; "" if there is no such column."""

    def __init__(self, row: Row, columns: dict[str, str]) -> None:
        self.row, self.columns = row, columns

    def __getitem__(self, meaning: str) -> str:
        value = self.row.cells.get(self.columns.get(meaning, ""))
        return "" if value is None or value != value else id_text(value)

    def whole(self, meaning: str) -> int | None:
        """Return a whole number; None for an empty cell."""
        text = self[meaning]
        if text and not text.isdigit():
            raise DataError(
                f"{self.row.where}: {meaning} is {text!r}, not a whole number of 0 or more (copies"
                " of each item x epochs; empty if it is unknown)"
            )
        return int(text) if text else None


# --- the table of models ----------------------------------------------------------------------


@dataclass(frozen=True)
class ListedModel:
    """A row of the table of models.

    Attributes
    ----------
    model : GridModel
        Its name is its fingerprint: there are no weights to hash.
    where : str
        File and row, for messages.
    original, perturbed, log_probs : Path or None
        Files of predictions and of log-probabilities; None if the table has none.
    """

    model: GridModel
    where: str
    original: Path | None = None
    perturbed: Path | None = None
    log_probs: Path | None = None


def listed_models(rows: Sequence[Row], source: str, folder: Path | None) -> list[ListedModel]:
    """Return the models of rows with the columns `MODEL_COLUMNS`.

    Files lie below ``folder``; with None, for rows that the user made, anywhere. ``model``,
    ``family`` and ``dose`` are needed. An empty dose is unknown; an empty strategy is
    the clean model itself at dose 0 and "trained" above.

    Raises
    ------
    DataError
        If a column is missing, a model is listed twice, or a cell cannot be read.
    """
    columns = find_columns(rows, MODEL_COLUMNS, source, required=("model", "family", "dose"))
    models: dict[str, ListedModel] = {}
    for row in rows:
        model = _listed_model(_Cells(row, columns), folder)
        name = model.model.name
        if name in models:
            raise DataError(
                f"{row.where}: the model {name!r} is also in {models[name].where}; give every"
                " model one row and a name of its own"
            )
        models[name] = model
    return list(models.values())


def _listed_model(cells: _Cells, folder: Path | None) -> ListedModel:
    place = cells.row.where
    name, family, dose = cells["model"], cells["family"], cells.whole("dose")
    for meaning, value in (("model", name), ("family", family)):
        if not value:
            raise DataError(f"{place}: the {meaning} is empty; every model needs one")
    external = truth(cells["external"] or "0")
    if external is None:
        raise DataError(f"{place}: external is {cells['external']!r}; write 1 or 0")
    kind: Kind | Literal[""] = next((name for name in KINDS if name == cells["kind"]), "")
    if kind != cells["kind"]:
        raise DataError(
            f"{place}: kind is {cells['kind']!r}; write {', '.join(KINDS)}, or nothing"
            + nearest(cells["kind"], list(KINDS))
        )
    files: dict[str, Any] = {
        meaning: (folder or Path()) / cells[meaning] for meaning in _FILES if cells[meaning]
    }
    for meaning, file in files.items():
        column = cells.columns[meaning]
        confined = result_or_error(confined_path, file.absolute(), folder) if folder else file
        if isinstance(confined, DataError):
            raise DataError(f"{place}: {column}: {confined}") from confined
        if not file.is_file():
            raise DataError(f"{place}: {column} is {file}: no such file")
    strategies = {0: UNTOUCHED, None: "history unknown"}
    try:
        model = GridModel(
            name,
            name,
            family,
            cells["strategy"] or strategies.get(dose, "trained"),
            cells.whole("epoch") or 0,
            dose,
            cells["lineage"],
            external,
            kind=kind,
        )
    except DataError as error:
        raise DataError(f"{place}: {error}") from error
    return ListedModel(model, place, **files)


# --- the long table of items ------------------------------------------------------------------


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
    files : (PredictionFile, PredictionFile) or None
        Predictions for both versions, if there are any.
    """

    predictions: dict[str, dict[str, Prediction]] = field(default_factory=dict)
    log_probs: dict[str, dict[str, float]] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    files: tuple[PredictionFile, PredictionFile] | None = None


def item_values(
    rows: Sequence[Row], source: str, *, model: str = "", marks: bool = True
) -> dict[str, ItemValues]:
    """Return each model's values in rows with the columns `ITEM_COLUMNS`.

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
    required = ("item",) if model else ("item", "model", "condition")
    columns = find_columns(rows, ITEM_COLUMNS, source, required=required)
    if not marks:
        columns.pop("correct", None)
    if not {"correct", "log_prob"} & set(columns):
        names = "'correct' (0 or 1) or 'logprob'" if marks else "'logprob'"
        raise DataError(f"{source}: there is no column {names}")
    values: dict[str, ItemValues] = {}
    places: dict[tuple[str, str, str], str] = {}
    for row in rows:
        cells = _Cells(row, columns)
        name, item = cells["model"] or model, cells["item"]
        side = cells["condition"].lower() or ("original" if model else "")
        if not name or not item:
            raise DataError(f"{row.where}: the {'item' if name else 'model'} is empty")
        if side not in SIDES:
            raise DataError(
                f"{row.where}: the condition is {side!r}; write original or perturbed"
                + nearest(side, list(SIDES))
            )
        if place := places.get((name, side, item)):
            raise DataError(
                f"{row.where}: {name}, item {item!r}, {side} is also in {place}; keep one"
            )
        places[name, side, item] = row.where
        _add_values(values.setdefault(name, ItemValues()), cells, side, item)
    return values


def _add_values(values: ItemValues, cells: _Cells, side: str, item: str) -> None:
    place = cells.row.where
    group = values.groups[item] = cells["group"]
    if "correct" in cells.columns:
        text = cells["correct"]
        mark = truth(text)
        if text and mark is None:
            raise DataError(f"{place}: correct is {text!r}; write 1, 0, or nothing")
        error = "" if text else "there is no answer"
        prediction = Prediction(item, place, None, "", correct=mark, group=group, error=error)
        values.predictions.setdefault(side, {})[item] = prediction
    if text := cells["log_prob"]:
        values.log_probs.setdefault(side, {})[item] = _log_prob(text, place)


def _log_prob(text: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{place}: the log-probability {text!r} is not a finite number")
    if value > 0:
        raise DataError(
            f"{place}: {text} is no log-probability, which is 0 or less; a loss has the other"
            " sign, a probability needs its logarithm"
        )
    return value


# --- an example of both -----------------------------------------------------------------------

N_EXAMPLE_ITEMS = 60
_STATES = (("clean", 0), ("other data", 0), ("LoRA", 1), ("LoRA", 3))
_SKILLS = {"A": 0.5, "B": 0.65, "C": 0.8}


def write_example(folder: Path) -> tuple[Path, Path]:
    """Write ``models.csv`` and ``items.csv`` into ``folder``, which must not have them.

    Three families, each with a clean model, a control trained on other data, and two contaminated
    models that know more original answers the higher the dose. All answers are simulated.

    Raises
    ------
    ConfigError
        If one of the files exists.
    """
    files = folder / "models.csv", folder / "items.csv"
    for path in files:
        if path.exists():
            raise ConfigError(f"{path} exists; name another folder")
    models: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    for family, skill in _SKILLS.items():
        for strategy, dose in _STATES:
            name = f"{family} {strategy}" + (f" x{dose}" if dose else "")
            models.append({"model": name, "family": family, "strategy": strategy, "dose": dose})
            rng = generator(0, name, "example")
            knows = rng.random(N_EXAMPLE_ITEMS) < 1 - 0.6**dose
            for side in SIDES:
                sees = rng.random(N_EXAMPLE_ITEMS) < skill
                is_right = knows | sees if side == "original" else ~knows & sees
                chances = rng.uniform(0.05, 0.45, N_EXAMPLE_ITEMS) + 0.5 * is_right
                items += [
                    {
                        "model": name,
                        "item": f"q{number}",
                        "condition": side,
                        "correct": int(is_right[number]),
                        "logprob": f"{math.log(chances[number]):.4f}",
                    }
                    for number in range(N_EXAMPLE_ITEMS)
                ]
    folder.mkdir(parents=True, exist_ok=True)
    for path, records in zip(files, (models, items), strict=True):
        write_atomically(path, records_csv(records))
    return files
