"""The tables that show which detectors can be trusted: error rates and requirements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flipbench.core.records import Count, Interval, Score, Value
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table

from ..detectors.registry import DETECTORS, default_rule
from ..protocol.grid import KINDS, GridModel, Requirements
from ..statistics.design_effect import ClusteredRate
from ..statistics.paired import adjust_p_values
from ..statistics.roc import OperatingPoint
from ..validation.family_wise import family_wise
from ..validation.validation import Validation
from .tables import SUSPECTED, as_header, rule_title, title
from .validation_captions import detectors_caption, rules_caption

NOT_TESTABLE = "not testable here"
ABSENT = "not in this grid"


class DetectorResult(Value):
    """How well a detector did by one of its rules on models of known dose.

    Attributes
    ----------
    default : bool
        Whether this is the detector's default rule.
    untestable : str
        Why these models cannot test it; empty if they can.
    detected, false_alarms : ClusteredRate
        Contaminated and clean models called contaminated.
    auroc : float or None
        None without both clean and contaminated models that have a statistic.
    in_order : Count
        Steps from one dose to the next at which the statistic grew more suspicious.
    suspected : bool
        Whether the rule also flags a model that cannot have seen the benchmark.
    """

    detector: str
    title: str
    rule: str
    rule_title: str
    default: bool = False
    untestable: str = ""
    detected: ClusteredRate
    false_alarms: ClusteredRate
    auroc: float | None = None
    auroc_interval: Interval | None = None
    in_order: Count
    needs_clean_model: bool
    suspected: bool = False


def by_default_rule(validations: Sequence[Validation]) -> list[Validation]:
    """Return each detector's default rule, the best AUROC first.

    Rules that apply to none of the models are left out.
    """
    defaults = [
        v
        for v in validations
        if v.detector in DETECTORS
        and v.rule == default_rule(v.detector)
        and (v.separation or v.detected.n or v.alarms.n)
    ]
    return sorted(defaults, key=lambda v: 1.0 if v.separation is None else -v.separation.auroc)


def detector_results(validations: Sequence[Validation]) -> list[DetectorResult]:
    """Return the result of every rule, the default rules first, the best AUROC first."""
    defaults = by_default_rule(validations)
    others = [v for v in validations if v not in defaults and v.detector in DETECTORS]
    return [
        DetectorResult(
            detector=v.detector,
            title=title_among(v, validations),
            rule=v.rule,
            rule_title=rule_title(v.detector, v.rule),
            default=v in defaults,
            detected=v.detected,
            false_alarms=v.alarms,
            auroc=v.separation.auroc if v.separation else None,
            auroc_interval=v.separation.interval if v.separation else None,
            in_order=Count(k=v.trend.in_order, n=v.trend.n_steps),
            needs_clean_model=DETECTORS[v.detector].about.needs_clean_model(v.rule),
            untestable=can_test(v)[1],
            suspected=v.external_alarms.suspected,
        )
        for v in [*defaults, *others]
    ]


def default_tests(validations: Sequence[Validation]) -> dict[str, str]:
    """Return each detector's default rule, if that is a test with a level."""
    chosen = by_default_rule(validations)
    return {v.detector: v.rule for v in chosen if v.rule not in DETECTORS[v.detector].about.levels}


def detectors_table(
    validations: Sequence[Validation], grid: Sequence[GridModel], scores: Sequence[Score]
) -> Table:
    """Return one row per detector, by its default rule, grouped by what it must catch.

    The last rows are of all these rules together, if several are tests.
    """
    chosen = by_default_rule(validations)
    family = family_wise(scores, grid, default_tests(validations))
    with_trend = [v for v in chosen if v.trend.p_value is not None]
    adjusted = adjust_p_values([v.trend.p_value or 0.0 for v in with_trend])
    p_trend = {id(v): p for v, p in zip(with_trend, adjusted, strict=True)}
    groups: dict[str, list[Row]] = {}
    for v in chosen:
        about, cells = DETECTORS[v.detector].about, dict(_cells(v))
        steps = _count(v.trend.in_order, v.trend.n_steps)
        if id(v) in p_trend:
            steps = Cell(steps.text, f"p {formats.p_value(p_trend[id(v)])}")
        summary = (
            Cell(rule_title(v.detector, v.rule), SUSPECTED if v.external_alarms.suspected else ""),
            Cell(*can_test(v)),
            _rate(v.detected),
            _rate(v.alarms),
            cells["AUROC"],
            cells["AUROC within lineages"],
            steps,
            Cell("yes" if about.needs_clean_model(v.rule) else "no"),
        )
        kinds = ", ".join(about.catches)
        heading = f"Made to catch: {kinds}" if kinds else "Made to catch: not stated"
        row = Row(title_among(v, validations), summary, about=v.detector)
        groups.setdefault(heading, []).append(row)
    if family:
        nothing = Cell(formats.NOTHING)
        groups[f"All of these tests together, up to {family.n_tests} per model"] = [
            Row("At least one flags", (Cell(rule), nothing, *map(_rate, rates), *[nothing] * 4))
            for rule, rates in (
                ("each at its own level", (family.detected, family.alarms)),
                ("Holm’s correction", (family.holm_detected, family.holm_alarms)),
            )
        ]
    columns = (
        Column("Rule", numeric=False),
        Column("Testable here", numeric=False),
        Column("Contaminated models caught"),
        Column("Clean models flagged"),
        Column("AUROC"),
        Column("AUROC within lineages"),
        Column("Steps in order"),
        Column("Needs a clean model", numeric=False),
    )
    return Table(
        "detectors",
        " ".join(detectors_caption(chosen, family)),
        "Detector",
        columns,
        tuple((name, tuple(rows)) for name, rows in groups.items()),
    )


