"""The tables of a verdict, independent of file format: gap, other detectors, pairs needed."""

from __future__ import annotations

from flipbench.core.records import JsonDict, Score
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table

from ..report.score_tables import count_cell
from ..report.titles import TEST, VERDICTS, as_header, rule_title, title
from .basis import gap_scores
from .other_detectors import measured
from .sensitivity import MOST_PAIRS, PairsNeeded, counts_of
from .verdict import ModelVerdict

_GAP_COLUMNS = ("Δ, pp", "p", "Original, %", "Perturbed, %", "Fell", "Rose", "No option named")


def gap_table(finding: ModelVerdict) -> Table:
    """Return the gap of the model and of each reference, with counts, interval and p."""
    references = [
        _gap_row(name, score)
        for name, scores in finding.evidence.references.items()
        for score in gap_scores(scores, TEST)[:1]
    ]
    rows = {"The model": [_gap_row(finding.model, finding.gap)], "Clean references": references}
    return Table(
        "gap",
        "Right answers on the originals and on their perturbed versions: the same question and"
        " options, with an image for which another option is right. Δ = perturbed − original"
        " accuracy, with its paired 95 % interval. p: exact one-sided McNemar test (level"
        f" {finding.gap.alpha:g}). Fell: right on the original, wrong on the perturbed version."
        " Rose: the reverse. No option named: unreadable replies to originals and to perturbed"
        " versions, which count as wrong.",
        "Model",
        tuple(map(Column, _GAP_COLUMNS)),
        tuple((name, tuple(group)) for name, group in rows.items() if group),
    )


def _gap_row(name: str, score: Score) -> Row:
    gap = formats.NOTHING if score.statistic is None else formats.points(score.statistic)
    counts = counts_of(score)
    cells = (
        Cell(gap, formats.interval(score.interval)),
        Cell(formats.p_value(score.p_value)),
        *map(count_cell, score.accuracies.values()),
        Cell(str(counts.b)),
        Cell(str(counts.c)),
        Cell(", ".join(formats.NOTHING if k is None else str(k) for k in score.unparsed.values())),
    )
    return Row(name, cells)


def readings_table(finding: ModelVerdict) -> Table | None:
    """Return old-answer attraction and the confidence gap by rule, or None if neither was read."""
    groups: dict[str, list[Row]] = {}
    for score in finding.evidence.readings():
        against = score.reference.model if score.reference else ""
        name = f"against {against}" if against else rule_title(score.detector, score.rule)
        expected = formats.NOTHING
        if score.means and "expected by chance" in score.means:
            mean = score.means["expected by chance"]
            expected = f"{(mean.mean or 0.0) * mean.n:.1f}"
        elif score.reference is not None and score.reference.accuracies:
            count = next(iter(score.reference.accuracies.values()))
            expected = f"{count.k:,}/{count.n:,}"
        cells = (measured(score), expected, formats.p_value(score.p_value), VERDICTS[score.verdict])
        row = Row(as_header(name), tuple(map(Cell, cells)))
        groups.setdefault(as_header(title(score.detector)), []).append(row)
    if not groups:
        return None
    return Table(
        "readings",
        "The same replies, read otherwise; neither reading has a vote. Old-answer attraction: how"
        " many wrong answers to perturbed versions are the original's answer, expected by chance or"
        " as a clean model gives them on the items both answer wrongly. Confidence gap: the"
        " log-probability of the right letter, perturbed − original.",
        "Reading",
        (
            Column("Measured", "", False),
            Column("Expected"),
            Column("p"),
            Column("Result", "", False),
        ),
        tuple((name, tuple(rows)) for name, rows in groups.items()),
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


def other_detectors_table(finding: ModelVerdict) -> Table | None:
    """Return the other detectors' results, or None if there are none."""
    if not finding.other_detectors:
        return None
    groups = []
    for verdict, name in VERDICTS.items():
        results = [result for result in finding.other_detectors if result.verdict == verdict]
        rows = []
        not_run: dict[str, list[str]] = {}
        for result in results:
            remarks = " ".join(result.remarks)
            if result.score:
                texts = (
                    result.measured,
                    formats.p_value(result.score.p_value),
                    formats.p_value(result.p_adjusted),
                    remarks,
                )
                rows.append(Row(result.title, tuple(Cell(t or formats.NOTHING) for t in texts)))
            else:
                not_run.setdefault(remarks, []).append(result.title)
        rows += [_not_run_row(names, why) for why, names in not_run.items()]
        groups += [(f"{as_header(name)}: {len(results)}", tuple(rows))] if rows else []
    return Table(
        "others",
        "Each detector by its own default rule, with that rule's p-value, raw and Holm-corrected"
        " over all detectors of this table. None of them has a vote in the verdict.",
        "Detector",
        (
            Column("Measured", "", False),
            Column("p"),
            Column("p, Holm"),
            Column("Remarks", "", False),
        ),
        tuple(groups),
    )


def _not_run_row(names: list[str], why: str) -> Row:
    """Return one row for all detectors that were not run for the same reason."""
    nothing = Cell(formats.NOTHING)
    several = len(names) > 1
    listed = Cell(", ".join(names)) if several else nothing
    header = f"{len(names)} others" if several else names[0]
    return Row(header, (listed, nothing, nothing, Cell(why)))


def power_table(finding: ModelVerdict) -> Table | None:
    """Return how many pairs the test needs, or None if the verdict is not based on it."""
    if not finding.sensitivity.pairs:
        return None
    n, counts = finding.gap.n, counts_of(finding.gap)
    shared = ""
    if finding.sensitivity.is_rough:
        shared = (
            " The numbers are rough: the pairs share images, as many more would have to, and the"
            " test treats images as units."
        )
    rows = tuple(
        Row(
            f"{formats.points(row.gap)} points" + (", as measured" if row.measured else ""),
            (_pairs(row.for_80), _pairs(row.for_95), Cell(_enough(row, n))),
        )
        for row in finding.sensitivity.pairs
    )
    return Table(
        "power",
        "Pairs that the exact one-sided McNemar test needs to detect a true gap, if as many"
        f" answers change by chance as did here ({counts.b + counts.c}/{n}), and a memory makes the"
        f" gap's share fall besides.{shared}",
        "True gap",
        (
            Column("Detected 4 times in 5"),
            Column("19 times in 20"),
            Column(f"With {n:,} pairs", "", False),
        ),
        (("Pairs needed", rows),),
    )


def _pairs(needed: int | None) -> Cell:
    return Cell(f"> {MOST_PAIRS:,}" if needed is None else f"{needed:,}")


def _enough(row: PairsNeeded, n: int) -> str:
    if row.for_95 is not None and row.for_95 <= n:
        return "enough"
    return "often enough" if row.for_80 is not None and row.for_80 <= n else "too few"
