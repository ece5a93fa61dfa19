"""Every score, requirement and error rate with all its numbers, as CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flipbench.core.files import write_atomically
from flipbench.core.rates import Rate
from flipbench.core.records import Interval, Score
from flipbench.reporting.writers import records_csv

from ..protocol.grid import GridModel, Requirements
from ..statistics.design_effect import ClusteredRate
from ..validation.requirements import success
from ..validation.validation import Validation

_MODEL_COLUMNS = ("fingerprint", "family", "strategy", "epoch", "dose")
_RULE_COLUMNS = ("benchmark", "benchmark_id", "detector", "rule")


def write_scores_csv(path: Path, grid: Sequence[GridModel], scores: Sequence[Score]) -> None:
    """Write one row per model, detector and rule, in full precision."""
    variants = list(dict.fromkeys(name for score in scores for name in score.accuracies))
    models = {model.fingerprint: model for model in grid}
    rows = []
    for score in scores:
        if score.model_fingerprint not in models:
            continue
        model = models[score.model_fingerprint]
        right = success(score, model)
        reference = models.get(score.reference_fingerprint)
        row: dict[str, Any] = {"model": model.name}
        row |= {name: getattr(model, name) for name in _MODEL_COLUMNS}
        row |= {name: getattr(score, name) for name in _RULE_COLUMNS}
        row["reference"] = reference.name if reference else score.reference_fingerprint
        row |= {"n": score.n, "n_dropped": score.n_dropped}
        for name in variants:
            count = score.accuracies.get(name)
            row |= {f"k_{name}": count and count.k, f"n_{name}": count and count.n}
            row[f"accuracy_{name}"] = count.k / count.n if count and count.n else None
        row |= result_columns(score)
        row["success"] = "" if right is None else right
        row["warnings"] = "; ".join([*score.warnings, *model.warnings])
        rows.append(row)
    write_atomically(path, records_csv(rows))


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


def write_requirements_csv(path: Path, requirements: Sequence[Requirements]) -> None:
    """Write one row per detector and rule."""
    rows: list[dict[str, Any]] = []
    for r in requirements:
        row: dict[str, Any] = {"detector": r.detector, "rule": r.rule}
        for name in ("practicality", "reliability", "consistency", "specificity"):
            row[name] = getattr(r, f"{name}_glyph")
        for name in ("reliability", "consistency_weak", "consistency_strict", "specificity"):
            row[f"{name}_hit"], row[f"{name}_total"] = getattr(r, name)
        row["untestable"] = r.untestable
        for name in ("misses", "violations", "false_alarms"):
            row[name] = "; ".join(getattr(r, name))
        rows.append(row)
    write_atomically(path, records_csv(rows))


def write_validation_csv(path: Path, validations: Sequence[Validation]) -> None:
    """Write the rows of `validation_rows`."""
    write_atomically(path, records_csv(validation_rows(validations)))


def validation_rows(validations: Sequence[Validation]) -> list[dict[str, Any]]:
    """Return one row per rule, benchmark and quantity: name, value, k, n, interval, p."""
    rows: list[dict[str, Any]] = []
    for v in validations:
        about: dict[str, Any] = {
            name: getattr(v, name) for name in ("detector", "rule", "benchmark", "benchmark_id")
        }
        if v.untestable:
            rows.append(
                about | _value_row("auroc", None) | {"note": f"not testable: {v.untestable}"}
            )
        if v.separation:
            row = _value_row("auroc", v.separation.auroc, v.separation.interval)
            note = "wrong direction" if v.wrong_direction else ""
            effect = {"design_effect": v.separation.design_effect, "note": note}
            rows.append(about | row | _pooled(v.separation.pooled) | effect)
            if inside := v.separation.within:
                row = _value_row("auroc_within_lineages", inside.auroc, inside.interval)
                rows.append(about | row | {"k": inside.wins, "n": inside.n_pairs})
            for point in v.separation.points:
                name, rate = f"tpr_at_fpr_{point.target:g}", point.detected
                note = "" if point.estimable else "not estimable: too few clean models"
                rows.append(about | _rate_row(name, rate) | {"note": note})
        rates = {
            "false_alarms_untouched": v.untouched_alarms,
            "false_alarms_finetuned": v.finetuned_alarms,
            "power": v.detected,
            **{f"power_at_dose_{dose}": rate for dose, rate in v.power.items()},
            **{f"flagged_{kind}".replace(" ", "_"): rate for kind, rate in v.by_kind.items()},
            "steps_in_order": Rate(k=v.trend.in_order, n=v.trend.n_steps),
        }
        rows += [about | _rate_row(name, rate) for name, rate in rates.items()]
        correlation = _value_row("rank_correlation", v.trend.correlation, p_value=v.trend.p_value)
        rows.append(about | correlation)
        flagged = v.external_alarms.flagged
        external = _rate_row("external_models", Rate(k=len(flagged), n=v.external_alarms.n))
        note = "false alarm suspected: " + "; ".join(flagged) if flagged else ""
        rows.append(about | external | {"note": note})
    return rows


def _rate_row(name: str, rate: Rate) -> dict[str, Any]:
    row: dict[str, Any] = {"k": rate.k, "n": rate.n, "n_lineages": rate.n_clusters or None}
    if isinstance(rate, ClusteredRate) and rate.n:
        row |= {"design_effect": rate.design_effect, **_pooled(rate.pooled)}
    return _value_row(name, rate.value, rate.interval) | row


def _pooled(interval: Interval | None) -> dict[str, Any]:
    return {"pooled_low": interval.low, "pooled_high": interval.high} if interval else {}


def _value_row(
    name: str, value: float | None, interval: Interval | None = None, p_value: float | None = None
) -> dict[str, Any]:
    return {
        "quantity": name,
        "value": None if value is None or math.isnan(value) else value,
        "k": None,
        "n": None,
        "n_lineages": None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "pooled_low": None,
        "pooled_high": None,
        "design_effect": None,
        "p_value": p_value,
        "note": "",
    }
