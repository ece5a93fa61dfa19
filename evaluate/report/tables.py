"""The tables of a grid of models, built from scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import get_args

from flipbench.core.errors import DataError
from flipbench.core.records import Count, Score
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table

from ..detectors.registry import DETECTORS
from ..protocol.grid import UNTOUCHED, GridModel
from ..protocol.rules import Verdict
from ..validation.external import Key, external_alarms, key_of
from ..validation.requirements import success

GAP = "perturbation_gap"
TEST = "mcnemar"
RELATIVE = "relative"
RULES = {
    "sign": "sign rule (paper)",
    TEST: "McNemar test",
    RELATIVE: "vs clean",
    "paper": "paper’s rule",
    "bands": "paper’s bands",
    "paired": "permutation test",
}
"""Titles of the rules that several detectors share."""
VERDICTS = {verdict: verdict.replace("_", " ") for verdict in get_args(Verdict)}
SUSPECTED = "false alarm suspected"


def gap_table(grid: Sequence[GridModel], scores: Sequence[Score]) -> Table:
    """Return the main table: the perturbation gap of every model, with each rule's verdict.

    Without the paper's rule, the sign of the gap: it is among the rules whose error rates a report
    gives, and accuses half of all clean models with a true gap of 0.
    """
    return _model_table(
        "gap",
        "Accuracy on the original and on the answer-flipped version of the same items, and the gap"
        " between them (perturbed − original; negative is suspicious) with its paired 95 %"
        " interval. p: exact one-sided McNemar test. ✓ or ✗: the verdict agrees or disagrees with"
        " what is known about the model. “False alarm suspected”: the rule also flags a model that"
        " cannot have seen the benchmark.",
        grid,
        [score for score in scores if (score.detector, score.rule) != (GAP, "sign")],
        [GAP],
    )


def other_table(grid: Sequence[GridModel], scores: Sequence[Score]) -> Table | None:
    """Return the other detectors on the same models, or None if there are none."""
    others = [name for name in detectors_of(scores) if name != GAP]
    if not others:
        return None
    return _model_table(
        "others",
        "The other detectors on the same models and items. Accuracies are in %, with counts; Δ is"
        " the detector's own statistic, in percentage points.",
        grid,
        scores,
        others,
    )


def detector_tables(
    grid: Sequence[GridModel], scores: Sequence[Score], names: Sequence[str]
) -> list[Table]:
    """Return one table for each of the detectors ``names``, its key the detector's name."""
    return [_model_table(name, _about(name), grid, scores, [name]) for name in names if name != GAP]


def cell_key(model: str, detector: str, rule: str) -> str:
    """Return the key of the items behind a model's score by a rule."""
    return f"{model}/{detector}/{rule}"


def title(detector: str) -> str:
    """Return a detector's display name."""
    known = DETECTORS.get(detector)
    return known.about.title if known else detector.replace("_", " ")


def rule_title(detector: str, rule: str) -> str:
    """Return the display name of a detector's rule."""
    known = DETECTORS.get(detector)
    own = known.about.rule_titles.get(rule) if known else None
    return own or RULES.get(rule, rule.replace("_", " "))


def detectors_of(scores: Sequence[Score]) -> list[str]:
    """Return the detectors that have scores, the perturbation gap first."""
    names = dict.fromkeys(score.detector for score in scores)
    return sorted(names, key=lambda name: name != GAP)


def count_cell(count: Count) -> Cell:
    """Return percent, with the count as small text; a dash if n is 0."""
    if not count.n:
        return Cell(formats.NOTHING)
    return Cell(formats.percent(count.k / count.n), f"{count.k}/{count.n}")


def families(grid: Sequence[GridModel]) -> dict[str, list[GridModel]]:
    """Return each family's models: clean, then by strategy and dose, then of unknown dose."""
    strategies = list(dict.fromkeys(model.strategy for model in grid))
    by_family: dict[str, list[GridModel]] = {}
    for model in grid:
        by_family.setdefault(model.family, []).append(model)
    for models in by_family.values():
        models.sort(
            key=lambda m: (
                (not m.clean, m.clean_finetune or m.dose is None),
                (strategies.index(m.strategy), m.dose or 0, m.epoch),
            )
        )
    return by_family


