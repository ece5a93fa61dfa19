"""The tables of a grid of models: columns of the gap, and of every other detector, over the scores.

They read a `score_frame` of the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from flipbench.core.errors import DataError
from flipbench.core.records import Count, Interval, Score
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Content, Table, build_table, text_column

from ..detectors.registry import DETECTORS
from ..protocol.grid import GridModel
from .titles import (
    CAPTIONS,
    GAP,
    SUSPECTED,
    TEST,
    VERDICTS,
    as_header,
    by_family,
    rule_title,
    title,
)

Row = Mapping[Any, Any]  # of a score frame
Rules = Mapping[str, Row]  # of one model and detector, by rule
_Show = Callable[[Rules], Content]


def gap_table(grid: Sequence[GridModel], frame: pd.DataFrame) -> Table:
    """Return the main table: the perturbation gap of every model, with each rule's verdict.

    Without the paper's rule, the sign of the gap: it is among the rules whose error rates a report
    gives, and accuses half of all clean models with a true gap of 0.
    """
    tests = frame if frame.empty else frame[frame["rule"] != "sign"]
    return _model_table("gap", CAPTIONS["gap"], grid, tests, [GAP])


def other_table(grid: Sequence[GridModel], frame: pd.DataFrame) -> Table | None:
    """Return the other detectors on the same models, or None if there are none."""
    detectors = [name for name in detectors_of(frame) if name != GAP]
    return _model_table("others", CAPTIONS["others"], grid, frame, detectors) if detectors else None


def detector_tables(
    grid: Sequence[GridModel], frame: pd.DataFrame, names: Sequence[str]
) -> list[Table]:
    """Return one table for each of the detectors ``names``, its key the detector's name."""
    return [_model_table(name, _about(name), grid, frame, [name]) for name in names if name != GAP]


def cell_key(model: str, detector: str, rule: str) -> str:
    """Return the key of the items behind a model's score by a rule."""
    return f"{model}/{detector}/{rule}"


def detectors_of(frame: pd.DataFrame) -> list[str]:
    """Return the detectors that have scores, the perturbation gap first."""
    names = [] if frame.empty else list(dict.fromkeys(frame["detector"]))
    return sorted(names, key=lambda name: name != GAP)


def count_cell(count: Count) -> Cell:
    """Return percent, with the count as small text; a dash if n is 0."""
    if not count.n:
        return Cell(formats.NOTHING)
    return Cell(formats.percent(count.k / count.n), f"{count.k}/{count.n}")


def gap_scores(
    models: Sequence[GridModel], scores: Sequence[Score]
) -> list[tuple[GridModel, Score]]:
    """Return the models that have a gap, with the test's score, else that of another rule."""
    by_model: dict[str, Score] = {}
    for score in sorted(scores, key=lambda score: score.rule != TEST):
        has_both = {"original", "perturbed"} <= score.accuracies.keys()
        if score.detector == GAP and has_both and score.statistic is not None:
            by_model.setdefault(score.model_fingerprint, score)
    return [(m, by_model[m.fingerprint]) for m in models if m.fingerprint in by_model]


def statistic_cell(row: Row, bounds: Row | None = None) -> Cell:
    """Return a statistic in its unit, with the interval of ``bounds``; a dash for None."""
    value, bounds = row["statistic"], row if bounds is None else bounds
    if value is None:
        return Cell(formats.NOTHING)
    ends = {name: bounds[name] for name in ("low", "high", "level")}
    between = None if ends["low"] is None else Interval(**ends)
    if row["scale"] == "points":
        return Cell(formats.points(value), formats.interval(between))
    if row["scale"] == "fraction":
        return Cell(formats.percent(value), formats.share_interval(between))
    return Cell(formats.number(value), formats.interval(between, formats.number))


def _model_table(
    key: str, caption: str, grid: Sequence[GridModel], frame: pd.DataFrame, detectors: list[str]
) -> Table:
    if grid and frame.empty:
        raise DataError(
            "no score belongs to a model of the grid; evaluate the checkpoints that the grid names"
        )
    rows: dict[str, tuple[GridModel, dict[str, dict[str, Row]]]]
    rows = {model.fingerprint: (model, {name: {} for name in detectors}) for model in grid}
    for row in frame.to_dict("records"):
        if row["detector"] in detectors and row["fingerprint"] in rows:
            rows[row["fingerprint"]][1][row["detector"]][row["column"]] = row
    columns: list[tuple[Column | str, Callable[[Any], Content]]] = [
        ("Dose", lambda of_model: "unknown" if of_model[0].dose is None else of_model[0].dose)
    ]
    for name in detectors:
        fields = _columns(name, [rules[name] for _, rules in rows.values()])
        columns += [(column, _of_detector(name, show)) for column, show in fields]
    return build_table(key, caption, "Model", columns, by_family(grid, rows))


def _of_detector(name: str, show: _Show) -> Callable[[tuple[GridModel, Any]], Content]:
    return lambda of_model: show(of_model[1][name])


