"""Draw a family of models on one set of axes: gap, accuracies, outcomes; and the funnel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from flipbench.core.rates import wilson_interval
from flipbench.core.records import Count, Score
from flipbench.reporting import formats
from flipbench.reporting.figures import LIGHT, Stack, draw_interval, draw_stacks

from ..protocol.grid import GridModel
from .tables import label

Series = list[tuple[GridModel, Score]]


_MARKERS = "osD^vPX<"
_DASHES = ("-", "--", "-.", ":")

Draw = Callable[[Axes, Series, Sequence[str]], None]


def draw_gap(axes: Axes, series: Series, strategies: Sequence[str]) -> None:
    """Draw the gap against the dose; filled marks are verdicts "contaminated"."""
    axes.axhline(0, color=LIGHT.muted, linewidth=0.8, zorder=1)
    for name, line in lines(series):
        at = strategies.index(name)
        color, marker = _style(at)
        dashes = _DASHES[at % len(_DASHES)]
        gaps = [100 * (s.statistic or 0.0) for _, s in line]
        doses = _dodged(line, at, len(strategies))
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


def draw_accuracy(axes: Axes, series: Series, strategies: Sequence[str]) -> None:
    """Draw original (solid, filled) and perturbed (dashed, open) accuracy against the dose.

    Thin lines are Wilson intervals.
    """
    for name, line in lines(series):
        at = strategies.index(name)
        color, marker = _style(at)
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


def draw_outcomes(axes: Axes, series: Series, strategies: Sequence[str]) -> None:
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


def draw_funnel(axes: Axes, funnel: dict[str, int]) -> None:
    """Draw the number of items left after each step."""
    counts, names = list(funnel.values()), [name.replace("_", " ") for name in funnel]
    most = max([*counts, 1])
    axes.barh(range(len(counts)), counts, color=LIGHT.lines[0], height=0.66)
    for y, count in enumerate(counts):
        share = f"  ({formats.percent(count / most)} %)" if count != most else ""
        axes.text(count + 0.012 * most, y, f"{count:,}{share}", va="center", color=LIGHT.ink)
    axes.set_yticks(range(len(counts)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.3 * most)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)


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
        trained = [(m, s) for m, s in line if not m.clean]
        if len(trained) > 1 and len({m.dose for m, _ in trained}) == 1:
            by_line[key] = trained
    return [(strategy, line) for (strategy, _), line in by_line.items()] or [
        (series[0][0].strategy, clean)
    ]


def _point(axes: Axes, dose: float, score: Score, color: str, marker: str) -> None:
    draw_interval(axes, dose, score.interval, 100, color=color, linewidth=1.1, alpha=0.75, zorder=2)
    face = color if score.verdict == "contaminated" else LIGHT.paper
    gap = 100 * (score.statistic or 0.0)
    axes.plot(dose, gap, marker, color=color, markerfacecolor=face, markersize=6, zorder=3)


def _style(at: int) -> tuple[str, str]:
    """Return the colour and the marker of a line."""
    return LIGHT.lines[at % len(LIGHT.lines)], _MARKERS[at % len(_MARKERS)]


def _dodged(line: Series, at: int, n_lines: int) -> list[float]:
    """Return the doses of a line, shifted slightly so that intervals do not overlap."""
    doses = [model.dose or 0 for model, _ in line]
    step = 0.02 * max(max(doses), 1) * (at - (n_lines - 1) / 2)
    return [dose + step if dose else 0.0 for dose in doses]


def dose_axis(axes: Axes, most: float) -> None:
    """Label the axis of doses up to ``most``; large doses are on a logarithmic scale."""
    if most > 20:
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("dose: copies × epochs (0 = clean)")


def outcomes(score: Score) -> tuple[int, int, int, int]:
    """Return how many items were right on both, right → wrong, wrong → right, wrong on both."""
    right, changes = score.accuracies["original"], list(score.per_item.values())
    paired = score.paired
    b, c = (paired.b, paired.c) if paired else (changes.count(-1.0), changes.count(1.0))
    return right.k - b, b, c, right.n - right.k - c
