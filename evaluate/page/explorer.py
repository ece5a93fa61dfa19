"""The items behind every cell of a report: values, replies and log-probabilities, compressed."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from flipbench.core.files import printable
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Response, Score
from flipbench.reporting import formats

from ..protocol.grid import GridModel
from ..report.score_tables import Row, cell_key, statistic_cell
from ..report.titles import VERDICTS, families, label, rule_title, title

Replies = Mapping[str, Mapping[str, tuple[Response | None, Response | None]]]
"""By model fingerprint and original item's id: replies to the original and the perturbed item."""
_DIGITS = 4
_TEXT = 200  # characters of a reply


@dataclass(frozen=True)
class Explorer:
    """What a page's script reads: JSON, compressed by gzip, as base64."""

    data: str
    n_cells: int


def make_explorer(
    benchmark: PairedBenchmark,
    grid: Sequence[GridModel],
    scores: Sequence[Score],
    frame: pd.DataFrame,
    replies: Replies | None = None,
) -> Explorer:
    """Return the items behind each score of ``frame``, by the keys that cells of tables have.

    Values are rounded to four significant digits, log-probabilities to two decimals.

    Parameters
    ----------
    frame : DataFrame
        The `score_frame` of ``scores``.
    """
    pairs = benchmark.pairs
    at = {item.id: n for n, pair in enumerate(pairs) for item in (pair.original, pair.perturbed)}
    series: dict[str, int] = {}  # rules of a detector often share their values
    cells: dict[str, Any] = {}
    by_id = {score.id: score for score in scores}
    models = {model.fingerprint: at for at, model in enumerate(grid)}
    detectors = {name: at for at, name in enumerate(dict.fromkeys(s.detector for s in scores))}
    rows = frame.to_dict("records")
    rows.sort(key=lambda row: (models[row["fingerprint"]], detectors[row["detector"]]))
    for row in rows:
        score = by_id[row["id"]]
        values: list[float | None] = [None] * len(pairs)
        for item, value in score.per_item.items():
            if item in at:
                values[at[item]] = float(f"{value:.{_DIGITS}g}")
        packed_values = json.dumps(values) if any(v is not None for v in values) else ""
        number = series.setdefault(packed_values, len(series)) if packed_values else -1
        cells[cell_key(row["model"], row["detector"], row["column"])] = _cell(row, score, number)
    models_in_order = [(m, models) for models in families(grid).values() for m in models]
    content = {
        "models": [
            {"name": m.name, "label": label(m, models), "family": m.family, "dose": m.dose}
            for m, models in models_in_order
        ],
        "items": [_item(pair) for pair in pairs],
        "cells": cells,
        "series": [json.loads(values) for values in series],
        "replies": [_replies(model, pairs, replies or {}) for model, _ in models_in_order],
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    packed = gzip.compress(text.encode(), 9, mtime=0)  # the same page from the same data
    return Explorer(base64.b64encode(packed).decode(), len(cells))


def _cell(row: Row, score: Score, series: int) -> dict[str, Any]:
    return {
        "model": score.model,
        "detector": title(score.detector),
        "rule": rule_title(score.detector, row["column"]),
        "verdict": VERDICTS[score.verdict],
        "reason": score.reason,
        "statistic": statistic_cell(row).plain(),
        "p": formats.p_value(score.p_value),
        "n": score.n,
        "rises": score.direction == "rises",
        "series": series,
    }


def _item(pair: Pair) -> dict[str, Any]:
    original = pair.original
    return {
        "name": original.name,
        "question": printable(original.question),
        "options": [printable(option) for option in original.options or ()],
        "right": [original.answer, pair.perturbed.answer],
        "answers": [printable(item.answer_text) for item in (original, pair.perturbed)],
        "category": original.category,
    }


def _replies(
    model: GridModel, pairs: Sequence[Pair], replies: Replies
) -> list[list[list[Any] | None]] | None:
    """Return [choice, log-probabilities, text] of both replies to every pair; None if unknown."""
    by_item = replies.get(model.fingerprint)
    if by_item is None:
        return None
    nothing = (None, None)
    return [
        [
            [r.choice, [round(x, 2) for x in r.option_log_probs], printable(r.text[:_TEXT])]
            if r
            else None
            for r in by_item.get(pair.original.id, nothing)
        ]
        for pair in pairs
    ]
