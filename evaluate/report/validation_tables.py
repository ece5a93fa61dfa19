"""The tables that show which detectors can be trusted: error rates, controls, requirements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from flipbench.core.paired import PairedBenchmark
from flipbench.core.rates import Rate
from flipbench.core.records import Count, Interval, Score, Value
from flipbench.reporting import formats
from flipbench.reporting.pages import text_environment
from flipbench.reporting.tables import (
    Cell,
    Column,
    Content,
    Row,
    Table,
    as_cell,
    build_table,
    text_column,
)

from ..detectors.registry import DETECTORS, default_rule
from ..protocol.grid import KINDS, GridModel, Requirements
from ..scoring.likelihood import item_text
from ..scoring.scores import cluster_of
from ..statistics.design_effect import ClusteredRate
from ..statistics.paired import adjust_p_values
from ..validation.blind import N_FOLDS, blind_baseline
from ..validation.validation import ExternalAlarms, FamilyWise, Validation, family_wise
from .titles import CAPTIONS, SUSPECTED, as_header, rule_title, title

NOT_TESTABLE = "not testable here"
ABSENT = "not in this grid"
_TEXTS: Any = text_environment(Path(__file__).parent / "templates").get_template(
    "validation_captions.jinja"
)
_CSV_COLUMNS = (
    "detector rule benchmark benchmark_id quantity value k n n_lineages low high pooled_low"
    " pooled_high design_effect p_value note"
).split()


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
    other_rules = [v for v in validations if v not in defaults and v.detector in DETECTORS]
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
        for v in [*defaults, *other_rules]
    ]


def default_tests(validations: Sequence[Validation]) -> dict[str, str]:
    """Return each detector's default rule, if that is a test with a level."""
    defaults = by_default_rule(validations)
    return {
        v.detector: v.rule for v in defaults if v.rule not in DETECTORS[v.detector].about.levels
    }


def detectors_table(
    validations: Sequence[Validation], grid: Sequence[GridModel], scores: Sequence[Score]
) -> Table:
    """Return one row per detector, by its default rule, grouped by what it must catch.

    The last rows are of all these rules together, if several are tests.
    """
    defaults = by_default_rule(validations)
    family = family_wise(scores, grid, default_tests(validations))
    with_trend = [v for v in defaults if v.trend.p_value is not None]
    adjusted = adjust_p_values([v.trend.p_value or 0.0 for v in with_trend])
    p_trend = {id(v): f"p {formats.p_value(p)}" for v, p in zip(with_trend, adjusted, strict=True)}

    def rule(v: Validation) -> Cell:
        suspicion = SUSPECTED if v.external_alarms.suspected else ""
        return Cell(rule_title(v.detector, v.rule), suspicion)

    def steps(v: Validation) -> Content:
        cell = _quantity("steps_in_order")(v)
        return replace(cell, small=p_trend.get(id(v), "")) if isinstance(cell, Cell) else cell

    groups: dict[str, list[tuple[str, Validation]]] = {}
    for v in defaults:
        kinds = ", ".join(DETECTORS[v.detector].about.catches) or "not stated"
        row = (title_among(v, validations), v)
        groups.setdefault(f"Made to catch: {kinds}", []).append(row)
    table = build_table(
        "detectors",
        _detectors_caption(defaults, family),
        "Detector",
        (
            (text_column("Rule"), rule),
            (text_column("Testable here"), lambda v: Cell(*can_test(v))),
            ("Contaminated models caught", lambda v: _rate(v.detected)),
            ("Clean models flagged", lambda v: _rate(v.alarms)),
            ("AUROC", _quantity("auroc")),
            ("AUROC within lineages", _quantity("auroc_within_lineages")),
            ("Steps in order", steps),
            (
                text_column("Needs a clean model"),
                lambda v: "yes" if DETECTORS[v.detector].about.needs_clean_model(v.rule) else "no",
            ),
        ),
        groups,
        about=lambda v: v.detector,
    )
    if family is None:
        return table
    family_rows = tuple(
        Row("At least one flags", tuple(map(as_cell, (by, None, *map(_rate, rates), *[None] * 4))))
        for by, rates in (
            ("each at its own level", (family.detected, family.alarms)),
            ("Holm’s correction", (family.holm_detected, family.holm_alarms)),
        )
    )
    heading = f"All of these tests together, up to {family.n_tests} per model"
    return replace(table, groups=(*table.groups, (heading, family_rows)))


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
    must_not = {name: detector.about.must_not_catch for name, detector in DETECTORS.items()}
    controlled = [v for v in by_default_rule(validations) if must_not[v.detector]]
    if not any(v.kinds for v in controlled):
        return None

    def flagged(kind: Any) -> Callable[[Validation], Content]:
        def cell(v: Validation) -> Content:
            if kind not in must_not[v.detector]:
                return None
            return _rate(v.by_kind[kind]) if kind in v.by_kind else ABSENT

        return cell

    kinds = [kind for kind in KINDS if any(kind in must_not[v.detector] for v in controlled)]
    return build_table(
        "controls",
        CAPTIONS["controls"],
        "Detector",
        [(as_header(kind), flagged(kind)) for kind in kinds],
        {"": [(title_among(v, validations), v) for v in controlled]},
    )


