"""The tables that say which detector can be trusted: error rates, and the requirements."""

from __future__ import annotations

from collections.abc import Sequence

from flipbench.core.rates import MIN_CLUSTERS, Rate
from flipbench.core.records import Interval
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table

from ..detectors.registry import DETECTORS, default_rule
from ..protocol.grid import Requirements
from ..statistics.roc import OperatingPoint
from ..validation.validation import Validation
from .tables import SUSPECTED, as_header, rule_title, title


def by_default_rule(validations: Sequence[Validation]) -> list[Validation]:
    """Return one rule for each detector, the default, the best AUROC first.

    What applies to none of the models is left out.
    """
    found = [
        v
        for v in validations
        if v.detector in DETECTORS
        and v.rule == default_rule(v.detector)
        and (v.separation or v.detected.n or v.alarms.n)
    ]
    return sorted(found, key=lambda v: 1.0 if v.separation is None else -v.separation.auroc)


def detectors_table(validations: Sequence[Validation]) -> Table:
    """Return one row for each detector, by the rule to go by."""
    several = len({v.benchmark_id for v in validations}) > 1
    rows = []
    for v in by_default_rule(validations):
        cells = {name: cell for name, cell in _cells(v) if name in ("AUROC", "Steps in order")}
        needs = v.rule == "relative" or DETECTORS[v.detector].about.needs_clean_model
        shown = (
            Cell(rule_title(v.detector, v.rule), SUSPECTED if v.external_alarms.suspected else ""),
            _rate(v.detected),
            _rate(v.alarms),
            *cells.values(),
            Cell("yes" if needs else "no"),
        )
        rows.append(Row(title(v.detector) + (f" on {v.benchmark}" if several else ""), shown))
    columns = (
        Column("Rule", numeric=False),
        Column("Contaminated models caught"),
        Column("Clean models flagged"),
        Column("AUROC"),
        Column("Steps in order"),
        Column("Needs a clean model", numeric=False),
    )
    return Table(
        "detectors",
        "One row for each detector, by the rule to go by, which was fixed before and not chosen on"
        " these models; the best AUROC first. " + _BRACKETS,
        "Detector",
        columns,
        (("", tuple(rows)),),
    )


def validation_table(validations: Sequence[Validation]) -> Table:
    """Return the error rates of every rule of every detector on models of known dose."""
    several = len({v.benchmark_id for v in validations}) > 1
    groups: dict[str, list[Row]] = {}
    for v in validations:
        on = f" on {v.benchmark}" if several else ""
        row = Row(as_header(rule_title(v.detector, v.rule)), tuple(cell for _, cell in _cells(v)))
        groups.setdefault(title(v.detector) + on, []).append(row)
    columns = [column for column, _ in _cells(validations[0])] if validations else []
    return Table(
        "validation",
        " ".join(_caption(validations)),
        "Rule",
        tuple(Column(name) for name in columns),
        tuple((name, tuple(rows)) for name, rows in groups.items()),
    )


def requirements_table(requirements: Sequence[Requirements]) -> Table:
    """Return the requirements of every rule of every detector, fractions beside the glyphs."""
    columns = ["Practicality", "Reliability", "Consistency", "Specificity"]
    columns += ["Missed", "Not monotone", "False alarms"]
    groups: dict[str, list[Row]] = {}
    for r in requirements:
        weak, strict = (_of(*x) for x in (r.consistency_weak, r.consistency_strict))
        cells = (
            Cell("practical" if r.practical else "not practical", mark=r.practicality_glyph),
            Cell(_of(*r.reliability), mark=r.reliability_glyph),
            Cell(f"weak {weak}, strict {strict}", mark=r.consistency_glyph),
            Cell(_of(*r.specificity), mark=r.specificity_glyph),
            *(Cell(", ".join(x) or "none") for x in (r.misses, r.violations, r.false_alarms)),
        )
        groups.setdefault(title(r.detector), []).append(
            Row(as_header(rule_title(r.detector, r.rule)), cells)
        )
    return Table(
        "requirements",
        "Practicality: a verdict needs neither the training corpus, nor a clean model, nor a tuned"
        " threshold. Reliability: contaminated models detected. Consistency: series that grow with"
        " the dose, weakly and strictly. Specificity: clean models not flagged.",
        "Rule",
        tuple(Column(name, numeric=False) for name in columns),
        tuple((name, tuple(rows)) for name, rows in groups.items()),
    )