def _columns(detector: str, models: Sequence[Rules]) -> list[tuple[Column, _Show]]:
    """Return a detector's columns: accuracies, then each rule's statistic, p and verdict."""
    group = title(detector)
    all_rows = [row for rules in models for row in rules.values()]
    conditions = list(dict.fromkeys(name for row in all_rows for name in row["conditions"]))
    if detector != GAP and len(conditions) > 1:  # "original" is in the main table
        conditions = [name for name in conditions if name != "original"]
    columns: list[tuple[Column, _Show]] = [
        (Column(as_header(name) + ", %", group), _accuracy(name)) for name in conditions
    ]
    rules = list(dict.fromkeys(rule for of_model in models for rule in of_model))
    statistic_rules: list[str] = []  # one of each statistic
    p_columns: list[dict[int, float | None]] = []
    for rule in rules:
        name = rule_title(detector, rule)
        rows = [m[rule] for m in models if rule in m and m[rule]["statistic"] is not None]
        if rows and not any(_same_statistic(rule, r, models) for r in statistic_rules):
            suffix = f" ({name})" if statistic_rules else ""
            statistic_rules.append(rule)
            same_rules = [r for r in rules if _same_statistic(rule, r, models)]
            column = Column(_statistic_header(rows[0]) + suffix, group)
            columns.append((column, _opening(rule, _statistic(same_rules))))
        p_values = {i: m[rule]["p_value"] for i, m in enumerate(models) if rule in m}
        is_known = any(p is not None for p in p_values.values())
        if is_known and not any(_agree(p_values, p_column) for p_column in p_columns):
            column = Column(f"p ({name})" if p_columns else "p", group)
            p_columns.append(p_values)
            columns.append((column, _p_value(rule)))
        columns.append((text_column(as_header(name), group), _opening(rule, _verdict(rule))))
    if any(row["n_dropped"] for row in all_rows):
        columns.append(
            (
                Column("Items dropped", group),
                lambda rules: max((row["n_dropped"] for row in rules.values()), default=None),
            )
        )
    return columns


def _opening(rule: str, show: Callable[[Rules], Cell]) -> _Show:
    """Let the cells of a column open the items behind a rule's score."""

    def opening(rules: Rules) -> Cell:
        row = rules.get(rule)
        key = cell_key(row["model"], row["detector"], rule) if row else ""
        return replace(show(rules), opens=key)

    return opening


def _about(detector: str) -> str:
    """Return what a detector measures, what a contaminated model shows, and its caveat."""
    if (implementation := DETECTORS.get(detector)) is None:
        return ""
    about = implementation.about
    parts = [f"Contaminated models: {about.direction}.", f"Rules: {about.variant}."]
    parts += [f"What else moves it: {about.caveat}."] if about.caveat else []
    return " ".join([*parts, f"Source: {about.paper}."])


def _same_statistic(rule: str, other_rule: str, models: Sequence[Rules]) -> bool:
    pairs = [
        (m[rule]["statistic"], m[other_rule]["statistic"])
        for m in models
        if {rule, other_rule} <= {*m}
    ]
    values = [pair for pair in pairs if None not in pair]
    return bool(values) and all(a == b for a, b in values)


def _agree(p_values: dict[int, float | None], p_column: dict[int, float | None]) -> bool:
    return all(p is None or p == p_column.get(at) for at, p in p_values.items())


def _statistic_header(row: Row) -> str:
    if row["scale"] == "points":
        return "Δ, pp"
    return "Statistic, %" if row["scale"] == "fraction" else f"Statistic, {row['scale']}"


def _accuracy(condition: str) -> _Show:
    def show(rules: Rules) -> Cell:
        counts = [(row[f"k_{condition}"], row[f"n_{condition}"]) for row in rules.values()]
        k, n = next(((k, n) for k, n in counts if n), (0, 0))
        return count_cell(Count(k=k, n=n))

    return show


def _statistic(same_rules: Sequence[str]) -> Callable[[Rules], Cell]:
    def show(rules: Rules) -> Cell:
        rows = [rules[r] for r in same_rules if r in rules and rules[r]["statistic"] is not None]
        if not rows:
            return Cell(formats.NOTHING)
        return statistic_cell(rows[0], next((r for r in rows if r["low"] is not None), None))

    return show


def _p_value(rule: str) -> _Show:
    return lambda rules: formats.p_value(rules[rule]["p_value"] if rule in rules else None)


def _verdict(rule: str) -> Callable[[Rules], Cell]:
    def show(rules: Rules) -> Cell:
        if rule not in rules:
            return Cell("not asked")
        row, text = rules[rule], VERDICTS[rules[rule]["verdict"]]
        if row["verdict"] == "not_applicable":
            return Cell(text, row["reason"])
        if row["suspected"]:
            return Cell(SUSPECTED, text)
        return Cell(text, mark="" if row["success"] is None else "✗✓"[row["success"]])

    return show
