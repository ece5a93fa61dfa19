"""The figures of a validation: ROC curves, detectors by model, power against the dose."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from flipbench.core.rates import Rate
from flipbench.core.records import Score
from flipbench.reporting.figures import (
    LIGHT,
    Figure,
    FigurePanel,
    save,
    save_parts,
    settings,
)

from ..protocol.grid import GridModel
from ..statistics.roc import Separation
from ..validation.dose import rises
from ..validation.external import key_of
from ..validation.validation import Validation
from . import validation_plots
from .tables import families, label, rule_title
from .validation_plots import HeatRow
from .validation_tables import by_default_rule, title_among, two_decimals

N_BEST = 6  # detectors whose curves the overview shows
FAMILIES_SIDE_BY_SIDE = 2


@dataclass(frozen=True)
class _Drawn:
    name: str
    canvas: Canvas
    alt: str


@dataclass(frozen=True)
class ValidationFigures:
    """Those of the best detectors, and those of each detector by its name."""

    best: list[Figure]
    by_detector: dict[str, Figure]

    @property
    def all(self) -> list[Figure]:
        """All of them."""
        return [*self.best, *self.by_detector.values()]


def make_validation_figures(
    validations: Sequence[Validation],
    grid: Sequence[GridModel],
    scores: Sequence[Score],
    folder: Path,
) -> ValidationFigures:
    """Write every figure that has data as PNG and SVG; return those for the page.

    Files are ``detectors`` and ``detectors_by_models`` (heat maps, which the page has as tables),
    ``roc`` and ``power_by_dose`` of the best detectors, and both of each detector.
    """
    with settings():
        for key, heats in (
            ("detectors", _overviews(validations, grid, scores)),
            ("detectors_by_models", _heat_maps(validations, grid, scores)),
        ):
            for panel in heats:
                _save(panel, key if len(heats) == 1 else f"{key}-{panel.name}", folder)
        best = [v for v in by_default_rule(validations) if v.separation][:N_BEST]
        with_power = [v for v in by_default_rule(validations) if v.power][:N_BEST]
        found = [
            _overview(
                "roc",
                "ROC curves over models",
                "Contaminated against clean models flagged as the threshold falls, with AUROC and"
                " its 95 % interval. A curve has at most as many steps as there are clean models.",
                [(v, _draw_roc, _roc_alt) for v in best],
                validations,
                folder,
            ),
            _overview(
                "power_by_dose",
                "Power against the dose",
                "Share of models that the default rule calls contaminated, with 95 % intervals."
                " Dose 0 is all clean models: false alarms.",
                [(v, _draw_power, _power_alt) for v in with_power],
                validations,
                folder,
            ),
        ]
        panels: dict[str, list[FigurePanel]] = {}
        for key, of_kind in (("roc", _rocs(validations)), ("power_by_dose", _powers(validations))):
            for detector, panel in of_kind:
                made = _save(panel, f"{key}-{panel.name}", folder)
                panels.setdefault(detector, []).append(made)
    by_detector = {
        detector: Figure(f"rules-{detector}", "", "", tuple(of_detector))
        for detector, of_detector in panels.items()
    }
    return ValidationFigures([figure for figure in found if figure.panels], by_detector)


def _save(drawn: _Drawn, name: str, folder: Path) -> FigurePanel:
    path = folder / re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")
    return FigurePanel(save(drawn.canvas, path), drawn.alt)


_Draw = Callable[[Axes, Validation], None]
_Alt = Callable[[str, Validation], str]
_Drawing = tuple[Validation, _Draw, _Alt]


def _overview(
    key: str,
    heading: str,
    caption: str,
    drawings: Sequence[_Drawing],
    validations: Sequence[Validation],
    folder: Path,
) -> Figure:
    """Draw one small panel per detector: side by side in the file, apart for the page."""

    def canvas(shown: Sequence[_Drawing]) -> Canvas:
        columns = min(3, len(shown))
        rows = -(-len(shown) // columns)
        made = Canvas(figsize=(2.9 * columns, 2.7 * rows), layout="constrained")
        for at, (v, draw, _) in enumerate(shown, 1):
            axes = made.add_subplot(rows, columns, at)
            draw(axes, v)
            axes.set_title("\n".join(wrap(title_among(v, validations), 30)), fontsize=9)
        return made

    svgs = save_parts(canvas, drawings, folder / key) if drawings else []
    alts = [alt(title_among(v, validations), v) for v, _, alt in drawings]
    panels = map(FigurePanel, svgs, alts)
    return Figure(key, heading, caption, tuple(panels))


def _draw_roc(axes: Axes, v: Validation) -> None:
    assert v.separation is not None
    validation_plots.draw_roc(axes, [("", v.separation)])
    text = f"AUROC {v.separation.auroc:.2f}\n{two_decimals(v.separation.interval)}"
    axes.text(0.96, 0.06, text, ha="right", va="bottom", fontsize=8, color=LIGHT.ink)
    axes.set(xlabel="clean flagged", ylabel="contaminated flagged")


def _roc_alt(name: str, v: Validation) -> str:
    assert v.separation is not None
    between = two_decimals(v.separation.interval)
    return f"ROC curve of {name}: AUROC {v.separation.auroc:.2f} {between}."


def _draw_power(axes: Axes, v: Validation) -> None:
    validation_plots.draw_power(axes, [("", _by_dose(v))])
    axes.set(xlabel="dose (0 = clean)", ylabel="models flagged")


def _power_alt(name: str, v: Validation) -> str:
    return f"Models that {name} flags: {_rates(_by_dose(v))}."


def _by_dose(v: Validation) -> dict[int, Rate]:
    return {**({0: v.alarms} if v.alarms.n else {}), **v.power}


def _rates(line: Mapping[int, Rate]) -> str:
    return ", ".join(f"{rate.k}/{rate.n} at dose {dose}" for dose, rate in line.items())


def _rocs(validations: Sequence[Validation]) -> list[tuple[str, _Drawn]]:
    """Draw each detector's ROC curves; rules that share a statistic share a curve."""
    curves: dict[tuple[str, str], dict[object, tuple[str, Separation]]] = {}
    for v in validations:
        if v.separation is not None:
            auroc = f"{v.separation.auroc:.2f} {two_decimals(v.separation.interval)}"
            text = f"{rule_title(v.detector, v.rule)} {auroc}"
            same = curves.setdefault((v.detector, title_among(v, validations)), {})
            same.setdefault((v.separation.fpr, v.separation.tpr), (text, v.separation))
    panels = []
    for (detector, name), distinct in curves.items():
        lines = list(distinct.values())
        canvas = Canvas(figsize=(3.7, 3.7 + 0.19 * len(lines)), layout="constrained")
        axes = canvas.add_subplot()
        validation_plots.draw_roc(axes, lines)
        axes.set_title(name)
        canvas.legend(loc="outside lower left", ncols=1, fontsize=8)
        first = lines[0][1]
        models = f"{first.n_contaminated} contaminated and {first.n_clean} clean models"
        aurocs = "; ".join(text for text, _ in lines)
        alt = f"ROC curves of {name} over {models}. AUROC: {aurocs}."
        panels.append((detector, _Drawn(name, canvas, alt)))
    return panels