def _cells(v: Validation) -> list[tuple[str, Cell]]:
    found = v.separation
    nothing = Cell(formats.NOTHING)
    points = {p.target: _point(p) for p in found.points} if found else {}
    trend = v.trend
    return [
        ("Power", _rate(v.detected)),
        ("False alarms: clean as released", _alarms(v.untouched_alarms)),
        ("False alarms: clean fine-tunes", _alarms(v.finetuned_alarms)),
        (
            "AUROC",
            Cell(f"{found.auroc:.2f}", two_decimals(found.interval)) if found else nothing,
        ),
        ("TPR at 0 false alarms", points.get(0.0, nothing)),
        ("TPR at FPR 1 %", points.get(0.01, nothing)),
        ("TPR at FPR 5 %", points.get(0.05, nothing)),
        ("Steps in order", Cell(_of(trend.in_order, trend.n_steps) if trend.n_steps else "–")),
        (
            "Rank correlation",
            nothing
            if trend.p_value is None
            else Cell(formats.signed(trend.correlation), f"p {formats.p_value(trend.p_value)}"),
        ),
        ("External models", _external(v)),
    ]


def _external(v: Validation) -> Cell:
    if not v.external_alarms.n:
        return Cell("none asked")
    fired = f"{len(v.external_alarms.fired)}/{v.external_alarms.n} fire"
    if not v.external_alarms.suspected:
        return Cell(fired)
    by_chance = f"{100 * v.external_alarms.by_chance:.0f} %"
    chance = f"{fired}: {', '.join(v.external_alarms.fired)}; by chance {by_chance}"
    return Cell(SUSPECTED, chance)


def _point(point: OperatingPoint) -> Cell:
    if not point.estimable:
        return Cell("not estimable", f"needs {round(1 / point.target)} clean")
    return _rate(point.detected)


def _rate(rate: Rate) -> Cell:
    if rate.interval is None:
        return Cell(_of(rate.k, rate.n) if rate.n else formats.NOTHING)
    return Cell(_of(rate.k, rate.n), formats.interval(rate.interval, formats.percent))


def _alarms(rate: Rate) -> Cell:
    cell = _rate(rate)
    return Cell(cell.text, f"{cell.small} too few models") if rate.n and rate.too_few else cell


def two_decimals(between: Interval) -> str:
    """Return an interval of a probability, ``[0.71, 1.00]``."""
    return formats.interval(between, "{:.2f}".format)


def _of(hit: int, total: int) -> str:
    return f"{hit}/{total}"


_BRACKETS = (
    "AUROC: probability that a contaminated model looks more suspicious than a clean one, whatever"
    " the threshold. Brackets: 95 % intervals, in % beside counts (false alarms: Clopper–Pearson;"
    " power: Wilson). Models that descend from one clean model are not independent: intervals count"
    " them as one."
)


def _caption(validations: Sequence[Validation]) -> list[str]:
    found = [v.separation for v in validations if v.separation]
    said = [
        "Models of known dose. Power and false alarms: the rule’s own verdicts on contaminated and"
        " on clean models. TPR: contaminated models above the best threshold that lets at most that"
        " share of clean models pass it.",
        _BRACKETS,
    ]
    if found:
        fewest = min(s.n_clean for s in found)
        n_clusters = min(s.n_clusters for s in found)
        least = f"1/{fewest} = {formats.percent(1 / fewest)} %"
        said.append(
            f"With {fewest} clean {'model' if fewest == 1 else 'models'} the smallest"
            f" false-positive rate above 0 is {least}, so a TPR at a smaller rate cannot be"
            " estimated."
        )
        if n_clusters < MIN_CLUSTERS:
            said.append(
                f"The models descend from {n_clusters} clean"
                f" {'one' if n_clusters == 1 else 'ones'}, too few to resample: the intervals of"
                " AUROC and TPR count each of these as one model (Newcombe; Wilson)."
            )
        else:
            said.append(
                "Intervals of AUROC and TPR: bootstrap over clean models with all that descends"
                " from them (Newcombe or Wilson where all draws agree)."
            )
    said.append(
        "Steps in order: from one dose to the next, towards “contaminated”; half by chance. Rank"
        " correlation: Somers’ D within series, p by shuffling doses. External models cannot have"
        f" seen the benchmark; a rule that fires on one is marked “{SUSPECTED}”."
    )
    unranked = sum(len(v.unranked) for v in validations)
    if unranked:
        said.append(f"{unranked} verdicts without a statistic are missing from the ROC curves.")
    return said
