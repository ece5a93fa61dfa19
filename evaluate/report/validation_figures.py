"""The figures of a validation: ROC curves, detectors by model, power against the dose."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure as Canvas

from flipbench.core.rates import Rate
from flipbench.core.records import Score
from flipbench.reporting.figures import Figure, FigurePanel, save, settings, svg_text

from ..protocol.grid import GridModel
from ..statistics.roc import Separation
from ..validation.dose import rises
from ..validation.external import key_of
from ..validation.validation import Validation
from . import validation_plots
from .tables import families, label, rule_title
from .validation_plots import HeatRow
from .validation_tables import by_default_rule, title_among, two_decimals

CURVES_PER_PANEL = 6
FAMILIES_SIDE_BY_SIDE = 2
_HEAT = (
    "One row per rule, one column per model; clean models are left of the line. The shade is the"
    " model’s rank by that statistic among all models, from dark (least suspicious) to light"
    " (most). A dot is the verdict “contaminated”. ‡: false alarm suspected."
)


@dataclass(frozen=True)
class _Drawn:
    name: str
    canvas: Canvas
    alt: str


def make_validation_figures(
    validations: Sequence[Validation],
    grid: Sequence[GridModel],
    scores: Sequence[Score],
    folder: Path,
) -> list[Figure]:
    """Write every figure that has data as PNG and SVG; return them for the page.

    Files are ``detectors``, ``detectors_by_models``, ``roc`` and ``power_by_dose``. If a figure
    has several panels (a family, a detector, six curves), each has its own file, whose name ends
    in the panel's.
    """
    with settings():
        drawn = [
            (
                "detectors",
                "Detectors by model, each by its default rule",
                f"{_HEAT} The best AUROC comes first.",
                _overviews(validations, grid, scores),
            ),
            (
                "detectors_by_models",
                "Every rule of every detector, by model",
                _HEAT,
                _heat_maps(validations, grid, scores),
            ),
            (
                "roc",
                "ROC curves over models",
                "Contaminated against clean models flagged as the threshold falls. A curve has at"
                " most as many steps as there are clean models. Beside each name: AUROC with 95 %"
                " interval. Rules that share a statistic share a curve.",
                _rocs(validations),
            ),
            (
                "power_by_dose",
                "Power against the dose",
                "Share of models that each rule calls contaminated, with 95 % intervals. Dose 0 is"
                " all clean models: false alarms.",
                _powers(validations),
            ),
        ]
    return [_figure(*parts, folder) for parts in drawn if parts[-1]]


def _figure(key: str, heading: str, caption: str, panels: Sequence[_Drawn], folder: Path) -> Figure:
    for panel in panels:
        slug = re.sub(r"[^a-z0-9]+", "-", panel.name.lower()).strip("-")
        save(panel.canvas, folder / (f"{key}-{slug}" if len(panels) > 1 else key))
    drawn = tuple(FigurePanel(svg_text(panel.canvas), panel.alt) for panel in panels)
    return Figure(key, heading, caption, drawn)


def _rocs(validations: Sequence[Validation]) -> list[_Drawn]:
    curves: list[tuple[str, Separation]] = []
    seen: dict[tuple[str, str], set[object]] = {}
    for v in validations:
        if v.separation is None:
            continue
        same = seen.setdefault((v.detector, v.benchmark_id), set())
        curve = (v.separation.fpr, v.separation.tpr)
        if curve in same:
            continue
        name = title_among(v, validations, rule=bool(same))
        auroc = f"{v.separation.auroc:.2f} {two_decimals(v.separation.interval)}"
        curves.append((f"{name} {auroc}", v.separation))
        same.add(curve)
    panels: list[_Drawn] = []
    for at in range(0, len(curves), CURVES_PER_PANEL):
        part = curves[at : at + CURVES_PER_PANEL]
        canvas = Canvas(figsize=(4.6, 4.4 + 0.19 * len(part)), layout="constrained")
        validation_plots.draw_roc(canvas.add_subplot(), part)
        canvas.legend(loc="outside lower left", ncols=1, fontsize=8)
        first = part[0][1]
        models = f"{first.n_contaminated} contaminated and {first.n_clean} clean models"
        alt = f"ROC curves of {models}. AUROC: {'; '.join(name for name, _ in part)}."
        panels.append(_Drawn(str(len(panels) + 1), canvas, alt))
    return panels


def _powers(validations: Sequence[Validation]) -> list[_Drawn]:
    by_detector: dict[str, list[tuple[str, Mapping[int, Rate]]]] = {}
    for v in validations:
        if v.power:
            zero = {0: v.alarms} if v.alarms.n else {}
            name = title_among(v, validations)
            line = (rule_title(v.detector, v.rule), zero | v.power)
            by_detector.setdefault(name, []).append(line)
    panels = []
    for detector, lines in by_detector.items():
        canvas = Canvas(figsize=(4.6, 3.1 + 0.19 * len(lines)), layout="constrained")
        axes = canvas.add_subplot()
        validation_plots.draw_power(axes, lines)
        axes.set_title(detector)
        canvas.legend(loc="outside lower left", ncols=2, fontsize=8)
        rates = [
            f"{name}: " + ", ".join(f"{r.k}/{r.n} at dose {dose}" for dose, r in line.items())
            for name, line in lines
        ]
        alt = f"Models that {detector} calls contaminated, against the dose. {'; '.join(rates)}."
        panels.append(_Drawn(detector, canvas, alt))
    return panels


def _overviews(
    validations: Sequence[Validation], grid: Sequence[GridModel], scores: Sequence[Score]
) -> list[_Drawn]:
    """Draw families side by side by default rules; nothing if there are no other rules."""
    chosen = by_default_rule(validations)
    if not 0 < len(chosen) < len(validations):
        return []
    panels, by_family = [], list(families(grid).items())
    for at in range(0, len(by_family), FAMILIES_SIDE_BY_SIDE):
        shown = by_family[at : at + FAMILIES_SIDE_BY_SIDE]
        heats = {family: _heat(chosen, grid, models, scores) for family, models in shown}
        width = 2.4 + 0.27 * sum(len(models) for _, models in shown)
        panels.append(_heat_panel(heats, (width, 2.5 + 0.27 * len(chosen))))
    return panels


def _heat_maps(
    validations: Sequence[Validation], grid: Sequence[GridModel], scores: Sequence[Score]
) -> list[_Drawn]:
    if not validations:
        return []
    by_family = families(grid)
    width = 3.3 + 0.27 * max(map(len, by_family.values()), default=0)
    size = (width, 2.3 + 0.27 * len(validations))
    return [
        _heat_panel({family: _heat(validations, grid, models, scores, rules=True)}, size)
        for family, models in by_family.items()
    ]


def _heat_panel(heats: dict[str, _Heat], size: tuple[float, float]) -> _Drawn:
    """Draw the heat maps of several families side by side."""
    canvas = Canvas(figsize=size, layout="constrained")
    widths = [len(heat.names) for heat in heats.values()]
    all_axes = canvas.subplots(1, len(heats), sharey=True, squeeze=False, width_ratios=widths)
    for axes, (family, heat) in zip(all_axes[0], heats.items(), strict=True):
        validation_plots.draw_heat(axes, heat.rows, heat.names, heat.n_clean)
        axes.set_title(family)
    legend = validation_plots.heat_legend()
    canvas.legend(handles=legend, loc="outside lower left", ncols=2, fontsize=8)
    alt = " ".join(heat.alt(family) for family, heat in heats.items())
    return _Drawn(", ".join(heats), canvas, alt)


@dataclass(frozen=True)
class _Heat:
    """Rules by the models of one family."""

    rows: Sequence[HeatRow]
    names: Sequence[str]
    n_clean: int

    def alt(self, family: str) -> str:
        counts = []
        for row in self.rows:
            pairs = zip(self.names, row.verdicts, strict=True)
            flagged = [name for name, verdict in pairs if verdict == "contaminated"]
            n = sum(verdict not in ("", "not_applicable") for verdict in row.verdicts)
            counts.append(f"{row.name} {len(flagged)}/{n} ({', '.join(flagged) or 'none'})")
        return f"Models of {family} that each rule calls contaminated. {'; '.join(counts)}."


def _heat(
    validations: Sequence[Validation],
    grid: Sequence[GridModel],
    models: Sequence[GridModel],
    scores: Sequence[Score],
    rules: bool = False,
) -> _Heat:
    """Return the rows of ``models``; suspicion is ranked among all models of the grid."""
    known = {(*key_of(s), s.model_fingerprint): s for s in scores}
    rows = []
    for v in validations:
        key = (v.detector, v.rule, v.benchmark_id)
        scored = [known.get((*key, model.fingerprint)) for model in grid]
        usable = [s for s in scored if s and s.statistic is not None]
        ranks = validation_plots.suspicion_ranks(scored, rises(usable) if usable else False)
        scored_ranks = zip(grid, scored, ranks, strict=True)
        cells = {m.fingerprint: (s.verdict, rank) for m, s, rank in scored_ranks if s}
        row = [cells.get(model.fingerprint, ("", float("nan"))) for model in models]
        mark = " ‡" if v.external_alarms.suspected else ""
        verdicts, shades = zip(*row, strict=True)
        rows.append(HeatRow(title_among(v, validations, rules) + mark, verdicts, shades))
    return _Heat(rows, [label(m, models) for m in models], sum(m.clean for m in models))
