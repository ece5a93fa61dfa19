"""The overlap with a corpus in tables and a figure, by one or several encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas

from flipbench.core.rates import Rate
from flipbench.reporting import figures, formats
from flipbench.reporting.figures import LIGHT, Figure, FigurePanel
from flipbench.reporting.tables import Column, Content, Table, build_table, text_column

from .flagged import LABELS
from .neighbours import Array
from .overlap import BENCHMARK, CORPUS, CorpusOverlap

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
    by_encoder = {"": [(overlap.encoder, overlap) for overlap in results]}
    tables = (
        build_table(
            "corpus_overlap",
            f"Pictures near to a corpus picture. {_TESTED} Without hubs: if corpus pictures"
            " that are the nearest of several flagged pictures were not in the corpus. Near is not"
            " the same picture, and no model was asked.",
            "Encoder",
            [
                ("Threshold", lambda overlap: _number(overlap.calibration.threshold)),
                *_TESTS,
                ("Without hubs (%)", lambda overlap: overlap.without_hubs),
                ("Same files", lambda overlap: f"{overlap.n_same_files}/{overlap.flagged.n}"),
                ("Items flagged (not tested)", lambda o: _of(o.n_items_flagged, o.n_items)),
                (text_column("Result"), lambda overlap: VERDICTS[overlap.verdict]),
            ],
            by_encoder,
        ),
        build_table(
            "corpus_calibration",
            "Distances from corpus pictures to their nearest others. Exact duplicates within"
            " the corpus pull the threshold down.",
            "Encoder",
            [
                ("Pictures", lambda o: f"{o.calibration.n:,} of {o.n_corpus:,}"),
                (text_column("Types"), _types),
                ("Minimum", lambda o: _number(o.calibration.minimum)),
                ("Median", lambda o: _number(o.calibration.median)),
                ("Exact duplicates", lambda o: f"{o.calibration.n_exact}/{o.calibration.n:,}"),
                ("Threshold", lambda o: _number(o.calibration.threshold)),
                (
                    "Threshold without duplicates",
                    lambda o: _number(o.calibration.threshold_without_exact),
                ),
            ],
            by_encoder,
        ),
        build_table(
            "corpus_sweep",
            f"Pictures flagged at other quantiles of the corpus' own distances. {_TESTED}",
            "alpha",
            [
                ("Threshold", lambda row: _number(row.threshold)),
                *_TESTS,
                ("Items (not tested)", lambda row: _of(row.n_items, row.n_all_items)),
            ],
            {
                o.encoder: [
                    (f"{100 * row.alpha:g} %", SimpleNamespace(**dict(row), n_all_items=o.n_items))
                    for row in o.sweep
                ]
                for o in results
            },
        ),
        build_table(
            "corpus_controls",
            "Pictures that cannot be in the corpus, at the same threshold.",
            "Control",
            [
                ("Pictures flagged (%)", lambda control: control.flagged),
                ("Least distance", lambda control: _number(control.minimum)),
                ("p", lambda control: formats.p_value(control.p_value)),
            ],
            {o.encoder: [(control.name, control) for control in o.controls] for o in results},
        ),
        build_table(
            "corpus_clean",
            "Conformal p-values against a benchmark of the same domain that cannot be in the"
            " corpus. Primary: p of the number of pictures with p ≤ alpha. Mann-Whitney: whether"
            " distances are smaller on the whole, as a difference in domain makes them."
            " Significant: after Benjamini-Hochberg.",
            "Clean benchmark",
            [
                ("Pictures", lambda clean: f"{clean.n:,}"),
                ("p ≤ alpha (%)", lambda clean: clean.flagged),
                ("p", lambda clean: formats.p_value(clean.p_value)),
                ("p (Mann-Whitney)", lambda clean: formats.p_value(clean.mann_whitney_p)),
                ("Significant (%)", lambda c: Rate.exact(c.n_significant, c.flagged.n)),
            ],
            {o.encoder: [(o.clean.name, o.clean)] if o.clean else [] for o in results},
        ),
        build_table(
            "corpus_hubs",
            "Corpus pictures that are the nearest of several flagged pictures.",
            "Corpus picture",
            [("Flagged pictures", lambda share: share)],
            {
                o.encoder: [(hub.key, f"{hub.n_flagged}/{o.flagged.k}") for hub in o.hubs]
                for o in results
            },
        ),
        build_table(
            "corpus_pairs",
            f"Flagged pictures and their nearest corpus pictures, the nearest {_MAX_PAIRS} of each"
            " encoder.",
            "Picture",
            [
                (text_column("Corpus picture"), lambda pair: pair.corpus_key),
                ("Distance", lambda pair: _number(pair.distance)),
                (text_column("Type"), lambda pair: pair.type),
                ("Items", lambda pair: pair.n_items),
                ("q", lambda pair: formats.p_value(pair.q_value)),
            ],
            {o.encoder: [(pair.key, pair) for pair in o.pairs[:_MAX_PAIRS]] for o in results},
        ),
        build_table(
            "corpus_labels",
            "What people see in the flagged pairs that anyone labelled: the label of more than half"
            " of a pair's raters. Without such a majority it is ambiguous.",
            "Label",
            [("Pairs (%)", lambda share: share)],
            {
                o.encoder: [
                    (LABELS[label], Rate.exact(n, sum(o.adjudication.values())))
                    for label, n in o.adjudication.items()
                ]
                for o in results
            },
        ),
    )
    return [table for table in tables if table.rows]


_TESTS: list[tuple[Column | str, Callable[[Any], Content]]] = [
    ("Pictures flagged (%)", lambda row: row.flagged),
    ("p", lambda row: formats.p_value(row.p_value)),
    ("p (binomial)", lambda row: formats.p_value(row.p_binomial)),
]


def _types(overlap: CorpusOverlap) -> str:
    shares = overlap.calibration.shares.items()
    text = ", ".join(f"{kind} {formats.percent(share)} %" for kind, share in shares)
    return text or "random sample"


def _of(k: int | None, n: int | None) -> str | None:
    return None if k is None or n is None else f"{k:,}/{n:,}"


def _number(distance: float | None) -> str | None:
    return None if distance is None else formats.number(distance)


def distance_figure(results: Sequence[CorpusOverlap], folder: Path) -> Figure:
    """Write the histograms of nearest distances as PNG and SVG and return them, one per encoder.

    Bars are shares of each group's pictures, since the groups differ in size: the benchmark, the
    corpus' own sample, the controls. The vertical line is the threshold.
    """
    panels = []
    for number, overlap in enumerate(results, 1):
        tau = overlap.calibration.threshold
        names = dict.fromkeys((BENCHMARK, CORPUS, *overlap.distances))
        groups = {name: np.array(overlap.distances[name]) for name in names}
        n_within = {
            name: f"{int((distances <= tau).sum()):,} of {len(distances):,} within"
            for name, distances in groups.items()
        }
        name = "corpus_distances" if len(results) == 1 else f"corpus_distances_{number}"
        svg = figures.save(_canvas(overlap, groups, n_within), folder / name)
        medians = ", ".join(
            f"{name}: {n_within[name]}, median {formats.number(float(np.median(distances)))}"
            for name, distances in groups.items()
        )
        alt = f"Threshold {formats.number(tau)}. {medians}."
        panels.append(FigurePanel(svg, f"{overlap.encoder}. {alt}"))
    caption = (
        "Distances of pictures to their nearest corpus pictures, as shares of each group. Corpus:"
        " a sample of the corpus' own pictures, each compared with the others."
    )
    return Figure("corpus_distances", "How near the corpus is", caption, tuple(panels))


def _canvas(
    overlap: CorpusOverlap, groups: Mapping[str, Array], n_within: Mapping[str, str]
) -> Canvas:
    tau = overlap.calibration.threshold
    farthest = max(float(distances.max()) for distances in groups.values())
    edges = np.linspace(0, farthest or 1, _N_BINS + 1).tolist()
    with figures.settings():
        canvas = Canvas(figsize=(6.4, 3.4), layout="constrained")
        axes = canvas.add_subplot()
        for number, (name, distances) in enumerate(groups.items()):
            axes.hist(
                distances,
                edges,
                weights=np.full(len(distances), 100 / len(distances)),
                histtype="step" if number else "stepfilled",
                alpha=None if number else 0.35,
                color=LIGHT.lines[number % len(LIGHT.lines)],
                linestyle=_DASHES[number % len(_DASHES)],
                linewidth=1.4,
                label=f"{name} ({n_within[name]})",
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
        axes.set_title(overlap.encoder)
        axes.legend(fontsize=8)
    return canvas