def label(model: GridModel, models: Sequence[GridModel]) -> str:
    """Return a model's short name within its family; its full name if that is not unique."""

    def short(m: GridModel) -> str:
        if m.strategy == UNTOUCHED:
            return "clean"
        if not m.epoch:  # trained elsewhere, in unknown steps
            return m.name
        return f"{m.strategy}, epoch {m.epoch}" + (" (other data)" if m.clean else "")

    names = [short(m) for m in models]
    return short(model) if names.count(short(model)) == 1 else model.name


def scores_of(
    model: GridModel, grid: Sequence[GridModel], scores: Sequence[Score]
) -> dict[str, dict[str, Score]]:
    """Return a model's scores by detector and rule.

    A rule that was applied against several reference models becomes one rule per reference.
    """
    names = {m.fingerprint: m.name for m in grid}
    by_detector: dict[str, dict[str, Score]] = {}
    own = [s for s in scores if s.model_fingerprint == model.fingerprint]
    n_references = Counter((s.detector, s.rule) for s in own)
    for s in own:
        other = names.get(s.reference_fingerprint, s.reference_fingerprint[:8])
        several = n_references[s.detector, s.rule] > 1
        rule = f"{s.rule} vs {other}" if several else s.rule
        by_detector.setdefault(s.detector, {})[rule] = s
    return by_detector


def gap_scores(
    models: Sequence[GridModel], grid: Sequence[GridModel], scores: Sequence[Score]
) -> list[tuple[GridModel, Score]]:
    """Return the models that have a gap, with the test's score, else that of another rule."""
    found = []
    for model in models:
        rules = scores_of(model, grid, scores).get(GAP, {})
        ordered = (rules[name] for name in sorted(rules, key=lambda rule: rule != TEST))
        counted = (s for s in ordered if {"original", "perturbed"} <= s.accuracies.keys())
        found += [(model, s) for s in counted if s.statistic is not None][:1]
    return found


# ------------------------------------------------------------------ columns of a detector

_Rules = Mapping[str, Score]  # one model's scores of one detector, by rule
_Show = Callable[[GridModel, _Rules], Cell]
_Field = tuple[Column, _Show]


def _model_table(
    key: str, caption: str, grid: Sequence[GridModel], scores: Sequence[Score], names: list[str]
) -> Table:
    by_model = {model.fingerprint: scores_of(model, grid, scores) for model in grid}
    if grid and not any(by_model.values()):
        raise DataError(
            "no score belongs to a model of the grid; evaluate the checkpoints that the grid names"
        )
    suspected = {key for key, alarms in external_alarms(scores, grid).items() if alarms.suspected}
    fields: list[tuple[str, _Field]] = []
    for name in names:
        of_models = [m.get(name, {}) for m in by_model.values()]
        fields += [(name, field) for field in _fields(name, of_models, suspected)]
    groups = []
    for family, models in families(grid).items():
        rows = []
        for model in models:
            known = by_model[model.fingerprint]
            cells = [cell(model, known.get(name, {})) for name, (_, cell) in fields]
            dose = Cell("unknown" if model.dose is None else str(model.dose))
            rows.append(Row(label(model, models), (dose, *cells)))
        groups.append((family, tuple(rows)))
    columns = (Column("Dose"), *(column for _, (column, _) in fields))
    return Table(key, caption, "Model", columns, tuple(groups))


def _fields(detector: str, models: Sequence[_Rules], suspected: Collection[Key]) -> list[_Field]:
    """Return a detector's columns: accuracies, then each rule's statistic, p and verdict."""
    group = title(detector)
    every = [score for rules in models for score in rules.values()]
    variants = list(dict.fromkeys(name for score in every for name in score.accuracies))
    if detector != GAP and len(variants) > 1:  # "original" is in the main table
        variants = [name for name in variants if name != "original"]
    fields: list[_Field] = [
        (Column(as_header(name) + ", %", group), partial(_accuracy_cell, name)) for name in variants
    ]
    rules = list(dict.fromkeys(rule for scores in models for rule in scores))
    shown: list[str] = []
    p_columns: list[dict[int, float | None]] = []
    for rule in rules:
        is_new = not any(_same_statistic(other, rule, models) for other in shown)
        if is_new and any(m[rule].statistic is not None for m in models if rule in m):
            shown.append(rule)
            same = [r for r in rules if _same_statistic(rule, r, models)]
            header = _statistic_header(rule, models)
            if len(shown) > 1:
                header += f" ({rule_title(detector, rule)})"
            fields.append(
                (Column(header, group), _opening(detector, rule, partial(_statistic_cell, same)))
            )
        p_values = {i: m[rule].p_value for i, m in enumerate(models) if rule in m}
        known = any(p is not None for p in p_values.values())
        if known and not any(_agree(p_values, column) for column in p_columns):
            header = f"p ({rule_title(detector, rule)})" if p_columns else "p"
            p_columns.append(p_values)
            fields.append((Column(header, group), partial(_p_cell, rule)))
        verdicts = Column(as_header(rule_title(detector, rule)), group, numeric=False)
        verdict = _opening(detector, rule, partial(_verdict_cell, rule, suspected))
        fields.append((verdicts, verdict))
    if any(score.n_dropped for score in every):
        fields.append((Column("Items dropped", group), _dropped_cell))
    return fields


