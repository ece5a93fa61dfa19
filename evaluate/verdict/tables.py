"""The tables of a verdict, free of any file format: gap, other detectors, pairs needed."""

from __future__ import annotations

from flipbench.core.records import Score
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table

from ..report.tables import GAP, TEST, VERDICTS, accuracies, as_header
from .changes import MOST_PAIRS, PairsNeeded, counts_of
from .other_detectors import OtherDetectorResult
from .verdict import DetectionVerdict, Evidence


def gap_table(finding: DetectionVerdict, evidence: Evidence) -> Table:
    """Return the gap of the model and of each reference, with counts, interval and p."""
    groups: list[tuple[str, tuple[Row, ...]]] = [
        ("The model", (_gap_row(finding.model, finding.gap),))
    ]
    own = {
        name: next((s for s in scores if (s.detector, s.rule) == (GAP, TEST)), None)
        for name, scores in evidence.references.items()
    }
    rows = tuple(_gap_row(name, score) for name, score in own.items() if score is not None)
    groups += [("Clean references", rows)] if rows else []
    return Table(
        "gap",
        "Right answers on the originals and on their twins: the same question and options, with"
        " the picture redrawn so that another option is right. Δ = twins − originals, with its"
        " paired 95 % interval; p: exact one-sided McNemar test (level"
        f" {finding.gap.alpha:g}); fell: right on the original and wrong on the twin;"
        " rose: the reverse.",
        "Model",
        tuple(map(Column, ("Δ, pp", "p", "Originals, %", "Twins, %", "Fell", "Rose"))),
        tuple(groups),
    )


def _gap_row(name: str, score: Score) -> Row:
    cells = [
        Cell(formats.percent(k / n), f"{k}/{n}") if n else Cell(formats.NOTHING)
        for k, n in accuracies(score).values()
    ]
    gap = formats.NOTHING if score.statistic is None else formats.points(score.statistic)
    between = formats.interval(score.interval)
    p = formats.NOTHING if score.p_value is None else formats.p_value(score.p_value)
    counts = counts_of(score)
    moved = [Cell(str(n)) for n in (counts.b, counts.c)]
    return Row(name, (Cell(gap, between), Cell(p), *cells, *moved))


def other_detectors_table(finding: DetectionVerdict) -> Table | None:
    """Return what the other detectors say, or None where there are none."""
    if not finding.opinions:
        return None
    groups = []
    for verdict, name in VERDICTS.items():
        mine = [one for one in finding.opinions if one.verdict == verdict]
        rows = [_result_row(one) for one in mine if one.score is not None]
        silent: dict[str, list[str]] = {}
        for one in mine:
            if one.score is None:
                silent.setdefault(" ".join(one.remarks), []).append(one.title)
        rows += [_silent_row(names, why) for why, names in silent.items()]
        groups += [(f"{as_header(name)}: {len(mine)}", tuple(rows))] if rows else []
    return Table(
        "says",
        "Each detector by its own default rule. p is that rule's own; Holm corrects it for all"
        " detectors of this table. None of them has a vote in the verdict.",
        "Detector",
        (
            Column("Measured", numeric=False),
            Column("p"),
            Column("p, Holm"),
            Column("Remarks", numeric=False),
        ),
        tuple(groups),
    )


def _result_row(one: OtherDetectorResult) -> Row:
    assert one.score is not None
    cells = (
        Cell(one.measured or formats.NOTHING),
        Cell(_p(one.score.p_value)),
        Cell(_p(one.p_adjusted)),
        Cell(" ".join(one.remarks) or formats.NOTHING),
    )
    return Row(one.title, cells)


def _silent_row(names: list[str], why: str) -> Row:
    """Return one row for all detectors that were not asked, for the same reason."""
    nothing = Cell(formats.NOTHING)
    if len(names) == 1:
        return Row(names[0], (nothing, nothing, nothing, Cell(why)))
    return Row(f"{len(names)} others", (Cell(", ".join(names)), nothing, nothing, Cell(why)))


def power_table(finding: DetectionVerdict) -> Table | None:
    """Return how many pairs the test needs, or None where the verdict does not go by it."""
    if not finding.changes.pairs:
        return None
    n, counts = finding.gap.n, counts_of(finding.gap)
    rows = tuple(
        Row(
            f"{formats.points(row.gap)} points" + (", as measured" if row.measured else ""),
            (_pairs(row.for_80), _pairs(row.for_95), Cell(_enough(row, n))),
        )
        for row in finding.changes.pairs
    )
    return Table(
        "power",
        "Pairs that the exact one-sided McNemar test needs to find a true gap, if as many answers"
        f" change from original to twin as did here ({counts.b + counts.c}/{n}; at least as many as"
        " the gap takes).",
        "True gap",
        (Column("Found 4 in 5 times"), Column("19 in 20"), Column(f"With {n:,} pairs", "", False)),
        (("Pairs needed", rows),),
    )


def _pairs(needed: int | None) -> Cell:
    return Cell(f"> {MOST_PAIRS:,}" if needed is None else f"{needed:,}")


def _enough(row: PairsNeeded, n: int) -> str:
    if row.for_95 is not None and row.for_95 <= n:
        return "enough"
    return "often enough" if row.for_80 is not None and row.for_80 <= n else "too few"


def _p(value: float | None) -> str:
    return formats.NOTHING if value is None else formats.p_value(value)
