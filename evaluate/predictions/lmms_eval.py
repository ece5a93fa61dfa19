"""Predictions that lmms-eval wrote with ``--log_samples``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flipbench.benchmarks.question_text import split_question
from flipbench.benchmarks.report import RowError
from flipbench.core.errors import DataError, nearest

from .prediction import Prediction, PredictionFile, id_text, truth
from .rows import TableRow

OWN_KEYS = frozenset(
    "doc_id doc target arguments input resps filtered_resps doc_hash prompt_hash target_hash"
    " token_counts input_media".split()
)


def is_samples(rows: Sequence[TableRow]) -> bool:
    """Return whether rows look like lmms-eval's samples."""
    return "doc_id" in rows[0].cells and "filtered_resps" in rows[0].cells


def lmms_eval_predictions(
    path: Path, rows: Sequence[TableRow], metric: str = "", id_key: str = ""
) -> PredictionFile:
    """Read one object for each document.

    The file holds the document's row number and no id of the benchmark's own, unless a metric
    carries one: ``id_key`` names it, as ``metric.key`` where the metric is an object. Options are
    taken from the prompt (``input``) where they stand on lettered lines of their own.

    Parameters
    ----------
    metric : str
        The metric that says whether a reply is right; the only one of 0 and 1 if not given.

    Raises
    ------
    DataError
        Where a key is missing, a reply is no single text, or ``metric`` is no metric of the file.
    """
    metrics = [key for key in rows[0].cells if key not in OWN_KEYS]
    if metric and metric not in metrics:
        raise DataError(
            f"{path}: there is no metric {metric!r} (found: {', '.join(metrics) or 'none'})"
            + nearest(metric, metrics)
        )
    marks = [name for name in metrics if all(_mark(r.cells.get(name)) is not None for r in rows)]
    chosen = metric or (marks[0] if len(marks) == 1 else "")
    predictions = tuple(_prediction(row, chosen, id_key) for row in rows)
    model = path.parent.name if "_samples_" in path.name else ""
    task = path.stem.split("_samples_", 1)[-1] if "_samples_" in path.name else ""
    return PredictionFile(path, "lmms-eval", predictions, model, task)


def _prediction(row: TableRow, metric: str, id_key: str) -> Prediction:
    text = _one_text(row)
    question = row.cells.get("input")
    prompt = question if isinstance(question, str) else ""
    target = str(row.cells.get("target", "")).strip()
    failed = "" if text and text.strip() else "there is no reply"
    return Prediction(
        id=_id(row, id_key),
        where=row.where,
        text=None if failed else text,
        gold=target,
        options=_options(prompt),
        correct=None if failed or not metric else _mark(row.cells.get(metric)),
        question=prompt,
        error=failed,
    )


def _id(row: TableRow, id_key: str) -> str:
    value: Any = row.cells
    for part in (id_key or "doc_id").split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None or not id_text(value):
        raise DataError(f"{row.where}: there is no {id_key or 'doc_id'!r}; name the key of the id")
    return id_text(value)


def _one_text(row: TableRow) -> str | None:
    value = row.cells.get("filtered_resps", row.cells.get("resps"))
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list) and value:
        raise DataError(
            f"{row.where}: {len(value)} replies to one document; only one generated text can be"
            " read (output_type: generate_until, one repeat)"
        )
    return None if value is None or isinstance(value, list) else str(value)


def _options(prompt: str) -> tuple[tuple[str, str], ...]:
    """Return the lettered lines of a prompt, without an instruction that follows the last."""
    lines = prompt.strip().split("\n")
    for text in (lines, lines[:-1]):
        try:
            found = split_question("\n".join(text), "lines", "").options
        except RowError:
            continue
        if found:
            return found
    return ()


def _mark(value: Any) -> bool | None:
    if isinstance(value, Mapping):
        value = next((value[key] for key in ("score", "correct", "acc") if key in value), None)
    return truth(value) if isinstance(value, bool | int | float) else None