def validation_table(validations: Sequence[Validation]) -> Table:
    """Return the error rates of every rule of every detector on models of known dose."""
    groups: dict[str, list[tuple[str, Validation]]] = {}
    for v in validations:
        row = (as_header(rule_title(v.detector, v.rule)), v)
        groups.setdefault(title_among(v, validations), []).append(row)
    separations = [v.separation for v in validations if v.separation]
    caption = _TEXTS.module.rules(
        min((s.n_clean for s in separations), default=0),
        min((s.n_clusters for s in separations), default=0),
        [s.design_effect for s in separations],
        sum(len(v.unranked) for v in validations),
    )
    return build_table("validation", " ".join(caption.split()), "Rule", _RULE_COLUMNS, groups)


def requirements_table(requirements: Sequence[Requirements]) -> Table:
    """Return the requirements of every rule of every detector, as glyphs and fractions."""
    groups: dict[str, list[tuple[str, Requirements]]] = {}
    for r in requirements:
        row = (as_header(rule_title(r.detector, r.rule)), r)
        groups.setdefault(title(r.detector), []).append(row)

    def consistency(r: Requirements) -> Cell:
        if r.untestable:
            return Cell(NOT_TESTABLE, r.untestable)
        (weak, n_weak), (strict, n_strict) = r.consistency_weak, r.consistency_strict
        text = f"weak {weak}/{n_weak}, strict {strict}/{n_strict}"
        return Cell(text, mark=r.consistency_glyph)

    columns: dict[str, Callable[[Requirements], Content]] = {
        "Practicality": lambda r: Cell(
            "practical" if r.practical else "not practical", mark=r.practicality_glyph
        ),
        "Reliability": lambda r: Cell("{}/{}".format(*r.reliability), mark=r.reliability_glyph),
        "Consistency": consistency,
        "Specificity": lambda r: Cell("{}/{}".format(*r.specificity), mark=r.specificity_glyph),
        "Missed": lambda r: ", ".join(r.misses) or "none",
        "Not monotone": lambda r: ", ".join(r.violations) or "none",
        "False alarms": lambda r: ", ".join(r.false_alarms) or "none",
    }
    return build_table(
        "requirements",
        CAPTIONS["requirements"],
        "Rule",
        [(text_column(name), content) for name, content in columns.items()],
        groups,
    )


def blind_table(benchmark: PairedBenchmark, scores: Sequence[Score]) -> Table | None:
    """Return how well texts alone separate originals from perturbed items.

    None if no detector reads likelihoods, there are too few groups, or scikit-learn is missing.
    """
    reads = any(
        "token_logprobs" in DETECTORS[name].about.needs
        for name in {score.detector for score in scores} & DETECTORS.keys()
    )
    pairs = benchmark.pairs
    groups = [cluster_of(pair.original) for pair in pairs]
    if not reads or len(set(groups)) < N_FOLDS or find_spec("sklearn") is None:
        return None
    items = [*(pair.original for pair in pairs), *(pair.perturbed for pair in pairs)]
    is_member = [True] * len(pairs) + [False] * len(pairs)
    baseline = blind_baseline([item_text(item) for item in items], is_member, groups * 2)
    return build_table(
        "blind",
        CAPTIONS["blind"],
        "Texts",
        (
            ("AUROC", lambda b: Cell(f"{b.auroc:.2f}", two_decimals(b.interval))),
            ("Originals and perturbed", lambda b: f"{b.n_members} and {b.n_non_members}"),
            ("Images or groups", lambda b: b.n_groups),
            (text_column("Texts differ"), lambda b: "yes" if b.shifted else "not found"),
        ),
        {"": [("original vs perturbed", baseline)]},
    )