def can_test(v: Validation) -> tuple[str, str]:
    """Return whether these models can test a rule ("yes", "no", "negative control"), and why not.

    They cannot if its statistic does not move on them, or if none was contaminated in a way that
    the detector is made to catch. If it must not catch any of it, they are a negative control.
    """
    if v.untestable:
        return "no", v.untestable
    if v.detector not in DETECTORS or not v.kinds:
        return "yes", ""
    about = DETECTORS[v.detector].about
    if {*v.kinds} <= {*about.must_not_catch}:
        return "negative control", f"{', '.join(v.kinds)} must not set it off"
    if about.catches and not {*v.kinds} & {*about.catches}:
        return "no", f"no model here was trained on {' or '.join(about.catches)}"
    return "yes", ""


def controls_table(validations: Sequence[Validation]) -> Table | None:
    """Return how often each detector flags models trained on what it must not catch.

    None if it is not known of any model what it was trained on.
    """
    chosen = [v for v in by_default_rule(validations) if DETECTORS[v.detector].about.must_not_catch]
    if not any(v.kinds for v in chosen):
        return None
    nothing, absent = Cell(formats.NOTHING), Cell(ABSENT)
    kinds = [
        k for k in KINDS if any(k in DETECTORS[v.detector].about.must_not_catch for v in chosen)
    ]
    rows = []
    for v in chosen:
        must_not = DETECTORS[v.detector].about.must_not_catch
        cells = [
            (_rate(v.by_kind[kind]) if kind in v.by_kind else absent)
            if kind in must_not
            else nothing
            for kind in kinds
        ]
        rows.append(Row(title_among(v, validations), tuple(cells)))
    return Table(
        "controls",
        "Negative controls: models called contaminated by each detector's default rule, of those"
        " trained on something that it must not react to; every one of them is a false alarm."
        f" “{ABSENT}”: no such model, so this was not checked. –: it may react to this.",
        "Detector",
        tuple(Column(as_header(kind)) for kind in kinds),
        (("", tuple(rows)),),
    )


def validation_table(validations: Sequence[Validation]) -> Table:
    """Return the error rates of every rule of every detector on models of known dose."""
    groups: dict[str, list[Row]] = {}
    for v in validations:
        row = Row(as_header(rule_title(v.detector, v.rule)), tuple(cell for _, cell in _cells(v)))
        groups.setdefault(title_among(v, validations), []).append(row)
    columns = [column for column, _ in _cells(validations[0])] if validations else []
    return Table(
        "validation",
        " ".join(rules_caption(validations)),
        "Rule",
        tuple(Column(name) for name in columns),
        tuple((name, tuple(rows)) for name, rows in groups.items()),
    )


def requirements_table(requirements: Sequence[Requirements]) -> Table:
    """Return the requirements of every rule of every detector, as glyphs and fractions."""
    columns = ["Practicality", "Reliability", "Consistency", "Specificity"]
    columns += ["Missed", "Not monotone", "False alarms"]
    groups: dict[str, list[Row]] = {}
    for r in requirements:
        fractions = (r.reliability, r.consistency_weak, r.consistency_strict, r.specificity)
        reliability, weak, strict, specificity = (f"{k}/{n}" for k, n in fractions)
        cells = (
            Cell("practical" if r.practical else "not practical", mark=r.practicality_glyph),
            Cell(reliability, mark=r.reliability_glyph),
            Cell(NOT_TESTABLE, r.untestable)
            if r.untestable
            else Cell(f"weak {weak}, strict {strict}", mark=r.consistency_glyph),
            Cell(specificity, mark=r.specificity_glyph),
            *(Cell(", ".join(x) or "none") for x in (r.misses, r.violations, r.false_alarms)),
        )
        groups.setdefault(title(r.detector), []).append(
            Row(as_header(rule_title(r.detector, r.rule)), cells)
        )
    return Table(
        "requirements",
        "Practicality: a verdict needs no training corpus, no clean model and no tuned threshold."
        " Reliability: contaminated models detected. Consistency: series in which the signal grows"
        " with the dose, weakly (it never shrinks and grows at least once) and strictly."
        " Specificity: clean models not flagged. Not testable here: the statistic does not move on"
        " these models, so nothing about it is ticked.",
        "Rule",
        tuple(Column(name, numeric=False) for name in columns),
        tuple((name, tuple(rows)) for name, rows in groups.items()),
    )


