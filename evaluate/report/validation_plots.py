"""Draw the validation of detectors: ROC curves, verdicts by model, power by dose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from scipy.stats import rankdata

from flipbench.core.rates import Rate
from flipbench.core.records import Score
from flipbench.reporting.figures import LIGHT, draw_interval

from ..statistics.roc import Separation
from .plots import dose_axis

N_SHADES = 5
FIFTHS = (
    "least suspicious fifth of the models",
    "second fifth",
    "third fifth",
    "fourth fifth",
    "most suspicious fifth",
)
_SHADES = [matplotlib.colormaps["cividis"](x) for x in np.linspace(0.08, 1, N_SHADES)]
# Not the theme's colours: marks on shades look the same on a dark page.
_BLACK, _WHITE = "#010101", "#fefefe"
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
_MARKERS = "osD^vP"


@dataclass(frozen=True)
class HeatRow:
    """One rule: a verdict ("" without a score) and a suspicion in [0, 1] or NaN, shape (M,)."""

    name: str
    verdicts: tuple[str, ...]
    suspicion: tuple[float, ...]
    detector: str = ""
    rule: str = ""
    suspected: bool = False

    @property
    def fifths(self) -> list[int | None]:
        """The fifth of each suspicion, 0 least and 4 most suspicious; None for NaN."""
        last = N_SHADES - 1
        return [None if math.isnan(s) else min(int(s * N_SHADES), last) for s in self.suspicion]


def draw_roc(axes: Axes, curves: Sequence[tuple[str, Separation]]) -> None:
    """Draw up to six ROC curves; earlier ones are wider, so that equal ones stay visible."""
    axes.plot([0, 1], [0, 1], color=LIGHT.grid, linewidth=1, zorder=1)
    for at, (name, separation) in enumerate(curves):
        width = 1.4 + 0.8 * (len(curves) - 1 - at)
        axes.plot(
            separation.fpr,
            separation.tpr,
            linestyle=_DASHES[at % len(_DASHES)] if at else "-",
            color=LIGHT.lines[at % len(LIGHT.lines)],
            linewidth=width,
            solid_capstyle="butt",
            label=name,
            zorder=2 + at,
            clip_on=False,
        )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set(xlabel="clean models flagged (FPR)", ylabel="contaminated models flagged (TPR)")
    axes.grid(color=LIGHT.grid, linewidth=0.6)


def draw_power(axes: Axes, lines: Sequence[tuple[str, Mapping[int, Rate]]]) -> None:
    """Draw up to six rules: the share of models they flag at each dose, dose 0 = false alarms."""
    most = max((dose for _, line in lines for dose in line), default=1)
    for at, (name, line) in enumerate(lines):
        shift = 0.0 if most > 20 else 0.012 * most * (at - (len(lines) - 1) / 2)
        doses = [dose + shift for dose in line]
        color = LIGHT.lines[at % len(LIGHT.lines)]
        for x, rate in zip(doses, line.values(), strict=True):
            draw_interval(
                axes, x, rate.interval, 1, color=color, linewidth=1.1, alpha=0.6, zorder=2
            )
        axes.plot(
            doses,
            [rate.k / rate.n for rate in line.values()],
            linestyle=_DASHES[at % len(_DASHES)],
            marker=_MARKERS[at % len(_MARKERS)],
            markersize=5,
            color=color,
            linewidth=1.6,
            label=name,
            zorder=3,
        )
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("models flagged")
    axes.grid(axis="y", color=LIGHT.grid, linewidth=0.6)
    dose_axis(axes, most)
    axes.set_xlim(left=-0.3 if most > 20 else -0.06 * most)


def draw_heat(axes: Axes, rows: Sequence[HeatRow], models: Sequence[str], n_clean: int) -> None:
    """Draw rules by models: the shade is the suspicion, a dot the verdict "contaminated"."""
    shades = np.array([row.suspicion for row in rows], dtype=float)
    axes.pcolormesh(
        np.ma.masked_invalid(shades),
        cmap=ListedColormap(_SHADES),
        norm=BoundaryNorm(np.linspace(0, 1, N_SHADES + 1), N_SHADES),
        edgecolors=LIGHT.paper,
        linewidth=1.5,
    )
    verdicts = np.array([row.verdicts for row in rows], dtype=object)
    for where, mark in (
        (verdicts == "contaminated", _MARKS["contaminated"]),
        (verdicts == "inconclusive", _MARKS["inconclusive"]),
        (np.isnan(shades) & (verdicts != "contaminated"), _MARKS["nothing"]),
    ):
        y, x = np.nonzero(where)
        axes.plot(x + 0.5, y + 0.5, **mark)
    if 0 < n_clean < len(models):
        axes.axvline(n_clean, color=LIGHT.ink, linewidth=1.6)
    places = np.arange(len(models)) + 0.5
    axes.set_xticks(places, models, rotation=50, ha="right", rotation_mode="anchor")
    axes.set_yticks(np.arange(len(rows)) + 0.5, [row.name for row in rows])
    axes.set_ylim(len(rows), 0)  # the first on top, even if axes are shared
    axes.set_aspect("equal", anchor="NW")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def heat_legend() -> list[Line2D]:
    """Return the legend of the heat map's marks and shades."""
    square: dict[str, Any] = {"marker": "s", "linestyle": "", "markersize": 9}
    return [
        Line2D([], [], label="called contaminated", **_MARKS["contaminated"]),
        Line2D([], [], label="inconclusive", **_MARKS["inconclusive"]),
        Line2D([], [], label="no statistic", **_MARKS["nothing"]),
        *(
            Line2D([], [], color=shade, label=name, **square)
            for shade, name in zip(_SHADES, FIFTHS, strict=True)
        ),
    ]


def suspicion_ranks(scores: Sequence[Score | None], up: bool) -> tuple[float, ...]:
    """Return each model's rank among all, 0 least and 1 most suspicious; NaN if there is none.

    >>> suspicion_ranks([None], True)
    (nan,)
    """
    values = [s.statistic if s and s.statistic is not None else np.nan for s in scores]
    oriented = np.array(values, dtype=float) * (1 if up else -1)
    ranks = rankdata(oriented, nan_policy="omit")
    n = int((~np.isnan(oriented)).sum())
    return tuple(float((rank - 0.5) / n) if n else np.nan for rank in ranks)


_OUTLINED = {"linestyle": "", "color": _BLACK, "markeredgecolor": _WHITE, "markersize": 8}
_MARKS: dict[str, dict[str, Any]] = {
    "contaminated": {"marker": "o", "markeredgewidth": 1.2, **_OUTLINED},
    "inconclusive": {"marker": "$?$", "markeredgewidth": 0.4, **_OUTLINED},
    "nothing": {"marker": "_", "linestyle": "", "color": LIGHT.muted, "markersize": 6},
}
