"""The tables of a grid of models: what is read from scores, and how it is put into cells."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from flipbench.core.errors import DataError
from flipbench.core.records import Score
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table

from ..detectors.registry import DETECTORS
from ..protocol.grid import UNTOUCHED, GridModel
from ..validation.external import Key, external_alarms, key_of
from ..validation.requirements import success

GAP = "perturbation_gap"
TEST = "mcnemar"
RULES = {
    "sign": "sign rule (paper)",
    TEST: "McNemar test",
    "relative": "vs clean",
    "paper": "paper’s rule",
    "bands": "paper’s bands",
    "paired": "permutation test",
}
"""Titles of the rules that several detectors have."""
VERDICTS = {
    "contaminated": "contaminated",
    "not_detected": "not detected",
    "inconclusive": "inconclusive",
    "not_applicable": "not applicable",
}
SUSPECTED = "false alarm suspected"


def gap_table(grid: Sequence[GridModel], scores: Sequence[Score]) -> Table:
    """Return the main table: the perturbation gap of every model, with each rule's verdict."""
    return _model_table(
        "gap",
        "Accuracy on the original and on the answer-flipped version of the same items, and the gap"
        " between them (perturbed − original; negative is suspicious) with its paired 95 %"
        " interval. p: exact one-sided McNemar test. ✓ and ✗ say whether a verdict agrees with"
        " what is known of the model (the paper’s sign rule asks a clean model for a gap above 0);"
        " “false alarm suspected”: the rule fires on a model that cannot have seen the benchmark.",
        grid,
        scores,
        [GAP],
    )


def other_table(grid: Sequence[GridModel], scores: Sequence[Score]) -> Table | None:
    """Return the other detectors on the same models, or None where there are none."""
    others = [name for name in detectors_of(scores) if name != GAP]
    if not others:
        return None
    return _model_table(
        "others",
        "The other detectors on the same models and items. Accuracies in %, with counts; Δ is the"
        " detector's own statistic, in percentage points.",
        grid,
        scores,
        others,
    )


def title(detector: str) -> str:
    """Return a detector's name for people."""
    known = DETECTORS.get(detector)
    return known.about.title if known else detector.replace("_", " ")


def rule_title(detector: str, rule: str) -> str:
    """Return the name for people of a detector's rule."""
    known = DETECTORS.get(detector)
    own = known.about.rule_titles.get(rule) if known else None
    return own or RULES.get(rule, rule.replace("_", " "))


def detectors_of(scores: Sequence[Score]) -> list[str]:
    """Return the detectors that have scores, the perturbation gap first."""
    names = dict.fromkeys(score.detector for score in scores)
    return sorted(names, key=lambda name: name != GAP)


def accuracies(score: Score) -> dict[str, tuple[int, int]]:
    """Return (k, n) for each variant the score counted right answers on."""
    return {name: (count.k, count.n) for name, count in score.accuracies.items()}


def families(grid: Sequence[GridModel]) -> dict[str, list[GridModel]]:
    """Return the models of each family: clean, then by strategy and dose, then of unknown dose."""
    strategies = list(dict.fromkeys(model.strategy for model in grid))
    found: dict[str, list[GridModel]] = {}
    for model in grid:
        found.setdefault(model.family, []).append(model)
    for models in found.values():
        models.sort(
            key=lambda m: (
                (not m.clean, m.clean_finetune or m.dose is None),
                (strategies.index(m.strategy), m.dose or 0, m.epoch),
            )
        )
    return found


def label(model: GridModel, models: Sequence[GridModel]) -> str:
    """Return what a model is called within its family; its full name where that is not unique."""

    def short(m: GridModel) -> str:
        if m.strategy == UNTOUCHED:
            return "clean"
        if not m.epoch:  # trained elsewhere, by whatever steps
            return m.name
        return f"{m.strategy}, epoch {m.epoch}" + (" (other data)" if m.clean else "")

    alike = [m for m in models if short(m) == short(model)]
    return short(model) if len(alike) == 1 else model.name


def scores_of(
    model: GridModel, grid: Sequence[GridModel], scores: Sequence[Score]
) -> dict[str, dict[str, Score]]:
    """Return a model's scores by detector and rule.

    Where one rule was applied against several reference models, each of them counts as a rule.
    """
    names = {m.fingerprint: m.name for m in grid}
    found: dict[str, dict[str, Score]] = {}
    mine = [s for s in scores if s.model_fingerprint == model.fingerprint]
    for s in mine:
        alike = [o for o in mine if (o.detector, o.rule) == (s.detector, s.rule)]
        other = names.get(s.reference_fingerprint, s.reference_fingerprint[:8])
        rule = s.rule if len(alike) == 1 else f"{s.rule} vs {other}"
        found.setdefault(s.detector, {})[rule] = s
    return found


def gap_score(scores: Mapping[str, Mapping[str, Score]]) -> Score | None:
    """Return the score figures stand on: the test's, else the first rule's that has a gap."""
    rules = scores.get(GAP, {})
    ordered = [rules[TEST], *rules.values()] if TEST in rules else list(rules.values())
    counted = (s for s in ordered if {"original", "perturbed"} <= set(accuracies(s)))
    return next((s for s in counted if s.statistic is not None), None)


def fell_and_rose(score: Score) -> tuple[int, int]:
    """Return how many items went right → wrong and wrong → right."""
    if score.paired is not None:
        return score.paired.b, score.paired.c
    values = list(score.per_item.values())
    return values.count(-1.0), values.count(1.0)


# ------------------------------------------------------------------ columns of a detector

_Rules = Mapping[str, Score]  # one model's scores of one detector, by rule
_Field = tuple[Column, Callable[[GridModel, _Rules], Cell]]