def same_signal(validations: Sequence[Validation]) -> dict[str, list[str]]:
    """Return the detectors that read the same signal, for each that several of these read."""
    by_signal: dict[str, dict[str, None]] = {}
    for v in validations:
        if v.detector in DETECTORS and (signal := DETECTORS[v.detector].about.signal):
            by_signal.setdefault(signal, {})[title(v.detector)] = None
    return {signal: list(names) for signal, names in by_signal.items() if len(names) > 1}


def _detectors_caption(defaults: Sequence[Validation], family: FamilyWise | None) -> str:
    kinds = [f"{kind} ({KINDS[kind]})" for kind in KINDS if any(kind in v.kinds for v in defaults)]
    alarms = family.holm_alarms_by if family else {}
    named_alarms = [f"{title(name)} ({n})" for name, n in alarms.items()]
    caption = _TEXTS.module.detectors(kinds, same_signal(defaults), family, named_alarms)
    return " ".join(caption.split())


# ----------------------------------------------------------------------- cells of a rule


def title_among(v: Validation, validations: Sequence[Validation], rule: bool = False) -> str:
    """Return the titles of detector and, if asked, rule; and the benchmark if there are several."""
    name = f"{title(v.detector)}, {rule_title(v.detector, v.rule)}" if rule else title(v.detector)
    several = len({w.benchmark_id for w in validations}) > 1
    return f"{name} on {v.benchmark}" if several else name


def two_decimals(between: Interval) -> str:
    """Return an interval of a probability, ``[0.71, 1.00]``."""
    return formats.interval(between, "{:.2f}".format)


def _rate(rate: ClusteredRate) -> Content:
    return _count_cell(_count(rate))


def _count_cell(row: Mapping[str, Any]) -> Content:
    return Cell(f"{row['k']}/{row['n']}", _small(row, formats.percent)) if row["n"] else None


def _probability_cell(row: Mapping[str, Any]) -> Cell:
    return Cell(f"{row['value']:.2f}", _small(row, "{:.2f}".format))


def _small(row: Mapping[str, Any], form: Callable[[float], str]) -> str:
    """Return the interval that allows for lineages, the pooled one if it differs, a remark."""
    by_lineage, pooled = (formats.interval(row.get(name), form) for name in ("interval", "pooled"))
    between = by_lineage if pooled in ("", by_lineage) else f"{by_lineage} pooled {pooled}"
    return f"{between}{row.get('remark', '')}"


def _external(alarms: ExternalAlarms, level: float | None) -> Cell:
    if not alarms.n:
        return Cell("none asked")
    count = f"{len(alarms.flagged)}/{alarms.n} flagged"
    if not alarms.suspected:
        return Cell(count)
    chance = "its level is unknown"
    if level is not None:
        chance = f"by chance {100 * alarms.by_chance(level):.0f} % at level {level:g}"
    return Cell(SUSPECTED, f"{count}: {', '.join(alarms.flagged)}; {chance}")


# ---------------------------------------------------------------- error rates, by quantity


def validation_frame(validations: Sequence[Validation]) -> pd.DataFrame:
    """Return one row per rule, benchmark and quantity: name, value, k, n, interval, p."""
    rows = []
    for v in validations:
        rule = {"detector": v.detector, "rule": v.rule, "benchmark": v.benchmark}
        for name, row in _quantities(v).items():
            ends = {
                f"{prefix}{end}": getattr(between, end)
                for prefix, key in (("", "interval"), ("pooled_", "pooled"))
                if (between := row.get(key)) is not None
                for end in ("low", "high")
            }
            names = {"benchmark_id": v.benchmark_id, "quantity": name, "note": ""}
            rows.append(rule | names | row | ends)
    return pd.DataFrame(rows, columns=_CSV_COLUMNS, dtype=object)


