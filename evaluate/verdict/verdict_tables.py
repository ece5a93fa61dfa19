"""The tables of a verdict: gap, other detectors, pairs needed, and the verdicts of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flipbench.core.records import JsonDict, Score
from flipbench.reporting import formats
from flipbench.reporting.pages import texts_in
from flipbench.reporting.tables import Cell, Column, Table, build_table, text_column

from ..protocol.grid import GridModel
from ..report.score_tables import count_cell
from ..report.titles import TEST, VERDICTS, as_header, by_family, rule_title, title
from .decision import DECIDES
from .other_detectors import measured
from .sensitivity import MOST_PAIRS, PairsNeeded, counts_of
from .verdict import ModelVerdict, attraction_of, scores_by_rule

CAPTIONS: dict[str, str] = texts_in(Path(__file__).with_name("captions.yaml"))


def gap_table(finding: ModelVerdict) -> Table:
    """Return the gap of the model and of each reference, with counts, interval and p."""
    references = [
        (name, score)
        for name, scores in finding.references.items()
        for score in scores_by_rule(scores, TEST)[:1]
    ]

    def gap(score: Score) -> Cell:
        if score.statistic is None:
            return Cell(formats.NOTHING)
        return Cell(formats.points(score.statistic), formats.interval(score.interval))

    def unreadable(score: Score) -> str:
        return ", ".join(formats.NOTHING if k is None else str(k) for k in score.unparsed.values())

    return build_table(
        "gap",
        CAPTIONS["gap"].format(alpha=finding.gap.alpha),
        "Model",
        (
            ("Δ, pp", gap),
            ("p", lambda score: formats.p_value(score.p_value)),
            ("Original, %", lambda score: count_cell(score.accuracies["original"])),
            ("Perturbed, %", lambda score: count_cell(score.accuracies["perturbed"])),
            ("Fell", lambda score: counts_of(score).b),
            ("Rose", lambda score: counts_of(score).c),
            ("No option named", unreadable),
        ),
        {"The model": [(finding.model, finding.gap)], "Clean references": references},
    )


def readings_table(finding: ModelVerdict) -> Table | None:
    """Return old-answer attraction and the confidence gap by rule, or None if neither was read."""
    groups: dict[str, list[tuple[str, Score]]] = {}
    for score in finding.readings:
        against = score.reference.model if score.reference else ""
        name = f"against {against}" if against else rule_title(score.detector, score.rule)
        groups.setdefault(as_header(title(score.detector)), []).append((as_header(name), score))

    def expected(score: Score) -> str:
        if mean := score.means.get("expected by chance"):
            return f"{(mean.mean or 0.0) * mean.n:.1f}"
        counts = score.reference.accuracies.values() if score.reference is not None else ()
        return next((f"{count.k:,}/{count.n:,}" for count in counts), "")

    columns = (
        (text_column("Measured"), measured),
        (Column("Expected"), expected),
        (Column("p"), lambda score: formats.p_value(score.p_value)),
        (text_column("Result"), lambda score: VERDICTS[score.verdict]),
    )
    if not groups:
        return None
    return build_table("readings", CAPTIONS["readings"], "Reading", columns, groups)


def other_detectors_table(finding: ModelVerdict) -> Table | None:
    """Return the other detectors' results, or None if there are none."""
    if not finding.other_detectors:
        return None
    groups: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for verdict, name in VERDICTS.items():
        results = [result for result in finding.other_detectors if result.verdict == verdict]
        rows: list[tuple[str, tuple[str, ...]]] = []
        not_run: dict[str, list[str]] = {}
        for result in results:
            remarks = " ".join(result.remarks)
            if result.score is None:
                not_run.setdefault(remarks, []).append(result.title)
                continue
            p_values = map(formats.p_value, (result.score.p_value, result.p_adjusted))
            rows.append((result.title, (result.measured, *p_values, remarks)))
        for remarks, names in not_run.items():  # one row for the same reason
            several = len(names) > 1
            header = f"{len(names)} others" if several else names[0]
            rows.append((header, (", ".join(names) if several else "", "", "", remarks)))
        groups[f"{as_header(name)}: {len(results)}"] = rows
    columns = (
        (text_column("Measured"), lambda texts: texts[0]),
        (Column("p"), lambda texts: texts[1]),
        (Column("p, Holm"), lambda texts: texts[2]),
        (text_column("Remarks"), lambda texts: texts[3]),
    )
    return build_table("others", CAPTIONS["others"], "Detector", columns, groups)


def power_table(finding: ModelVerdict) -> Table | None:
    """Return how many pairs the test needs, or None if the verdict is not based on it."""
    sensitivity, n, counts = finding.sensitivity, finding.gap.n, counts_of(finding.gap)
    if not sensitivity.pairs:
        return None

    def pairs(n_needed: int | None) -> str:
        return f"> {MOST_PAIRS:,}" if n_needed is None else f"{n_needed:,}"

    def enough(row: PairsNeeded) -> str:
        if row.for_95 is not None and row.for_95 <= n:
            return "enough"
        return "often enough" if row.for_80 is not None and row.for_80 <= n else "too few"

    caption = CAPTIONS["power"].format(changed=counts.b + counts.c, n=n)
    return build_table(
        "power",
        f"{caption} {CAPTIONS['power of shared images']}" if sensitivity.is_shared else caption,
        "True gap",
        (
            ("Detected 4 times in 5", lambda row: pairs(row.for_80)),
            ("19 times in 20", lambda row: pairs(row.for_95)),
            (text_column(f"With {n:,} pairs"), enough),
        ),
        {
            "Pairs needed": [
                (f"{formats.points(row.gap)} points{', as measured' if row.measured else ''}", row)
                for row in sensitivity.pairs
            ]
        },
    )


def verdicts_table(grid: Sequence[GridModel], verdicts: Mapping[str, ModelVerdict]) -> Table:
    """Return the verdict on each model of a report, by its fingerprint, and what decided it."""
    return build_table(
        "verdicts",
        CAPTIONS["verdicts"],
        "Model",
        (
            (text_column("Verdict"), lambda finding: VERDICTS[finding.verdict]),
            (text_column("Decided by"), lambda finding: DECIDES[finding.decision.decides]),
            ("p", lambda finding: formats.p_value(finding.decision.p_value)),
            ("From memory, %", lambda finding: memory_cell(attraction_of(finding.scores))),
            (text_column("Reason"), lambda finding: finding.decision.reason),
        ),
        by_family(grid, verdicts),
    )


def memory_cell(attraction: Score | None) -> Cell:
    """Return the share answered from memory, with its interval; a dash if it was not read."""
    memory = attraction.memory if attraction is not None else None
    if memory is None or memory.share is None:
        return Cell(formats.NOTHING)
    between = formats.interval(memory.interval, formats.percent)
    return Cell(formats.percent(memory.share), between)


def memory_of(attraction: Score | None) -> JsonDict | None:
    """Return the same for JSON."""
    memory = attraction.memory if attraction is not None else None
    return None if memory is None else memory.model_dump(mode="json")
