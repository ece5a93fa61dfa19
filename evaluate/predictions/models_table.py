"""Models of known dose that somebody else has asked: who they are, and where their answers lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flipbench.benchmarks.tables import Row, read_rows
from flipbench.core.confined import confined_path
from flipbench.core.errors import DataError, nearest, result_or_error

from ..protocol.grid import KINDS, UNTOUCHED, GridModel, Kind
from .prediction import id_text, truth

COLUMNS = {
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
"""What a column means → its possible names; case is ignored."""
_NEEDED = ("model", "family", "dose")
_FILES = ("original", "perturbed", "log_probs")


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


def read_models(path: Path) -> list[ListedModel]:
    """Read a table with one row per model; its files are in its folder, or below.

    Raises
    ------
    DataError
        If a column is missing, or a row is; the message names the row.
    """
    return listed_models(read_rows(path), str(path), path.parent)


def listed_models(rows: Sequence[Row], source: str, folder: Path | None) -> list[ListedModel]:
    """Return the models of rows with the columns `COLUMNS`.

    Files lie below ``folder``; with None, for rows that the user made, anywhere. ``model``,
    ``family`` and ``dose`` are needed. An empty dose is unknown; an empty strategy is
    the clean model itself at dose 0 and "trained" above.

    Raises
    ------
    DataError
        If a column is missing, a model is listed twice, or a cell cannot be read.
    """
    columns = find_columns(rows, COLUMNS, _NEEDED, source)
    listed: dict[str, ListedModel] = {}
    for row in rows:
        one = _listed(row, columns, folder)
        if first := listed.get(one.model.name):
            raise DataError(
                f"{row.where}: the model {one.model.name!r} is also in {first.where}; give every"
                " model one row and a name of its own"
            )
        listed[one.model.name] = one
    return list(listed.values())


def find_columns(
    rows: Sequence[Row],
    known: Mapping[str, tuple[str, ...]],
    needed: Sequence[str],
    source: str,
) -> dict[str, str]:
    """Return what a column means → its name in the rows.

    Raises
    ------
    DataError
        If a needed column is missing, or there are no rows.
    """
    if not rows:
        raise DataError(f"{source}: there are no rows")
    header = list(dict.fromkeys(name for row in rows for name in row.cells))
    lower = {str(name).strip().lower(): name for name in reversed(header)}
    columns = {
        meaning: lower[alias]
        for meaning, aliases in known.items()
        for alias in reversed(aliases)
        if alias in lower
    }
    for meaning in needed:
        if meaning not in columns:
            raise DataError(
                f"{source}: there is no column {known[meaning][0]!r} (found:"
                f" {', '.join(map(str, header))}){nearest(meaning, list(lower))}"
            )
    return columns


def cell_text(row: Row, columns: Mapping[str, str], meaning: str) -> str:
    """Return a cell as text, "" if it is empty or there is no such column."""
    value = row.cells.get(columns.get(meaning, ""))
    return "" if value is None or value != value else id_text(value)


def _listed(row: Row, columns: Mapping[str, str], folder: Path | None) -> ListedModel:
    def text(meaning: str) -> str:
        return cell_text(row, columns, meaning)

    name, family, dose = text("model"), text("family"), _whole(row, columns, "dose")
    for meaning, value in (("model", name), ("family", family)):
        if not value:
            raise DataError(f"{row.where}: the {meaning} is empty; every model needs one")
    defaults = {0: UNTOUCHED, None: "history unknown"}
    external = truth(text("external") or "0")
    if external is None:
        raise DataError(f"{row.where}: external is {text('external')!r}; write 1 or 0")
    kind: Kind | Literal[""] = next((known for known in KINDS if known == text("kind")), "")
    if kind != text("kind"):
        raise DataError(
            f"{row.where}: kind is {text('kind')!r}; write {', '.join(KINDS)}, or nothing"
            + nearest(text("kind"), list(KINDS))
        )
    files: dict[str, Any] = {
        meaning: (folder or Path()) / text(meaning) if text(meaning) else None for meaning in _FILES
    }
    for meaning, file in files.items():
        if file is None:
            continue
        inside = result_or_error(confined_path, file.absolute(), folder) if folder else file
        if isinstance(inside, DataError):
            raise DataError(f"{row.where}: {columns[meaning]}: {inside}") from inside
        if not file.is_file():
            raise DataError(f"{row.where}: {columns[meaning]} is {file}: no such file")
    try:
        model = GridModel(
            name,
            name,
            family,
            text("strategy") or defaults.get(dose, "trained"),
            _whole(row, columns, "epoch") or 0,
            dose,
            text("lineage"),
            external,
            kind=kind,
        )
    except DataError as error:
        raise DataError(f"{row.where}: {error}") from error
    return ListedModel(model, row.where, **files)


def _whole(row: Row, columns: Mapping[str, str], meaning: str) -> int | None:
    text = cell_text(row, columns, meaning)
    if text and not text.isdigit():
        raise DataError(
            f"{row.where}: {meaning} is {text!r}, not a whole number of 0 or more (copies of each"
            " item x epochs; empty if it is unknown)"
        )
    return int(text) if text else None
