"""Read predictions of other evaluation kits, whatever the file format."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from flipbench.benchmarks.tables import check_file, read_json, read_rows, read_text
from flipbench.core.errors import DataError

from .inspect_logs import inspect_predictions, is_log, read_eval
from .lmms_eval import is_samples, lmms_eval_predictions
from .prediction import PredictionFile, listing
from .table import table_predictions


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
