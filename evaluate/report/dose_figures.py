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
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from flipbench.core.paired import PairedBenchmark
from flipbench.core.rates import wilson_interval
from flipbench.core.records import Count, Score
from flipbench.reporting import formats
from flipbench.reporting.figures import (
    LIGHT,
    Figure,
    FigurePanel,
    Stack,
    draw_interval,
    draw_stacks,
    save,
    save_parts,
    settings,
)

from ..protocol.grid import GridModel
from .score_tables import gap_scores
from .titles import CAPTIONS, families, label

Series = list[tuple[GridModel, Score]]
MARKERS = "osD^vPX<"
_DASHES = ("-", "--", "-.", ":")


def make_figures(
    benchmark: PairedBenchmark, grid: Sequence[GridModel], scores: Sequence[Score], folder: Path
) -> list[Figure]:
    """Write every figure as PNG and SVG into ``folder`` and return them for the page."""
    by_family = {family: gap_scores(models, scores) for family, models in families(grid).items()}
    strategies = list(dict.fromkeys(m.strategy for m in sorted(grid, key=lambda m: m.clean)))
    figures = []
    for kind in _KINDS:
        panels = {
            family: [(m, s) for m, s in series if kind.of_any_dose or m.dose is not None]
            for family, series in by_family.items()
        }
        panels = {family: series for family, series in panels.items() if series}
        figures += [_family_figure(kind, panels, strategies, folder)] if panels else []
    if benchmark.funnel:
        figures.append(_funnel_figure(benchmark, folder))
    return figures


def lines(series: Series) -> list[tuple[str, Series]]:
    """Return (strategy, line) for each strategy and lineage.

    A line starts at the untouched clean model that its models descend from, unless they all have
    the same dose: these were washed, starting from that dose.
    """
    clean = [(m, s) for m, s in series if m.clean]
    by_line: dict[tuple[str, str], Series] = {}
    for model, score in series:
        if not model.clean:
            origins = [
                c for c in clean if c[0].cluster == model.cluster and not c[0].clean_finetune
            ]
            by_line.setdefault((model.strategy, model.lineage), origins[:1]).append((model, score))
    for key, line in by_line.items():
        contaminated = [(m, s) for m, s in line if not m.clean]
        if len(contaminated) > 1 and len({m.dose for m, _ in contaminated}) == 1:
            by_line[key] = contaminated
    return [(strategy, line) for (strategy, _), line in by_line.items()] or [
        (series[0][0].strategy, clean)
    ]


def outcomes(score: Score) -> tuple[int, int, int, int]:
    """Return how many items were right on both, right → wrong, wrong → right, wrong on both."""
    original, changes = score.accuracies["original"], list(score.per_item.values())
    paired = score.paired
    b, c = (paired.b, paired.c) if paired else (changes.count(-1.0), changes.count(1.0))
    return original.k - b, b, c, original.n - original.k - c


def dose_axis(axes: Axes, max_dose: float) -> None:
    """Label the axis of doses up to ``most``; large doses are on a logarithmic scale."""
    if max_dose > 20:
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("dose: copies × epochs (0 = clean)")


# ------------------------------------------------------------------------------- drawing


def _draw_gap(axes: Axes, series: Series, strategies: Sequence[str]) -> None:
    """Draw the gap against the dose; filled marks are verdicts "contaminated"."""
    axes.axhline(0, color=LIGHT.muted, linewidth=0.8, zorder=1)
    for name, line in lines(series):
        at = strategies.index(name)
        color, marker, dashes = _style(at)
        doses = _dodged(line, at, len(strategies))
        gaps = [100 * (s.statistic or 0.0) for _, s in line]
        axes.plot(doses, gaps, dashes, color=color, linewidth=1.6, zorder=2)
        for dose, (model, score) in zip(doses, line, strict=True):
            if not model.clean:
                _point(axes, dose, score, color, marker)
        axes.plot([], [], dashes, marker=marker, color=color, label=name)
    for model, score in series:
        if model.clean:
            _point(axes, 0, score, LIGHT.muted, "o")
    axes.plot([], [], "o", color=LIGHT.muted, label="filled: contaminated by the test")
    axes.plot([], [], "o", color=LIGHT.muted, markerfacecolor=LIGHT.paper, label="open: not")
    axes.set_ylabel("gap, percentage points")
    axes.grid(axis="y", color=LIGHT.grid, linewidth=0.6)
    dose_axis(axes, max(m.dose or 0 for m, _ in series))


def _draw_accuracy(axes: Axes, series: Series, strategies: Sequence[str]) -> None:
    """Draw original (solid, filled) and perturbed (dashed, open) accuracy against the dose.

    Thin lines are Wilson intervals.
    """
    for name, line in lines(series):
        at = strategies.index(name)
        color, marker, _ = _style(at)
        doses = _dodged(line, at, len(strategies))
        for variant, dashes, face in (("original", "-", color), ("perturbed", "--", LIGHT.paper)):
            counts = [score.accuracies.get(variant, Count(k=0, n=0)) for _, score in line]
            for dose, count in zip(doses, counts, strict=True):
                between = wilson_interval(count.k, count.n) if count.n else None
                draw_interval(axes, dose, between, 100, color=color, linewidth=0.9, alpha=0.45)
            axes.plot(
                doses,
                [100 * count.k / count.n if count.n else math.nan for count in counts],
                dashes,
                marker=marker,
                color=color,
                markerfacecolor=face,
                linewidth=1.6,
                label=f"{name}, {variant}",
            )
    axes.set_ylabel("accuracy, %")
    axes.grid(axis="y", color=LIGHT.grid, linewidth=0.6)
    low, high = axes.get_ylim()
    axes.set_ylim(max(0, low - 3), min(102, high + 3))
    dose_axis(axes, max(m.dose or 0 for m, _ in series))