def _quantities(v: Validation) -> dict[str, dict[str, Any]]:
    """Return the numbers of a rule by name; ``cell`` and ``remark`` are for tables only."""
    rows: dict[str, dict[str, Any]] = {}
    if v.untestable:
        cell = Cell(NOT_TESTABLE, v.untestable)
        rows["auroc"] = {"note": f"not testable: {v.untestable}", "cell": cell}
    if (separation := v.separation) is not None:
        note = "wrong direction" if v.wrong_direction else ""
        row = {"value": separation.auroc, "design_effect": separation.design_effect, "note": note}
        row |= {"interval": separation.interval, "pooled": separation.pooled}
        rows["auroc"] = row | {"remark": f"; {note}" if note else ""}
        if within := separation.within:
            row = {"value": within.auroc, "k": within.wins, "n": within.n_pairs}
            row |= {"interval": within.interval}
            row["remark"] = f" {within.wins:g}/{within.n_pairs} pairs"
            rows["auroc_within_lineages"] = row
        for point in separation.points:
            row = _count(point.detected)
            if not point.estimable:
                row["note"] = "not estimable: too few clean models"
                row["cell"] = Cell("not estimable", f"needs {round(1 / point.target)} clean")
            rows[f"tpr_at_fpr_{point.target:g}"] = row
    for name, alarms in (
        ("false_alarms_untouched", v.untouched_alarms),
        ("false_alarms_finetuned", v.finetuned_alarms),
    ):
        rows[name] = _count(alarms) | {"remark": " too few models" if alarms.too_few else ""}
    rows["power"] = _count(v.detected)
    rows |= {f"power_at_dose_{dose}": _count(rate) for dose, rate in v.power.items()}
    rows |= {f"flagged_{kind.replace(' ', '_')}": _count(rate) for kind, rate in v.by_kind.items()}
    rows["steps_in_order"] = _count(Rate(k=v.trend.in_order, n=v.trend.n_steps))
    correlation, p = v.trend.correlation, v.trend.p_value
    rows["rank_correlation"] = {
        "value": None if math.isnan(correlation) else correlation,
        "p_value": p,
        "cell": None if p is None else Cell(formats.signed(correlation), f"p {formats.p_value(p)}"),
    }
    external = v.external_alarms
    levels = DETECTORS[v.detector].about.levels if v.detector in DETECTORS else {}
    flagged = "; ".join(external.flagged)
    rows["external_models"] = _count(Rate(k=len(external.flagged), n=external.n)) | {
        "note": f"false alarm suspected: {flagged}" if flagged else "",
        "cell": _external(external, levels.get(v.rule, external.alpha)),
    }
    return rows


def _count(rate: Rate) -> dict[str, Any]:
    row: dict[str, Any] = {"value": rate.value, "k": rate.k, "n": rate.n}
    row |= {"n_lineages": rate.n_clusters or None, "interval": rate.interval}
    if isinstance(rate, ClusteredRate) and rate.n:
        row |= {"design_effect": rate.design_effect, "pooled": rate.pooled}
    return row


def _quantity(name: str) -> Callable[[Validation], Content]:
    def content(v: Validation) -> Content:
        if (row := _quantities(v).get(name)) is None:
            return None
        if "cell" in row:
            cell: Content = row["cell"]
            return cell
        return _probability_cell(row) if name.startswith("auroc") else _count_cell(row)

    return content


_RULE_COLUMNS: tuple[tuple[Column | str, Callable[[Validation], Content]], ...] = (
    ("Power", _quantity("power")),
    ("False alarms: clean as released", _quantity("false_alarms_untouched")),
    ("False alarms: clean fine-tunes", _quantity("false_alarms_finetuned")),
    ("AUROC", _quantity("auroc")),
    ("AUROC within lineages", _quantity("auroc_within_lineages")),
    ("TPR at 0 false alarms", _quantity("tpr_at_fpr_0")),
    ("TPR at FPR 1 %", _quantity("tpr_at_fpr_0.01")),
    ("TPR at FPR 5 %", _quantity("tpr_at_fpr_0.05")),
    ("Steps in order", _quantity("steps_in_order")),
    ("Rank correlation", _quantity("rank_correlation")),
    ("External models", _quantity("external_models")),
)


def requirements_rows(requirements: Sequence[Requirements]) -> list[dict[str, Any]]:
    """Return one row per detector and rule."""
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
    return rows
