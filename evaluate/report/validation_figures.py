"""The figures of a validation: ROC curves, power against the dose, detectors by model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from scipy.stats import rankdata

from flipbench.core.rates import Rate
from flipbench.core.records import Score
from flipbench.reporting.figures import (
    LIGHT,
    Figure,
    FigurePanel,
    draw_interval,
    save,
    save_parts,
    settings,
)

from ..protocol.grid import GridModel
from ..statistics.roc import Separation
from ..validation.dose import rises
from ..validation.validation import Validation, key_of
from .dose_figures import dose_axis
from .titles import CAPTIONS, families, label, rule_title
from .validation_tables import by_default_rule, title_among, two_decimals

N_BEST = 6  # detectors whose curves the overview shows
FAMILIES_SIDE_BY_SIDE = 2
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
_OUTLINED = {"linestyle": "", "color": "#010101", "markeredgecolor": "#fefefe", "markersize": 8}
_MARKS: dict[str, dict[str, Any]] = {
    "contaminated": {"marker": "o", "markeredgewidth": 1.2, **_OUTLINED},
    "inconclusive": {"marker": "$?$", "markeredgewidth": 0.4, **_OUTLINED},
    "nothing": {"marker": "_", "linestyle": "", "color": LIGHT.muted, "markersize": 6},
}
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
        highest = N_SHADES - 1
        return [None if math.isnan(s) else min(int(s * N_SHADES), highest) for s in self.suspicion]


@dataclass(frozen=True)
class Heat:
    """Rules by the models of one family, the clean ones first."""

    rows: Sequence[HeatRow]
    models: Sequence[GridModel]

    @property
    def names(self) -> list[str]:
        """The models' short names."""
        return [label(model, self.models) for model in self.models]

    @property
    def n_clean(self) -> int:
        """How many are clean."""
        return sum(model.clean for model in self.models)


def make_validation_figures(
    validations: Sequence[Validation],
    grid: Sequence[GridModel],
    scores: Sequence[Score],
    folder: Path,
) -> tuple[list[Figure], dict[str, Figure]]:
    """Write every figure that has data as PNG and SVG.

    Return those of the best detectors, and those of each detector by its name.

    Files are ``detectors`` and ``detectors_by_models`` (heat maps, which the page has as tables),
    ``roc`` and ``power_by_dose`` of the best detectors, and both of each detector.
    """
    defaults = by_default_rule(validations)
    with settings():
        for key, heats in (
            ("detectors", _overviews(validations, grid, scores)),
            ("detectors_by_models", _heat_maps(validations, grid, scores)),
        ):
            for name, canvas in heats.items():
                save(canvas, _path(folder, key if len(heats) == 1 else f"{key}-{name}"))
        best = [
            _overview("roc", "ROC curves over models", _draw_one_roc, _roc_alt,
                      [v for v in defaults if v.separation], validations, folder),
            _overview("power_by_dose", "Power against the dose", _draw_one_power, _power_alt,
                      [v for v in defaults if v.power], validations, folder),
        ]  # fmt: skip
        panels: dict[str, list[FigurePanel]] = {}
        for key, figures in (("roc", _rocs(validations)), ("power_by_dose", _powers(validations))):
            for (detector, name), (canvas, alt) in figures.items():
                svg = save(canvas, _path(folder, f"{key}-{name}"))
                panels.setdefault(detector, []).append(FigurePanel(svg, alt))
    by_detector = {
        detector: Figure(f"rules-{detector}", "", "", tuple(of_detector))
        for detector, of_detector in panels.items()
    }
    return [figure for figure in best if figure.panels], by_detector


def _path(folder: Path, name: str) -> Path:
    return folder / re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")


# ----------------------------------------------------------------------- curves and power


