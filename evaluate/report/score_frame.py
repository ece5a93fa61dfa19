"""One flat frame of all scores, which tables, pages, CSV files and `to_frame` read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from flipbench.core.files import write_atomically
from flipbench.core.records import Score
from flipbench.reporting.writers import frame_csv

from ..protocol.grid import GridModel
from ..validation.requirements import success
from ..validation.validation import external_alarms, key_of

_MODEL_COLUMNS = ("family", "lineage", "strategy", "epoch", "dose")
_FOR_TABLES = "id lineage column conditions scale decides reason k/n suspected".split()


def score_frame(
    scores: Iterable[Score], grid: Sequence[GridModel] = (), decided: Iterable[Score] = ()
) -> pd.DataFrame:
    """Return one row for each score, as objects; None is "not known".

    Parameters
    ----------
    grid : sequence of GridModel
        If there are any, scores of other models are left out.
    decided : iterable of Score
        Those on which a verdict rests, with that verdict and its reason.

    Returns
    -------
    DataFrame
        What is known of the model; detector and rule (``column``: with the reference, if a model
        has several); for each condition ``k_``, ``n_`` and ``accuracy_``; ``statistic``, ``low``
        and ``high`` in ``unit`` (``scale``: "points" for a difference of accuracies); ``verdict``
        and ``reason``, those of the model where it ``decides``; ``success``, whether that is right;
        ``suspected``, whether the rule also flags an external model.
    """
    deciding = {score.id: score for score in decided}
    by_id = {score.id: score for score in scores} | deciding
    models = {model.fingerprint: model for model in grid}
    of_grid = [s for s in by_id.values() if not grid or s.model_fingerprint in models]
    suspected = {key for key, alarms in external_alarms(of_grid, grid).items() if alarms.suspected}
    conditions = list(dict.fromkeys(name for score in by_id.values() for name in score.accuracies))
    n_references = Counter((s.model_fingerprint, s.detector, s.rule) for s in of_grid)
    rows = []
    for score in of_grid:
        model, clean = models.get(score.model_fingerprint), models.get(score.reference_fingerprint)
        reference = score.reference_fingerprint
        if not grid:
            reference = score.reference.model if score.reference else ""
        several = n_references[score.model_fingerprint, score.detector, score.rule] > 1
        beside = f" vs {clean.name if clean else score.reference_fingerprint[:8]}"
        row: dict[str, Any] = {
            "id": score.id,
            "model": model.name if model else score.model,
            "fingerprint": score.model_fingerprint,
            **{name: getattr(model, name, None) for name in _MODEL_COLUMNS},
            "benchmark": score.benchmark,
            "benchmark_id": score.benchmark_id,
            "detector": score.detector,
            "rule": score.rule,
            "column": score.rule + (beside if several else ""),
            "reference": clean.name if clean else reference,
            "n": score.n,
            "n_dropped": score.n_dropped,
        }
        for name in conditions:
            count = score.accuracies.get(name)
            row |= {f"k_{name}": count and count.k, f"n_{name}": count and count.n}
            row[f"accuracy_{name}"] = count.k / count.n if count and count.n else None
        rows.append(
            row
            | result_columns(score)
            | {
                "conditions": tuple(score.accuracies),
                "scale": "points" if is_gap(score) else score.unit,
                "decides": score.id in deciding,
                "reason": score.reason,
                "k/n": ", ".join(f"{name} {c.k}/{c.n}" for name, c in score.accuracies.items()),
                "suspected": key_of(score) in suspected,
                "success": success(score, model) if model else None,
                "warnings": "; ".join([*score.warnings, *(model.warnings if model else ())]),
            }
        )
    return pd.DataFrame(rows, dtype=object)


def result_columns(score: Score) -> dict[str, Any]:
    """Return a score's result by column: changed answers, statistic, interval, p and verdict."""
    paired, between = score.paired, score.interval
    return {
        "right_to_wrong": paired.b if paired else None,
        "wrong_to_right": paired.c if paired else None,
        "statistic": score.statistic,
        "unit": score.unit,
        "low": between.low if between else None,
        "high": between.high if between else None,
        "level": between.level if between else None,
        "p_value": score.p_value,
        "verdict": score.verdict,
    }


def write_scores_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a `score_frame` of a grid, in full precision."""
    write_atomically(path, frame_csv(frame.drop(columns=_FOR_TABLES, errors="ignore")))


def is_gap(score: Score) -> bool:
    """Return whether the statistic is a difference of accuracies, or of one and its expectation."""
    is_difference = len(score.accuracies) > 1 or (score.accuracies and score.means)
    return score.unit == "fraction" and bool(is_difference)