def _cells(v: Validation) -> list[tuple[str, Cell]]:
    nothing = Cell(formats.NOTHING)
    separation, trend = v.separation, v.trend
    auroc = Cell(NOT_TESTABLE, v.untestable) if v.untestable else nothing
    within, points = nothing, {}
    if separation:
        between = both_intervals(separation.interval, separation.pooled, "{:.2f}".format)
        wrong = "; wrong direction" if v.wrong_direction else ""
        auroc = Cell(f"{separation.auroc:.2f}", f"{between}{wrong}")
        points = {p.target: _point(p) for p in separation.points}
        if inside := separation.within:
            pairs = f"{inside.wins:g}/{inside.n_pairs} pairs"
            within = Cell(f"{inside.auroc:.2f}", f"{two_decimals(inside.interval)} {pairs}")
    correlation = nothing
    if trend.p_value is not None:
        p = f"p {formats.p_value(trend.p_value)}"
        correlation = Cell(formats.signed(trend.correlation), p)
    return [
        ("Power", _rate(v.detected)),
        ("False alarms: clean as released", _alarms(v.untouched_alarms)),
        ("False alarms: clean fine-tunes", _alarms(v.finetuned_alarms)),
        ("AUROC", auroc),
        ("AUROC within lineages", within),
        ("TPR at 0 false alarms", points.get(0.0, nothing)),
        ("TPR at FPR 1 %", points.get(0.01, nothing)),
        ("TPR at FPR 5 %", points.get(0.05, nothing)),
        ("Steps in order", _count(trend.in_order, trend.n_steps)),
        ("Rank correlation", correlation),
        ("External models", _external(v)),
    ]


def _external(v: Validation) -> Cell:
    alarms = v.external_alarms
    if not alarms.n:
        return Cell("none asked")
    count = f"{len(alarms.flagged)}/{alarms.n} flagged"
    if not alarms.suspected:
        return Cell(count)
    levels = DETECTORS[v.detector].about.levels if v.detector in DETECTORS else {}
    level = levels.get(v.rule, alarms.alpha)
    chance = "its level is unknown"
    if level is not None:
        chance = f"by chance {100 * alarms.by_chance(level):.0f} % at level {level:g}"
    return Cell(SUSPECTED, f"{count}: {', '.join(alarms.flagged)}; {chance}")


def _point(point: OperatingPoint) -> Cell:
    if not point.estimable:
        return Cell("not estimable", f"needs {round(1 / point.target)} clean")
    return _rate(point.detected)


def _rate(rate: ClusteredRate) -> Cell:
    between = both_intervals(rate.interval, rate.pooled, formats.percent)
    return _count(rate.k, rate.n, between)


def _alarms(rate: ClusteredRate) -> Cell:
    cell = _rate(rate)
    return Cell(cell.text, f"{cell.small} too few models") if rate.n and rate.too_few else cell


def title_among(v: Validation, validations: Sequence[Validation], rule: bool = False) -> str:
    """Return the titles of detector and, if asked, rule; and the benchmark if there are several."""
    name = f"{title(v.detector)}, {rule_title(v.detector, v.rule)}" if rule else title(v.detector)
    several = len({other.benchmark_id for other in validations}) > 1
    return f"{name} on {v.benchmark}" if several else name


def two_decimals(between: Interval) -> str:
    """Return an interval of a probability, ``[0.71, 1.00]``."""
    return formats.interval(between, "{:.2f}".format)


def _count(k: int, n: int, small: str = "") -> Cell:
    return Cell(f"{k}/{n}" if n else formats.NOTHING, small)


def both_intervals(
    clustered: Interval | None, pooled: Interval | None, form: Callable[[float], str]
) -> str:
    """Return the interval that allows for lineages, and the pooled one if it differs."""
    first, second = formats.interval(clustered, form), formats.interval(pooled, form)
    return first if first == second else f"{first} pooled {second}"