def _overview(
    key: str,
    heading: str,
    draw: Callable[[Axes, Validation], None],
    alt: Callable[[str, Validation], str],
    defaults: Sequence[Validation],
    validations: Sequence[Validation],
    folder: Path,
) -> Figure:
    """Draw one small panel per detector: side by side in the file, apart for the page."""
    best = defaults[:N_BEST]

    def draw_panels(validations_shown: Sequence[Validation]) -> Canvas:
        columns = min(3, len(validations_shown))
        rows = -(-len(validations_shown) // columns)
        canvas = Canvas(figsize=(2.9 * columns, 2.7 * rows), layout="constrained")
        for at, v in enumerate(validations_shown, 1):
            axes = canvas.add_subplot(rows, columns, at)
            draw(axes, v)
            axes.set_title("\n".join(wrap(title_among(v, validations), 30)), fontsize=9)
        return canvas

    svgs = save_parts(draw_panels, best, folder / key) if best else []
    alts = [alt(title_among(v, validations), v) for v in best]
    return Figure(key, heading, CAPTIONS[key], tuple(map(FigurePanel, svgs, alts)))


def _draw_one_roc(axes: Axes, v: Validation) -> None:
    assert v.separation is not None
    draw_roc(axes, [("", v.separation)])
    text = f"AUROC {v.separation.auroc:.2f}\n{two_decimals(v.separation.interval)}"
    axes.text(0.96, 0.06, text, ha="right", va="bottom", fontsize=8, color=LIGHT.ink)
    axes.set(xlabel="clean flagged", ylabel="contaminated flagged")


def _auroc(separation: Separation) -> str:
    return f"{separation.auroc:.2f} {two_decimals(separation.interval)}"


def _roc_alt(name: str, v: Validation) -> str:
    assert v.separation is not None
    return f"ROC curve of {name}: AUROC {_auroc(v.separation)}."


def _draw_one_power(axes: Axes, v: Validation) -> None:
    draw_power(axes, [("", _by_dose(v))])
    axes.set(xlabel="dose (0 = clean)", ylabel="models flagged")


def _power_alt(name: str, v: Validation) -> str:
    return f"Models that {name} flags: {_rates(_by_dose(v))}."


def _by_dose(v: Validation) -> dict[int, Rate]:
    return {**({0: v.alarms} if v.alarms.n else {}), **v.power}


def _rates(line: Mapping[int, Rate]) -> str:
    return ", ".join(f"{rate.k}/{rate.n} at dose {dose}" for dose, rate in line.items())


_Drawn = dict[tuple[str, str], tuple[Canvas, str]]
"""Figures and alternative texts by detector and title."""


def _rocs(validations: Sequence[Validation]) -> _Drawn:
    """Draw each detector's ROC curves; rules that share a statistic share a curve."""
    curves: dict[tuple[str, str], dict[object, tuple[str, Separation]]] = {}
    for v in validations:
        if (separation := v.separation) is not None:
            curves_of_detector = curves.setdefault((v.detector, title_among(v, validations)), {})
            text = f"{rule_title(v.detector, v.rule)} {_auroc(separation)}"
            curves_of_detector.setdefault((separation.fpr, separation.tpr), (text, separation))
    figures: _Drawn = {}
    for (detector, name), distinct in curves.items():
        lines = list(distinct.values())
        canvas = _one_axes(name, lines, draw_roc, (3.7, 3.7), ncols=1)
        n_dirty, n_clean = lines[0][1].n_contaminated, lines[0][1].n_clean
        models = f"{n_dirty} contaminated and {n_clean} clean models"
        aurocs = "; ".join(text for text, _ in lines)
        figures[detector, name] = canvas, f"ROC curves of {name} over {models}. AUROC: {aurocs}."
    return figures


def _powers(validations: Sequence[Validation]) -> _Drawn:
    """Draw each detector's rules: how many models they flag, by dose."""
    by_detector: dict[tuple[str, str], list[tuple[str, Mapping[int, Rate]]]] = {}
    for v in validations:
        if v.power:
            line = (rule_title(v.detector, v.rule), _by_dose(v))
            by_detector.setdefault((v.detector, title_among(v, validations)), []).append(line)
    figures: _Drawn = {}
    for (detector, name), lines in by_detector.items():
        canvas = _one_axes(name, lines, draw_power, (4.6, 3.1), ncols=2)
        rates = "; ".join(f"{rule}: {_rates(line)}" for rule, line in lines)
        alt = f"Models that {name} calls contaminated, against the dose. {rates}."
        figures[detector, name] = canvas, alt
    return figures


def _one_axes(
    name: str,
    lines: Sequence[Any],
    draw: Callable[[Axes, Sequence[Any]], None],
    size: tuple[float, float],
    ncols: int,
) -> Canvas:
    """Draw a detector's lines with their legend below."""
    canvas = Canvas(figsize=(size[0], size[1] + 0.19 * len(lines)), layout="constrained")
    axes = canvas.add_subplot()
    draw(axes, lines)
    axes.set_title(name)
    canvas.legend(loc="outside lower left", ncols=ncols, fontsize=8)
    return canvas


def draw_roc(axes: Axes, curves: Sequence[tuple[str, Separation]]) -> None:
    """Draw up to six ROC curves; earlier ones are wider, so that equal ones stay visible."""
    axes.plot([0, 1], [0, 1], color=LIGHT.grid, linewidth=1, zorder=1)
    for at, (name, separation) in enumerate(curves):
        axes.plot(
            separation.fpr,
            separation.tpr,
            linestyle=_DASHES[at % len(_DASHES)] if at else "-",
            color=LIGHT.lines[at % len(LIGHT.lines)],
            linewidth=1.4 + 0.8 * (len(curves) - 1 - at),
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
    max_dose = max((dose for _, line in lines for dose in line), default=1)
    for at, (name, line) in enumerate(lines):
        shift = 0.0 if max_dose > 20 else 0.012 * max_dose * (at - (len(lines) - 1) / 2)
        doses = [dose + shift for dose in line]
        color = LIGHT.lines[at % len(LIGHT.lines)]
        style: dict[str, Any] = {"color": color, "linewidth": 1.1, "alpha": 0.6, "zorder": 2}
        for x, rate in zip(doses, line.values(), strict=True):
            draw_interval(axes, x, rate.interval, 1, **style)
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
    dose_axis(axes, max_dose)
    axes.set_xlim(left=-0.3 if max_dose > 20 else -0.06 * max_dose)


# ------------------------------------------------------------------------------ heat maps


def overview_heats(
    validations: Sequence[Validation], grid: Sequence[GridModel], scores: Sequence[Score]
) -> dict[str, Heat]:
    """Return, for each family, every detector's default rule by the models, best AUROC first.

    If no detector is built in, all rules.
    """
    if not validations:
        return {}
    defaults = by_default_rule(validations)
    return {
        family: _heat(defaults or validations, grid, models, scores, rules=not defaults)
        for family, models in families(grid).items()
    }


def _overviews(
    validations: Sequence[Validation], grid: Sequence[GridModel], scores: Sequence[Score]
) -> dict[str, Canvas]:
    """Draw families side by side by default rules; nothing if there are no other rules."""
    defaults = by_default_rule(validations)
    if not 0 < len(defaults) < len(validations):
        return {}
    panels, by_family = {}, list(families(grid).items())
    for at in range(0, len(by_family), FAMILIES_SIDE_BY_SIDE):
        side_by_side = dict(by_family[at : at + FAMILIES_SIDE_BY_SIDE])
        heats = {
            family: _heat(defaults, grid, side_by_side[family], scores) for family in side_by_side
        }
        width = 2.4 + 0.27 * sum(map(len, side_by_side.values()))
        panels[", ".join(side_by_side)] = _heat_figure(heats, (width, 2.5 + 0.27 * len(defaults)))
    return panels


def _heat_maps(
    validations: Sequence[Validation], grid: Sequence[GridModel], scores: Sequence[Score]
) -> dict[str, Canvas]:
    if not validations:
        return {}
    by_family = families(grid)
    width = 3.3 + 0.27 * max(map(len, by_family.values()), default=0)
    size = (width, 2.3 + 0.27 * len(validations))
    return {
        family: _heat_figure({family: _heat(validations, grid, models, scores, rules=True)}, size)
        for family, models in by_family.items()
    }


def _heat(
    validations: Sequence[Validation],
    grid: Sequence[GridModel],
    models: Sequence[GridModel],
    scores: Sequence[Score],
    rules: bool = False,
) -> Heat:
    """Return the rows of ``models``; suspicion is ranked among all models of the grid."""
    by_key = {(*key_of(s), s.model_fingerprint): s for s in scores}
    rows = []
    for v in validations:
        key = (v.detector, v.rule, v.benchmark_id)
        of_grid = [by_key.get((*key, model.fingerprint)) for model in grid]
        usable = [s for s in of_grid if s and s.statistic is not None]
        ranks = suspicion_ranks(of_grid, rises(usable) if usable else False)
        triples = zip(grid, of_grid, ranks, strict=True)
        cells = {model.fingerprint: (s.verdict, rank) for model, s, rank in triples if s}
        row = [cells.get(model.fingerprint, ("", math.nan)) for model in models]
        verdicts, shades = zip(*row, strict=True)
        suspected = v.external_alarms.suspected
        name = title_among(v, validations, rules) + (" ‡" if suspected else "")
        rows.append(HeatRow(name, verdicts, shades, v.detector, v.rule, suspected))
    return Heat(rows, models)


def _heat_figure(heats: dict[str, Heat], size: tuple[float, float]) -> Canvas:
    """Draw the heat maps of several families side by side."""
    canvas = Canvas(figsize=size, layout="constrained")
    widths = [len(heat.models) for heat in heats.values()]
    all_axes = canvas.subplots(1, len(heats), sharey=True, squeeze=False, width_ratios=widths)
    for axes, (family, heat) in zip(all_axes[0], heats.items(), strict=True):
        draw_heat(axes, heat.rows, heat.names, heat.n_clean)
        axes.set_title(family)
    canvas.legend(handles=heat_legend(), loc="outside lower left", ncols=2, fontsize=8)
    # Bring the names and the legend below them together: square cells leave height unused.
    canvas.draw_without_rendering()
    lowest = min(name.get_window_extent().y0 for a in canvas.axes for name in a.get_xticklabels())
    empty = (lowest - canvas.legends[0].get_window_extent().y1) / canvas.dpi
    width, height = canvas.get_size_inches()
    canvas.set_size_inches(width, height - empty + 0.1)
    return canvas


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
    for has_mark, mark in (
        (verdicts == "contaminated", _MARKS["contaminated"]),
        (verdicts == "inconclusive", _MARKS["inconclusive"]),
        (np.isnan(shades) & (verdicts != "contaminated"), _MARKS["nothing"]),
    ):
        y, x = np.nonzero(has_mark)
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