def _opening(detector: str, rule: str, cell: _Show) -> _Show:
    """Let the cells of a column open the items behind a rule's score."""

    def show(model: GridModel, rules: _Rules) -> Cell:
        key = cell_key(model.name, detector, rule) if rule in rules else ""
        return replace(cell(model, rules), opens=key)

    return show


def _about(detector: str) -> str:
    """Return what a detector measures, what a contaminated model shows, and its caveat."""
    if (known := DETECTORS.get(detector)) is None:
        return ""
    about = known.about
    parts = [f"Contaminated models: {about.direction}.", f"Rules: {about.variant}."]
    parts += [f"What else moves it: {about.caveat}."] if about.caveat else []
    return " ".join([*parts, f"Source: {about.paper}."])


def _same_statistic(rule: str, other: str, models: Sequence[_Rules]) -> bool:
    pairs = [(m[rule].statistic, m[other].statistic) for m in models if rule in m and other in m]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return bool(known) and all(a == b for a, b in known)


def _agree(p_values: dict[int, float | None], others: dict[int, float | None]) -> bool:
    return all(p is None or p == others.get(at) for at, p in p_values.items())


def is_gap(score: Score) -> bool:
    """Return whether the statistic is a difference of accuracies, or of one and its expectation."""
    compared = len(score.accuracies) > 1 or (score.accuracies and score.means)
    return score.unit == "fraction" and bool(compared)


def _statistic_header(rule: str, models: Sequence[_Rules]) -> str:
    score = next(m[rule] for m in models if rule in m and m[rule].statistic is not None)
    if is_gap(score):
        return "Δ, pp"
    return "Statistic, %" if score.unit == "fraction" else f"Statistic, {score.unit}"


def _accuracy_cell(variant: str, model: GridModel, rules: _Rules) -> Cell:
    counts = [s.accuracies[variant] for s in rules.values() if variant in s.accuracies]
    return count_cell(next((count for count in counts if count.n), Count(k=0, n=0)))


def _statistic_cell(same_rules: list[str], model: GridModel, rules: _Rules) -> Cell:
    scores = [rules[r] for r in same_rules if r in rules and rules[r].statistic is not None]
    if not scores:
        return Cell(formats.NOTHING)
    between = next((s.interval for s in scores if s.interval), None)
    return statistic_cell(scores[0].model_copy(update={"interval": between}))


def statistic_cell(score: Score) -> Cell:
    """Return a score's statistic in the detector's unit with its interval; a dash for None."""
    value, between = score.statistic, score.interval
    if value is None:
        return Cell(formats.NOTHING)
    if is_gap(score):
        return Cell(formats.points(value), formats.interval(between))
    if score.unit == "fraction":
        return Cell(formats.percent(value), formats.share_interval(between))
    return Cell(formats.number(value), formats.interval(between, formats.number))


def _dropped_cell(model: GridModel, rules: _Rules) -> Cell:
    counts = [score.n_dropped for score in rules.values()]
    return Cell(str(max(counts)) if counts else formats.NOTHING)


def _p_cell(rule: str, model: GridModel, rules: _Rules) -> Cell:
    return Cell(formats.p_value(rules[rule].p_value if rule in rules else None))


def _verdict_cell(rule: str, suspected: Collection[Key], model: GridModel, rules: _Rules) -> Cell:
    if rule not in rules:
        return Cell("not asked")
    score, text = rules[rule], VERDICTS[rules[rule].verdict]
    if score.verdict == "not_applicable":
        return Cell(text, score.reason)
    if key_of(score) in suspected:
        return Cell(SUSPECTED, text)
    right = success(score, model)
    return Cell(text, mark="" if right is None else "✗✓"[right])


def as_header(variant: str) -> str:
    """Return a name as a header: spaces for underscores, first letter capitalised."""
    text = variant.replace("_", " ")
    return text[:1].upper() + text[1:]