def _draw_outcomes(axes: Axes, series: Series, strategies: Sequence[str]) -> None:
    """Draw, for each model, the outcomes of the items on original and perturbed version."""
    models = [m for m, _ in series]
    names = ("right on both", "right → wrong", "wrong → right", "wrong on both")
    counts = [outcomes(score) for _, score in series]
    stacks = [
        Stack(name, [count[kind] for count in counts], color, "//" if kind == 1 else "")
        for kind, (name, color) in enumerate(zip(names, LIGHT.outcomes, strict=True))
    ]
    draw_stacks(axes, [label(m, models) for m in models], stacks, percent=False)
    axes.set_xlabel("items")


def _draw_funnel(axes: Axes, funnel: dict[str, int]) -> None:
    """Draw the number of items left after each step."""
    counts, names = list(funnel.values()), [name.replace("_", " ") for name in funnel]
    max_count = max([*counts, 1])
    axes.barh(range(len(counts)), counts, color=LIGHT.lines[0], height=0.66)
    for y, count in enumerate(counts):
        share = f"  ({formats.percent(count / max_count)} %)" if count != max_count else ""
        axes.text(count + 0.012 * max_count, y, f"{count:,}{share}", va="center", color=LIGHT.ink)
    axes.set_yticks(range(len(counts)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * max_count)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _point(axes: Axes, dose: float, score: Score, color: str, marker: str) -> None:
    draw_interval(axes, dose, score.interval, 100, color=color, linewidth=1.1, alpha=0.75, zorder=2)
    face = color if score.verdict == "contaminated" else LIGHT.paper
    gap = 100 * (score.statistic or 0.0)
    axes.plot(dose, gap, marker, color=color, markerfacecolor=face, markersize=6, zorder=3)


def _style(at: int) -> tuple[str, str, str]:
    """Return the colour, the marker and the dashes of a line."""
    cycles = (LIGHT.lines, MARKERS, _DASHES)
    color, marker, dashes = (styles[at % len(styles)] for styles in cycles)
    return color, marker, dashes


def _dodged(line: Series, at: int, n_lines: int) -> list[float]:
    """Return the doses of a line, shifted slightly so that intervals do not overlap."""
    doses = [model.dose or 0 for model, _ in line]
    step = 0.02 * max(max(doses), 1) * (at - (n_lines - 1) / 2)
    return [dose + step if dose else 0.0 for dose in doses]


# ---------------------------------------------------------------------------- in words


def _by_dose(series: Series, describe: Callable[[Score], str]) -> str:
    return "; ".join(
        f"{name}: " + ", ".join(f"{describe(score)} at dose {model.dose}" for model, score in line)
        for name, line in lines(series)
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
    parts = [f"{label(m, models)} {' / '.join(map(str, outcomes(s)))}" for m, s in series]
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
    draw: Callable[[Axes, Series, Sequence[str]], None]
    alt: Callable[[str, Series], str]
    height: float = 3.7
    height_per_model: float = 0.0
    of_any_dose: bool = False


_KINDS = (
    _Kind("gap_by_dose", "The gap against the dose", _draw_gap, _gap_alt),
    _Kind("accuracy_by_dose", "Both accuracies against the dose", _draw_accuracy, _accuracy_alt),
    _Kind(
        "paired_outcomes", "Outcome of each item", _draw_outcomes, _outcomes_alt, 1.35, 0.34, True
    ),
)


def _family_figure(
    kind: _Kind, panels: dict[str, Series], strategies: Sequence[str], folder: Path
) -> Figure:
    height = kind.height + kind.height_per_model * max(map(len, panels.values()))

    def draw(families: Sequence[str]) -> Canvas:
        n_columns = min(3, len(families))
        n_rows = math.ceil(len(families) / n_columns)
        with settings():
            canvas = Canvas(figsize=(4.6 * n_columns, height * n_rows), layout="constrained")
            handles: dict[str, Artist] = {}
            for at, family in enumerate(families, 1):
                axes = canvas.add_subplot(n_rows, n_columns, at)
                kind.draw(axes, panels[family], strategies)
                axes.set_title(family)
                artists, names = axes.get_legend_handles_labels()
                handles |= dict(zip(names, artists, strict=True))
            canvas.legend(
                list(handles.values()),
                list(handles),
                loc="outside lower left",
                ncols=2 * n_columns,
                fontsize=8,
            )
        return canvas

    svgs = save_parts(draw, list(panels), folder / kind.key)
    alts = [kind.alt(family, series) for family, series in panels.items()]
    return Figure(kind.key, kind.title, CAPTIONS[kind.key], tuple(map(FigurePanel, svgs, alts)))


def _funnel_figure(benchmark: PairedBenchmark, folder: Path) -> Figure:
    with settings():
        canvas = Canvas(figsize=(6.4, 0.5 + 0.42 * len(benchmark.funnel)), layout="constrained")
        _draw_funnel(canvas.add_subplot(), benchmark.funnel)
    steps = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in benchmark.funnel.items())
    panel = FigurePanel(save(canvas, folder / "funnel"), f"Funnel: {steps}.")
    caption = f"Items left after each step of making {benchmark.name}."
    return Figure("funnel", "From items to pairs", caption, (panel,))