def _powers(validations: Sequence[Validation]) -> list[tuple[str, _Drawn]]:
    """Draw each detector's rules: how many models they flag, by dose."""
    by_detector: dict[tuple[str, str], list[tuple[str, Mapping[int, Rate]]]] = {}
    for v in validations:
        if v.power:
            line = (rule_title(v.detector, v.rule), _by_dose(v))
            key = (v.detector, title_among(v, validations))
            by_detector.setdefault(key, []).append(line)
    panels = []
    for (detector, name), lines in by_detector.items():
        canvas = Canvas(figsize=(4.6, 3.1 + 0.19 * len(lines)), layout="constrained")
        axes = canvas.add_subplot()
        validation_plots.draw_power(axes, lines)
        axes.set_title(name)
        canvas.legend(loc="outside lower left", ncols=2, fontsize=8)
        rates = "; ".join(f"{rule}: {_rates(line)}" for rule, line in lines)
        alt = f"Models that {name} calls contaminated, against the dose. {rates}."
        panels.append((detector, _Drawn(name, canvas, alt)))
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


def _heat_panel(heats: dict[str, Heat], size: tuple[float, float]) -> _Drawn:
    """Draw the heat maps of several families side by side."""
    canvas = Canvas(figsize=size, layout="constrained")
    widths = [len(heat.names) for heat in heats.values()]
    all_axes = canvas.subplots(1, len(heats), sharey=True, squeeze=False, width_ratios=widths)
    for axes, (family, heat) in zip(all_axes[0], heats.items(), strict=True):
        validation_plots.draw_heat(axes, heat.rows, heat.names, heat.n_clean)
        axes.set_title(family)
    legend = validation_plots.heat_legend()
    canvas.legend(handles=legend, loc="outside lower left", ncols=2, fontsize=8)
    _fit_height(canvas)
    alt = " ".join(heat.alt(family) for family, heat in heats.items())
    return _Drawn(", ".join(heats), canvas, alt)


def _fit_height(canvas: Canvas) -> None:
    """Bring the names and the legend below them together: square cells leave height unused."""
    canvas.draw_without_rendering()
    lowest = min(label.get_window_extent().y0 for a in canvas.axes for label in a.get_xticklabels())
    empty = (lowest - canvas.legends[0].get_window_extent().y1) / canvas.dpi
    width, height = canvas.get_size_inches()
    canvas.set_size_inches(width, height - empty + 0.1)


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

    def alt(self, family: str) -> str:
        """Return which models of the family each rule calls contaminated."""
        counts = []
        for row in self.rows:
            pairs = zip(self.names, row.verdicts, strict=True)
            flagged = [name for name, verdict in pairs if verdict == "contaminated"]
            n = sum(verdict not in ("", "not_applicable") for verdict in row.verdicts)
            counts.append(f"{row.name} {len(flagged)}/{n} ({', '.join(flagged) or 'none'})")
        return f"Models of {family} that each rule calls contaminated. {'; '.join(counts)}."


def overview_heats(
    validations: Sequence[Validation], grid: Sequence[GridModel], scores: Sequence[Score]
) -> dict[str, Heat]:
    """Return, for each family, every detector's default rule by the models, best AUROC first.

    If no detector is built in, all rules.
    """
    chosen, known = by_default_rule(validations), bool(validations)
    return {
        family: _heat(chosen or validations, grid, models, scores, rules=not chosen)
        for family, models in families(grid).items()
        if known
    }


def _heat(
    validations: Sequence[Validation],
    grid: Sequence[GridModel],
    models: Sequence[GridModel],
    scores: Sequence[Score],
    rules: bool = False,
) -> Heat:
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
        name = title_among(v, validations, rules) + mark
        suspected = v.external_alarms.suspected
        rows.append(HeatRow(name, verdicts, shades, v.detector, v.rule, suspected))
    return Heat(rows, models)
