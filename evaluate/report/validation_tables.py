"""The tables that show which detectors can be trusted: error rates and requirements."""

from __future__ import annotations

from collections.abc import Sequence

from flipbench.core.rates import MIN_CLUSTERS, Rate
from flipbench.core.record_base import Value
from flipbench.core.records import Count, Interval
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table

from ..detectors.registry import DETECTORS, default_rule
from ..protocol.grid import Requirements
from ..statistics.roc import OperatingPoint
from ..validation.external import ExternalAlarms
from ..validation.validation import Validation
from .tables import SUSPECTED, as_header, rule_title, title


class DetectorResult(Value):
    """How well a detector did by its default rule on models of known dose.

    Attributes
    ----------
    detected, false_alarms : Rate
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
    detected: Rate
    false_alarms: Rate
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
    """Return the result of each detector's default rule, the best AUROC first."""
    return [
        DetectorResult(
            detector=v.detector,
            title=title_among(v, validations),
            rule=v.rule,
            rule_title=rule_title(v.detector, v.rule),
            detected=v.detected,
            false_alarms=v.alarms,
            auroc=v.separation.auroc if v.separation else None,
            auroc_interval=v.separation.interval if v.separation else None,
            in_order=Count(k=v.trend.in_order, n=v.trend.n_steps),
            needs_clean_model=v.rule == "relative" or DETECTORS[v.detector].about.needs_clean_model,
            suspected=v.external_alarms.suspected,
        )
        for v in by_default_rule(validations)
    ]


def detectors_table(results: Sequence[DetectorResult]) -> Table:
    """Return one row per detector."""
    rows = []
    for r in results:
        summary = (
            Cell(r.rule_title, SUSPECTED if r.suspected else ""),
            _rate(r.detected),
            _rate(r.false_alarms),
            _auroc(r.auroc, r.auroc_interval),
            _count(r.in_order.k, r.in_order.n),
            Cell("yes" if r.needs_clean_model else "no"),
        )
        rows.append(Row(r.title, summary))
    counts = ("Contaminated models caught", "Clean models flagged", "AUROC", "Steps in order")
    columns = (
        Column("Rule", numeric=False),
        *map(Column, counts),
        Column("Needs a clean model", numeric=False),
    )
    return Table(
        "detectors",
        "One row per detector, by its default rule, which was fixed in advance and not chosen on"
        " these models; the best AUROC first. " + _BRACKETS,
        "Detector",
        columns,
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
        " ".join(_caption(validations)),
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
            Cell(f"weak {weak}, strict {strict}", mark=r.consistency_glyph),
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
        " with the dose, weakly and strictly. Specificity: clean models not flagged.",
        "Rule",
        tuple(Column(name, numeric=False) for name in columns),
        tuple((name, tuple(rows)) for name, rows in groups.items()),
    )


def _cells(v: Validation) -> list[tuple[str, Cell]]:
    nothing = Cell(formats.NOTHING)
    separation, trend = v.separation, v.trend
    auroc, points = nothing, {}
    if separation:
        auroc = _auroc(separation.auroc, separation.interval)
        points = {p.target: _point(p) for p in separation.points}
    correlation = nothing
    if trend.p_value is not None:
        p = f"p {formats.p_value(trend.p_value)}"
        correlation = Cell(formats.signed(trend.correlation), p)
    return [
        ("Power", _rate(v.detected)),
        ("False alarms: clean as released", _alarms(v.untouched_alarms)),
        ("False alarms: clean fine-tunes", _alarms(v.finetuned_alarms)),
        ("AUROC", auroc),
        ("TPR at 0 false alarms", points.get(0.0, nothing)),
        ("TPR at FPR 1 %", points.get(0.01, nothing)),
        ("TPR at FPR 5 %", points.get(0.05, nothing)),
        ("Steps in order", _count(trend.in_order, trend.n_steps)),
        ("Rank correlation", correlation),
        ("External models", _external(v.external_alarms)),
    ]


def _auroc(auroc: float | None, between: Interval | None) -> Cell:
    if auroc is None or between is None:
        return Cell(formats.NOTHING)
    return Cell(f"{auroc:.2f}", two_decimals(between))


def _external(alarms: ExternalAlarms) -> Cell:
    if not alarms.n:
        return Cell("none asked")
    count = f"{len(alarms.flagged)}/{alarms.n} flagged"
    if not alarms.suspected:
        return Cell(count)
    chance = f"by chance {100 * alarms.by_chance:.0f} %"
    return Cell(SUSPECTED, f"{count}: {', '.join(alarms.flagged)}; {chance}")


def _point(point: OperatingPoint) -> Cell:
    if not point.estimable:
        return Cell("not estimable", f"needs {round(1 / point.target)} clean")
    return _rate(point.detected)


def _rate(rate: Rate) -> Cell:
    return _count(rate.k, rate.n, formats.interval(rate.interval, formats.percent))


def _alarms(rate: Rate) -> Cell:
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


_BRACKETS = (
    "AUROC: probability that a contaminated model looks more suspicious than a clean one, at any"
    " threshold. Brackets: 95 % intervals, in % beside counts (false alarms: Clopper–Pearson;"
    " power: Wilson). Models that descend from the same clean model are not independent; intervals"
    " count them as one."
)


def _caption(validations: Sequence[Validation]) -> list[str]:
    separations = [v.separation for v in validations if v.separation]
    sentences = [
        "Models of known dose. Power and false alarms: the rule’s own verdicts on contaminated and"
        " on clean models. TPR: contaminated models above the best threshold that at most that"
        " share of clean models exceeds.",
        _BRACKETS,
    ]
    if separations:
        fewest = min(s.n_clean for s in separations)
        n_clusters = min(s.n_clusters for s in separations)
        least = f"1/{fewest} = {formats.percent(1 / fewest)} %"
        sentences.append(
            f"With {fewest} clean {'model' if fewest == 1 else 'models'} the smallest"
            f" false-positive rate above 0 is {least}, so the TPR at a smaller rate cannot be"
            " estimated."
        )
        sentences.append(
            f"The models descend from {n_clusters} clean"
            f" {'model' if n_clusters == 1 else 'models'}, too few to resample: the intervals"
            " of AUROC and TPR count each lineage as one model (Newcombe; Wilson)."
            if n_clusters < MIN_CLUSTERS
            else "Intervals of AUROC and TPR: bootstrap over lineages, each a clean model with its"
            " descendants (Newcombe or Wilson if all draws agree)."
        )
    sentences.append(
        "Steps in order: from one dose to the next, towards “contaminated”; half by chance. Rank"
        " correlation: Somers’ D within series, with p from shuffled doses. External models cannot"
        f" have seen the benchmark; a rule that flags one is marked “{SUSPECTED}”."
    )
    unranked = sum(len(v.unranked) for v in validations)
    if unranked:
        sentences.append(f"The ROC curves omit {unranked} verdicts without a statistic.")
    return sentences
