"""The figure of an overlap: distances to the nearest corpus picture, and the threshold."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from flipbench.reporting import formats

from .overlap import BENCHMARK, CORPUS
from .result import CorpusOverlap

_N_BINS = 60
_COLORS = ("#0072b2", "#d55e00", "#00805f", "#a8508a", "#8a6d00", "#3d3d3d")  # Okabe and Ito
_DASHES = ("-", "-", "--", "-.", ":", (0, (5, 1)))
_RC: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "flipbench",
}


def draw_distances(result: CorpusOverlap) -> Figure:
    """Return the histogram of distances of the benchmark, the corpus' own sample and the controls.

    Bars are shares of each group's pictures, since the groups differ in size. The vertical line is
    the threshold; the legend has the number of pictures and how many are within it.
    """
    names = [BENCHMARK, CORPUS, *(n for n in result.distances if n not in (BENCHMARK, CORPUS))]
    distances = {name: np.array(result.distances[name]) for name in names}
    tau = result.calibration.threshold
    edges = np.linspace(0, max(part.max() for part in distances.values()) or 1, _N_BINS + 1)
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(6.4, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for at, (name, part) in enumerate(distances.items()):
            label = f"{name} ({int((part <= tau).sum()):,} of {len(part):,} within)"
            axes.hist(
                part,
                edges.tolist(),
                weights=np.full(len(part), 100 / len(part)),
                histtype="stepfilled" if at == 0 else "step",
                alpha=0.35 if at == 0 else None,
                color=_COLORS[at % len(_COLORS)],
                linestyle=_DASHES[at % len(_DASHES)],
                linewidth=1.4,
                label=label,
            )
        axes.axvline(tau, color="#1b1f24", linewidth=1)
        axes.annotate(
            f" threshold {formats.number(tau)}",
            (tau, 1),
            xycoords=("data", "axes fraction"),
            va="top",
            fontsize=8,
        )
        axes.set_xlabel(f"distance to the nearest corpus picture ({result.encoder})")
        axes.set_ylabel("pictures (%)")
        axes.legend(fontsize=8)
    return figure


def describe_distances(result: CorpusOverlap) -> str:
    """Return the figure's alt text."""
    tau = result.calibration.threshold
    parts = (
        f"{name}: {sum(d <= tau for d in distances)} of {len(distances)} within, median"
        f" {formats.number(float(np.median(distances)))}"
        for name, distances in result.distances.items()
    )
    return (
        "Histogram of distances to the nearest corpus picture, threshold"
        f" {formats.number(tau)}. {'; '.join(parts)}."
    )
