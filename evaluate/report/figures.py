"""The figures of a report: gap and accuracy against the dose, paired outcomes, and the funnel.

Files for papers show the families of models side by side; the page has one image per family,
which a phone can stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.figure import Figure as Canvas

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.reporting import formats
from flipbench.reporting.figures import Figure, FigurePanel, save, save_parts, settings

from ..protocol.grid import GridModel
from . import plots
from .plots import Draw, Series
from .tables import families, gap_scores, label


def make_figures(
    benchmark: PairedBenchmark, grid: Sequence[GridModel], scores: Sequence[Score], folder: Path
) -> list[Figure]:
    """Write every figure as PNG and SVG into ``folder`` and return them for the page."""
    by_family: dict[str, Series] = {
        family: gap_scores(models, grid, scores) for family, models in families(grid).items()
    }
    of_known_dose = {
        family: [(m, s) for m, s in series if m.dose is not None]
        for family, series in by_family.items()
    }
    strategies = list(dict.fromkeys(m.strategy for m in sorted(grid, key=lambda m: m.clean)))
    figures = []
    for kind in _KINDS:
        shown = by_family if kind.of_any_dose else of_known_dose
        drawn = {family: series for family, series in shown.items() if series}
        figures += [_family_figure(kind, drawn, strategies, folder)] if drawn else []
    if benchmark.funnel:
        figures.append(_funnel_figure(benchmark, folder))
    return figures


def _by_dose(series: Series, describe: Callable[[Score], str]) -> str:
    return "; ".join(
        f"{name}: " + ", ".join(f"{describe(score)} at dose {model.dose}" for model, score in line)
        for name, line in plots.lines(series)
    )


def _gap_alt(family: str, series: Series) -> str:
    values = _by_dose(series, lambda score: formats.points(score.statistic or 0.0))
    return f"Gap in percentage points against dose, {family}. {values}."


def _accuracy_alt(family: str, series: Series) -> str:
    def both(score: Score) -> str:
        counts = (score.accuracies[variant] for variant in ("original", "perturbed"))
        return " and ".join(formats.percent(count.k / count.n) for count in counts)

    values = _by_dose(series, both)
    return f"Original and perturbed accuracy in percent against dose, {family}. {values}."


def _outcomes_alt(family: str, series: Series) -> str:
    models = [m for m, _ in series]
    parts = [f"{label(m, models)} {' / '.join(map(str, plots.outcomes(s)))}" for m, s in series]
    return (
        f"Items right on both / right to wrong / wrong to right / wrong on both, {family}:"
        f" {'; '.join(parts)}."
    )


# ---------------------------------------------------------------------------- files


@dataclass(frozen=True)
class _Kind:
    """A figure of every family: how a panel is drawn and described, and its height."""

    key: str
    title: str
    caption: str
    draw: Draw
    alt: Callable[[str, Series], str]
    height: float = 3.7
    height_per_model: float = 0.0
    of_any_dose: bool = False


_KINDS = (
    _Kind(
        "gap_by_dose",
        "The gap against the dose",
        "Perturbed − original accuracy, with paired 95 % intervals. Each line starts at the clean"
        " model. A falling line means that the signal grows with the contamination.",
        plots.draw_gap,
        _gap_alt,
    ),
    _Kind(
        "accuracy_by_dose",
        "Both accuracies against the dose",
        "The gap grows because the original accuracy rises as answers are memorised, because the"
        " perturbed accuracy falls, or both. Thin lines: 95 % Wilson intervals.",
        plots.draw_accuracy,
        _accuracy_alt,
    ),
    _Kind(
        "paired_outcomes",
        "Outcome of each item",
        "Items by whether the model was right on the original and on the perturbed version."
        " Hatched: right on the original only, as with memorised answers. The McNemar test weighs"
        " these against the items that are right on the perturbed version only.",
        plots.draw_outcomes,
        _outcomes_alt,
        height=1.35,
        height_per_model=0.34,
        of_any_dose=True,
    ),
)


def _family_figure(
    kind: _Kind, shown: dict[str, Series], strategies: Sequence[str], folder: Path
) -> Figure:
    height = kind.height + kind.height_per_model * max(map(len, shown.values()))

    def canvas(families: Sequence[str]) -> Canvas:
        return _canvas(
            {family: shown[family] for family in families}, strategies, kind.draw, height
        )

    svgs = save_parts(canvas, list(shown), folder / kind.key)
    alts = [kind.alt(family, series) for family, series in shown.items()]
    panels = map(FigurePanel, svgs, alts)
    return Figure(kind.key, kind.title, kind.caption, tuple(panels))


def _funnel_figure(benchmark: PairedBenchmark, folder: Path) -> Figure:
    with settings():
        canvas = Canvas(figsize=(6.4, 0.5 + 0.42 * len(benchmark.funnel)), layout="constrained")
        plots.draw_funnel(canvas.add_subplot(), benchmark.funnel)
    steps = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in benchmark.funnel.items())
    panel = FigurePanel(save(canvas, folder / "funnel"), f"Funnel: {steps}.")
    caption = f"Items left after each step of making {benchmark.name}."
    return Figure("funnel", "From items to pairs", caption, (panel,))


def _canvas(
    shown: dict[str, Series], strategies: Sequence[str], draw: Draw, height: float
) -> Canvas:
    n_columns = min(3, len(shown))
    n_rows = math.ceil(len(shown) / n_columns)
    with settings():
        canvas = Canvas(figsize=(4.6 * n_columns, height * n_rows), layout="constrained")
        handles: dict[str, Artist] = {}
        for at, (family, series) in enumerate(shown.items(), 1):
            axes = canvas.add_subplot(n_rows, n_columns, at)
            draw(axes, series, strategies)
            axes.set_title(family)
            found, names = axes.get_legend_handles_labels()
            handles |= dict(zip(names, found, strict=True))
        canvas.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower left",
            ncols=2 * n_columns,
            fontsize=8,
        )
    return canvas
