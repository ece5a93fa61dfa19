"""Predictions that lmms-eval wrote with ``--log_samples``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flipbench.benchmarks.question_text import split_question
from flipbench.benchmarks.tables import Row, RowError
from flipbench.core.errors import DataError, nearest

from .prediction import Prediction, PredictionFile, id_text, truth

OWN_KEYS = frozenset(
    "doc_id doc target arguments input resps filtered_resps doc_hash prompt_hash target_hash"
    " token_counts input_media filter metrics".split()
)
ITEM_KEY = "flipbench_item"
GROUP_KEY = "flipbench_group"
RATERS_KEY = "flipbench_judged_by"


def is_samples(rows: Sequence[Row]) -> bool:
    """Return whether rows look like lmms-eval's samples."""
    return "doc_id" in rows[0].cells and "filtered_resps" in rows[0].cells


def lmms_eval_predictions(
    path: Path,
    rows: Sequence[Row],
    metric: str = "",
    id_key: str = "",
    filter_name: str = "",
) -> PredictionFile:
    """Read one object per document.

    The file has the document's row number but not the benchmark's own id, unless a metric
    contains it: ``id_key`` names it, as ``metric.key`` if the metric is an object. Tasks exported
    by flipbench have it in `ITEM_KEY`, which is used unless ``id_key`` is given, and in `GROUP_KEY`
    which items share images. Options are taken from the prompt (``input``) if they are on lettered
    lines of their own.

    Parameters
    ----------
    metric : str
        The metric that marks replies right or wrong; by default the only one with values 0 and 1.

    filter_name : str
        Which filter's rows to take: lm-evaluation-harness writes each document once per filter.

    Raises
    ------
    DataError
        If a key is missing, a reply is not a single text, or the file lacks ``metric`` or the
        filter, or has several filters and none is named.
    """
    rows = _of_one_filter(path, rows, filter_name)
    metrics = [key for key in rows[0].cells if key not in OWN_KEYS]
    if metric and metric not in metrics:
        raise DataError(
            f"{path}: there is no metric {metric!r} (found: {', '.join(metrics) or 'none'})"
            + nearest(metric, metrics)
        )
    marks = [name for name in metrics if all(_mark(r.cells.get(name)) is not None for r in rows)]
    marking_metric = metric or (marks[0] if len(marks) == 1 else "")
    predictions = tuple(_prediction(row, marking_metric, id_key) for row in rows)
    model = path.parent.name if "_samples_" in path.name else ""
    task = path.stem.split("_samples_", 1)[-1] if "_samples_" in path.name else ""
    return PredictionFile(path, "lmms-eval", predictions, model, task)


def _of_one_filter(path: Path, rows: Sequence[Row], name: str) -> Sequence[Row]:
    filters = list(dict.fromkeys(str(r.cells["filter"]) for r in rows if "filter" in r.cells))
    if name and name not in filters:
        raise DataError(
            f"{path}: there is no filter {name!r} (found: {', '.join(filters) or 'none'})"
            + nearest(name, filters)
        )
    if not name and len(filters) > 1:
        raise DataError(
            f"{path}: each document has one row per filter ({', '.join(filters)}); choose one:"
            f" --column filter={filters[0]} (columns={{'filter': …}} in Python)"
        )
    return [row for row in rows if not name or str(row.cells.get("filter")) == name]


def _prediction(row: Row, metric: str, id_key: str) -> Prediction:
    by_likelihood = _is_by_likelihood(row)
    text = None if by_likelihood else _one_text(row)
    question = row.cells.get("input")
    prompt = question if isinstance(question, str) else ""
    target = str(row.cells.get("target", "")).strip()
    failed = "" if by_likelihood or (text and text.strip()) else "there is no reply"
    return Prediction(
        id=_id(row, id_key),
        where=row.where,
        text=None if failed else text,
        gold=target,
        options=_options(prompt),
        correct=None if failed or not metric else _mark(row.cells.get(metric)),
        question=prompt,
        error=failed,
        group=id_text(row.cells.get(GROUP_KEY)),
        judged_by=id_text(row.cells.get(RATERS_KEY)),
    )


def _id(row: Row, id_key: str) -> str:
    value: Any = row.cells
    id_key = id_key or (ITEM_KEY if ITEM_KEY in row.cells else "doc_id")
    for part in id_key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None or not id_text(value):
        raise DataError(f"{row.where}: there is no {id_key!r}; give the key of the id")
    return id_text(value)


def _is_by_likelihood(row: Row) -> bool:
    """Return whether the options' log-likelihoods were compared: pairs (value, greedy or not)."""
    value = row.cells.get("filtered_resps", row.cells.get("resps"))
    return (
        isinstance(value, list)
        and len(value) > 1
        and all(isinstance(v, list) and len(v) == 2 and _is_number(v[0]) for v in value)
    )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _one_text(row: Row) -> str | None:
    value = row.cells.get("filtered_resps", row.cells.get("resps"))
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list) and value:
        raise DataError(
            f"{row.where}: {len(value)} replies to one document; only single generated texts are"
            " supported (output_type: generate_until, one repeat)"
        )
    return None if value is None or isinstance(value, list) else str(value)


def _options(prompt: str) -> tuple[tuple[str, str], ...]:
    """Return the lettered lines of a prompt, without an instruction after the last."""
    lines = prompt.strip().split("\n")
    for text in (lines, lines[:-1]):
        try:
            options = split_question("\n".join(text), "lines", "").options
        except RowError:
            continue
        if options:
            return options
    return ()


def _mark(value: Any) -> bool | None:
    if isinstance(value, Mapping):
        value = next((value[key] for key in ("score", "correct", "acc") if key in value), None)
    return truth(value) if isinstance(value, bool | int | float) else None
