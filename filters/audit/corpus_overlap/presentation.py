"""The overlap with a corpus in tables and a figure, by one or several encoders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure as Canvas

from flipbench.core.rates import Rate
from flipbench.reporting import figures, formats
from flipbench.reporting.figures import LIGHT, Figure, FigurePanel
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell

from .flagged import LABELS
from .result import BENCHMARK, CORPUS, CorpusOverlap

VERDICTS = {
    "more": "more near neighbours than expected",
    "not_more": "no more near neighbours than expected",
    "withheld": "withheld: controls are flagged as well",
}
_TESTED = (
    "Pictures flagged: unique pictures within the threshold, with the 95 % Clopper-Pearson"
    " interval. p: one-sided, allowing for the calibration sample; p (binomial): with alpha as the"
    " exact rate, as in the paper. Items share pictures: counted, not tested."
)
_MAX_PAIRS = 50
_N_BINS = 60
_DASHES = ("-", "-", "--", "-.", ":")


def overlap_tables(results: Sequence[CorpusOverlap]) -> list[Table]:
    """Return the tables of one benchmark against one corpus, by one or several encoders.

    Keys: ``corpus_overlap``, ``corpus_calibration``, ``corpus_sweep``, and, where there are any,
    ``corpus_controls``, ``corpus_clean``, ``corpus_hubs``, ``corpus_pairs``, ``corpus_labels``.
    """
    tables = (
        _overlap(results),
        _calibration(results),
        _sweep(results),
        _controls(results),
        _clean(results),
        _hubs(results),
        _pairs(results),
        _labels(results),
    )
    return [table for table in tables if table.rows]


def distance_figure(results: Sequence[CorpusOverlap], folder: Path) -> Figure:
    """Write the histograms of nearest distances as PNG and SVG and return them, one per encoder.

    Bars are shares of each group's pictures, since the groups differ in size: the benchmark, the
    corpus' own sample, the controls. The vertical line is the threshold.
    """
    panels = []
    for number, one in enumerate(results, 1):
        canvas = _canvas(one)
        name = "corpus_distances" if len(results) == 1 else f"corpus_distances_{number}"
        svg = figures.save(canvas, folder / name)
        within = ", ".join(
            f"{name}: {k:,} of {n:,} within, median {formats.number(median)}"
            for name, k, n, median in _groups(one)
        )
        alt = f"Threshold {formats.number(one.calibration.threshold)}. {within}."
        panels.append(FigurePanel(svg, f"{one.encoder}. {alt}"))
    caption = (
        "Distances of pictures to their nearest corpus pictures, as shares of each group. Corpus:"
        " a sample of the corpus' own pictures, each compared with the others."
    )
    return Figure("corpus_distances", "How near the corpus is", caption, tuple(panels))


def _groups(one: CorpusOverlap) -> list[tuple[str, int, int, float]]:
    """Return (name, pictures within the threshold, pictures, median) of each group."""
    tau = one.calibration.threshold
    return [
        (name, sum(d <= tau for d in part), len(part), float(np.median(part)))
        for name, part in _ordered(one)
    ]


def _ordered(one: CorpusOverlap) -> list[tuple[str, tuple[float, ...]]]:
    first = [(name, one.distances[name]) for name in (BENCHMARK, CORPUS)]
    return [*first, *(pair for pair in one.distances.items() if pair not in first)]


def _canvas(one: CorpusOverlap) -> Canvas:
    tau = one.calibration.threshold
    farthest = max(max(part) for part in one.distances.values())
    edges = np.linspace(0, farthest or 1, _N_BINS + 1).tolist()
    with figures.settings():
        canvas = Canvas(figsize=(6.4, 3.4), layout="constrained")
        axes = canvas.add_subplot()
        for at, ((name, part), (_, k, n, _)) in enumerate(
            zip(_ordered(one), _groups(one), strict=True)
        ):
            axes.hist(
                part,
                edges,
                weights=np.full(n, 100 / n),
                histtype="stepfilled" if at == 0 else "step",
                alpha=0.35 if at == 0 else None,
                color=LIGHT.lines[at % len(LIGHT.lines)],
                linestyle=_DASHES[at % len(_DASHES)],
                linewidth=1.4,
                label=f"{name} ({k:,} of {n:,} within)",
            )
        axes.axvline(tau, color=LIGHT.ink, linewidth=1)
        axes.annotate(
            f" threshold {formats.number(tau)}",
            (tau, 1),
            xycoords=("data", "axes fraction"),
            va="top",
            fontsize=8,
        )
        axes.set_xlabel("distance to the nearest corpus picture")
        axes.set_ylabel("pictures (%)")
        axes.set_title(one.encoder)
        axes.legend(fontsize=8)
    return canvas


def _overlap(results: Sequence[CorpusOverlap]) -> Table:
    return Table(
        key="corpus_overlap",
        caption=f"Pictures near to a corpus picture. {_TESTED} Without hubs: if corpus pictures"
        " that are the nearest of several flagged pictures were not in the corpus. Near is not the"
        " same picture, and no model was asked.",
        stub="Encoder",
        columns=(
            *map(
                Column,
                (
                    "Threshold",
                    "Pictures flagged (%)",
                    "p",
                    "p (binomial)",
                    "Without hubs (%)",
                    "Same files",
                    "Items flagged (not tested)",
                ),
            ),
            Column("Result", numeric=False),
        ),
        groups=(
            (
                "",
                tuple(
                    Row(
                        one.encoder,
                        (
                            _number(one.calibration.threshold),
                            rate_cell(one.flagged),
                            Cell(formats.p_value(one.p_value)),
                            Cell(formats.p_value(one.p_binomial)),
                            rate_cell(one.without_hubs),
                            Cell(f"{one.n_same_files}/{one.flagged.n}"),
                            _items(one.n_items_flagged, one.n_items),
                            Cell(VERDICTS[one.verdict]),
                        ),
                    )
                    for one in results
                ),
            ),
        ),
    )


def _calibration(results: Sequence[CorpusOverlap]) -> Table:
    def cells(one: CorpusOverlap) -> tuple[Cell, ...]:
        by = one.calibration
        types = (f"{kind} {formats.percent(share)} %" for kind, share in by.shares.items())
        return (
            Cell(f"{by.n:,} of {one.n_corpus:,}"),
            Cell(", ".join(types) or "random sample"),
            _number(by.minimum),
            _number(by.median),
            Cell(f"{by.n_exact}/{by.n:,}"),
            _number(by.threshold),
            _number(by.threshold_without_exact),
        )

    return Table(
        key="corpus_calibration",
        caption="Distances from corpus pictures to their nearest others. Exact duplicates within"
        " the corpus pull the threshold down.",
        stub="Encoder",
        columns=(
            Column("Pictures"),
            Column("Types", numeric=False),
            *map(Column, ("Minimum", "Median", "Exact duplicates", "Threshold")),
            Column("Threshold without duplicates"),
        ),
        groups=(("", tuple(Row(one.encoder, cells(one)) for one in results)),),
    )


def _sweep(results: Sequence[CorpusOverlap]) -> Table:
    headers = ("Threshold", "Pictures flagged (%)", "p", "p (binomial)", "Items (not tested)")
    return _grouped(
        "corpus_sweep",
        f"Pictures flagged at other quantiles of the corpus' own distances. {_TESTED}",
        "alpha",
        tuple(map(Column, headers)),
        results,
        lambda one: (
            Row(
                f"{100 * row.alpha:g} %",
                (
                    _number(row.threshold),
                    rate_cell(row.flagged),
                    Cell(formats.p_value(row.p_value)),
                    Cell(formats.p_value(row.p_binomial)),
                    _items(row.n_items, one.n_items),
                ),
            )
            for row in one.sweep
        ),
    )


def _controls(results: Sequence[CorpusOverlap]) -> Table:
    return _grouped(
        "corpus_controls",
        "Pictures that cannot be in the corpus, at the same threshold.",
        "Control",
        tuple(map(Column, ("Pictures flagged (%)", "Least distance", "p"))),
        results,
        lambda one: (
            Row(
                control.name,
                (
                    rate_cell(control.flagged),
                    _number(control.minimum),
                    Cell(formats.p_value(control.p_value)),
                ),
            )
            for control in one.controls
        ),
    )


def _clean(results: Sequence[CorpusOverlap]) -> Table:
    return _grouped(
        "corpus_clean",
        "Conformal p-values against a benchmark of the same domain that cannot be in the corpus."
        " Primary: p of the number of pictures with p ≤ alpha. Mann-Whitney: whether distances are"
        " smaller on the whole, as a difference in domain makes them. Significant: after"
        " Benjamini-Hochberg.",
        "Clean benchmark",
        tuple(
            map(Column, ("Pictures", "p ≤ alpha (%)", "p", "p (Mann-Whitney)", "Significant (%)"))
        ),
        results,
        lambda one: (
            Row(
                clean.name,
                (
                    Cell(f"{clean.n:,}"),
                    rate_cell(clean.flagged),
                    Cell(formats.p_value(clean.p_value)),
                    Cell(formats.p_value(clean.mann_whitney_p)),
                    rate_cell(Rate.exact(clean.n_significant, one.flagged.n)),
                ),
            )
            for clean in (one.clean,)
            if clean is not None
        ),
    )


def _hubs(results: Sequence[CorpusOverlap]) -> Table:
    return _grouped(
        "corpus_hubs",
        "Corpus pictures that are the nearest of several flagged pictures.",
        "Corpus picture",
        (Column("Flagged pictures"),),
        results,
        lambda one: (Row(hub.key, (Cell(f"{hub.n_flagged}/{one.flagged.k}"),)) for hub in one.hubs),
    )


def _pairs(results: Sequence[CorpusOverlap]) -> Table:
    return _grouped(
        "corpus_pairs",
        f"Flagged pictures and their nearest corpus pictures, the nearest {_MAX_PAIRS} of each"
        " encoder.",
        "Picture",
        (
            Column("Corpus picture", numeric=False),
            Column("Distance"),
            Column("Type", numeric=False),
            Column("Items"),
            Column("q"),
        ),
        results,
        lambda one: (
            Row(
                pair.key,
                (
                    Cell(pair.corpus_key),
                    _number(pair.distance),
                    Cell(pair.type or formats.NOTHING),
                    Cell(formats.NOTHING if pair.n_items is None else str(pair.n_items)),
                    Cell(formats.p_value(pair.q_value)),
                ),
            )
            for pair in one.pairs[:_MAX_PAIRS]
        ),
    )


def _labels(results: Sequence[CorpusOverlap]) -> Table:
    return _grouped(
        "corpus_labels",
        "What people see in the flagged pairs that anyone labelled: the label of more than half"
        " of a pair's raters. Without such a majority it is ambiguous.",
        "Label",
        (Column("Pairs (%)"),),
        results,
        lambda one: (
            Row(LABELS[label], (rate_cell(Rate.exact(n, sum(one.adjudication.values()))),))
            for label, n in one.adjudication.items()
        ),
    )


def _grouped(
    key: str,
    caption: str,
    stub: str,
    columns: tuple[Column, ...],
    results: Sequence[CorpusOverlap],
    rows: Callable[[CorpusOverlap], Iterable[Row]],
) -> Table:
    """Return a table with the rows of each encoder in a group."""
    groups = [(one.encoder, tuple(rows(one))) for one in results]
    return Table(key, caption, stub, columns, tuple(group for group in groups if group[1]))


def _items(k: int | None, n: int | None) -> Cell:
    return Cell(formats.NOTHING if k is None or n is None else f"{k:,}/{n:,}")


def _number(distance: float | None) -> Cell:
    return Cell(formats.NOTHING if distance is None else formats.number(distance))