def _model_table(
    key: str, caption: str, grid: Sequence[GridModel], scores: Sequence[Score], names: list[str]
) -> Table:
    by_model = {model.fingerprint: scores_of(model, grid, scores) for model in grid}
    if grid and not any(by_model.values()):
        raise DataError(
            "no score belongs to a model of the grid; evaluate the same checkpoints the grid names"
        )
    suspected = {key for key, found in external_alarms(scores, grid).items() if found.suspected}
    fields: list[tuple[str, _Field]] = []
    for name in names:
        mine = [m.get(name, {}) for m in by_model.values()]
        fields += [(name, field) for field in _fields(name, mine, suspected)]
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
    variants = list(dict.fromkeys(name for score in every for name in accuracies(score)))
    if detector != GAP and len(variants) > 1:  # "original" stands in the main table already
        variants = [name for name in variants if name != "original"]
    fields: list[_Field] = [
        (Column(as_header(name) + ", %", group), _accuracy_cell(name)) for name in variants
    ]
    rules = list(dict.fromkeys(rule for scores in models for rule in scores))
    shown: list[str] = []
    tests: list[dict[int, float | None]] = []
    for rule in rules:
        twin = next((other for other in shown if _same_statistic(other, rule, models)), None)
        if twin is None and any(m[rule].statistic is not None for m in models if rule in m):
            shown.append(rule)
            alike = [r for r in rules if _same_statistic(rule, r, models)]
            header = _statistic_header(rule, models)
            if len(shown) > 1:
                header += f" ({rule_title(detector, rule)})"
            fields.append((Column(header, group), _statistic_cell(alike)))
        known = {i: m[rule].p_value for i, m in enumerate(models) if rule in m}
        if any(p is not None for p in known.values()) and not any(_agree(known, t) for t in tests):
            header = f"p ({rule_title(detector, rule)})" if tests else "p"
            tests.append(known)
            fields.append((Column(header, group), _p_cell(rule)))
        fields.append(
            (
                Column(as_header(rule_title(detector, rule)), group, numeric=False),
                _verdict_cell(rule, suspected),
            )
        )
    if any(score.n_dropped for score in every):
        fields.append((Column("Items dropped", group), _dropped_cell))
    return fields


def _same_statistic(one: str, other: str, models: Sequence[_Rules]) -> bool:
    pairs = [(m[one].statistic, m[other].statistic) for m in models if one in m and other in m]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return bool(known) and all(a == b for a, b in known)


def _agree(some: dict[int, float | None], others: dict[int, float | None]) -> bool:
    return all(p is None or p == others.get(at) for at, p in some.items())


def is_gap(score: Score) -> bool:
    """Return whether the statistic is a difference of accuracies."""
    return score.unit == "fraction" and len(accuracies(score)) > 1


def _statistic_header(rule: str, models: Sequence[_Rules]) -> str:
    score = next(m[rule] for m in models if rule in m and m[rule].statistic is not None)
    if is_gap(score):
        return "Δ, pp"
    return "Statistic, %" if score.unit == "fraction" else f"Statistic, {score.unit}"


def _accuracy_cell(variant: str) -> Callable[[GridModel, _Rules], Cell]:
    def cell(model: GridModel, rules: _Rules) -> Cell:
        for score in rules.values():
            k, n = accuracies(score).get(variant, (0, 0))
            if n:
                return Cell(formats.percent(k / n), f"{k}/{n}")
        return Cell(formats.NOTHING)

    return cell


def _statistic_cell(rules_alike: list[str]) -> Callable[[GridModel, _Rules], Cell]:
    def cell(model: GridModel, rules: _Rules) -> Cell:
        mine = [rules[r] for r in rules_alike if r in rules and rules[r].statistic is not None]
        if not mine:
            return Cell(formats.NOTHING)
        value, between = mine[0].statistic, next((s.interval for s in mine if s.interval), None)
        assert value is not None
        if is_gap(mine[0]):
            return Cell(formats.points(value), formats.interval(between))
        scale = 100 if mine[0].unit == "fraction" else 1
        text = formats.percent(value) if scale == 100 else formats.number(value)
        if between is None:
            return Cell(text)
        scaled = between.model_copy(
            update={"low": scale * between.low, "high": scale * between.high}
        )
        return Cell(text, formats.interval(scaled, formats.number))

    return cell


def _dropped_cell(model: GridModel, rules: _Rules) -> Cell:
    counts = [score.n_dropped for score in rules.values()]
    return Cell(str(max(counts)) if counts else formats.NOTHING)


def _p_cell(rule: str) -> Callable[[GridModel, _Rules], Cell]:
    def cell(model: GridModel, rules: _Rules) -> Cell:
        p = rules[rule].p_value if rule in rules else None
        return Cell(formats.NOTHING if p is None else formats.p_value(p))

    return cell


def _verdict_cell(rule: str, suspected: Collection[Key]) -> Callable[[GridModel, _Rules], Cell]:
    def cell(model: GridModel, rules: _Rules) -> Cell:
        if rule not in rules:
            return Cell("not asked")
        text = VERDICTS[rules[rule].verdict]
        if key_of(rules[rule]) in suspected and rules[rule].verdict != "not_applicable":
            return Cell(SUSPECTED, text)
        if rules[rule].verdict == "not_applicable":
            return Cell(text, rules[rule].reason)
        right = success(rules[rule], model)
        return Cell(text, mark="" if right is None else "✗✓"[right])

    return cell


def as_header(variant: str) -> str:
    """Return a name as a header: blanks for underscores, first letter large."""
    text = variant.replace("_", " ")
    return text[:1].upper() + text[1:]
