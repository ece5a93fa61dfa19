"""The figure of the confound simulation."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from flipbench.core.errors import DataError
from flipbench.evaluate.cohort.tail_enrichment import FLAG_SHARE, LEVELS
from flipbench.reporting import formats
from flipbench.reporting.figures import LIGHT, Figure, FigurePanel, save, settings, svg_text
from studies.confound.simulation import N_ANCHORS, ConfoundSimulation

SIMULATED, PREDICTED, *_ = LIGHT.lines


def confound_figure(simulation: ConfoundSimulation) -> Figure:
    """Return the parity run and the sweep side by side, for a page."""
    run = ", ".join(
        f"gain {model.gain:g}: {formats.percent(model.published.above[1].value or 0)}"
        for model in simulation.parity
    )
    sweep = ", ".join(f"{p.n_low}: {formats.percent(p.share)}" for p in simulation.sweep)
    return Figure(
        key="confound",
        title="Models that differ in gain alone",
        caption=f"Left: five models that have seen no item. Right: a model of gain 1 among"
        f" {N_ANCHORS} others of gain 1 and some of low gain, simulated (points) and without noise"
        f" (line). The published rule flags what is above the dotted line, {100 * FLAG_SHARE:g} %.",
        panels=(
            FigurePanel(
                svg_text(_canvas(simulation)),
                f"Percentage of items above {LEVELS[1]:g}. Parity run: {run}. By models of low"
                f" gain in the cohort: {sweep}.",
            ),
        ),
    )


def draw_confound(simulation: ConfoundSimulation, path: Path) -> tuple[Path, Path]:
    """Write the same figure as ``path.svg`` and ``path.png``; return both paths.

    Raises
    ------
    DataError
        If they cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(_canvas(simulation), path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error
    return path.with_suffix(".svg"), path.with_suffix(".png")


def _canvas(simulation: ConfoundSimulation) -> Canvas:
    with settings():
        canvas = Canvas(figsize=(8.6, 3.3), layout="constrained")
        left, right = canvas.subplots(1, 2, sharey=True)
        _draw_parity(left, simulation)
        _draw_sweep(right, simulation)
        for axes in (left, right):
            axes.axhline(100 * FLAG_SHARE, color=LIGHT.muted, linewidth=0.8, linestyle=":")
    return canvas


def _draw_parity(axes: Axes, simulation: ConfoundSimulation) -> None:
    shares = [100 * (model.published.above[1].value or 0) for model in simulation.parity]
    places = range(len(shares))
    axes.bar(places, shares, 0.6, color=SIMULATED)
    axes.set_xticks(places, [f"gain {model.gain:g}" for model in simulation.parity])
    axes.set_ylabel(f"items with delta > {LEVELS[1]:g}, %")
    axes.set_title("Five models, none contaminated")


def _draw_sweep(axes: Axes, simulation: ConfoundSimulation) -> None:
    counts = [point.n_low for point in simulation.sweep]
    axes.plot(counts, [100 * p.closed_form for p in simulation.sweep], "--", color=PREDICTED)
    axes.plot(counts, [100 * p.share for p in simulation.sweep], "o", color=SIMULATED)
    axes.set_xticks(counts)
    axes.set_xlabel(f"models of low gain beside {N_ANCHORS} of gain 1")
    axes.set_title("The same model of gain 1 in other company")
