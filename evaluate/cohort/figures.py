"""The figure of the confound simulation."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from flipbench.core.errors import ConfigError
from flipbench.core.files import atomic_file

from .simulation import N_ANCHORS, ConfoundSimulation
from .tail_enrichment import FLAG_SHARE, LEVELS

FORMATS = (".png", ".svg", ".pdf")
SIMULATED, PREDICTED, LEVEL = "#0072b2", "#d55e00", "#565e68"


def draw_confound(simulation: ConfoundSimulation, path: Path) -> Path:
    """Draw the parity run and the sweep side by side into a .png, .svg or .pdf file.

    Raises
    ------
    ConfigError
        If the file is to be of another format.
    DataError
        If it cannot be written.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"{path}: a figure is written as one of {', '.join(FORMATS)}")
    figure = Figure(figsize=(8.6, 3.4), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    places = range(len(simulation.parity))
    shares = [model.published.above[1] for model in simulation.parity]
    left.bar(places, [100 * (share.value or 0) for share in shares], 0.6, color=SIMULATED)
    left.set_xticks(places, [f"gain {model.gain:g}" for model in simulation.parity])
    left.set_title("Parity run: five models, none contaminated", fontsize=10)
    left.set_ylabel(f"items with delta > {LEVELS[1]:g}, %")
    points = simulation.sweep
    counts = [point.n_low for point in points]
    right.plot(counts, [100 * p.closed_form for p in points], "--", color=PREDICTED)
    right.plot(counts, [100 * p.share for p in points], "o", color=SIMULATED)
    right.set_xticks(counts)
    right.set_xlabel(f"models of low gain beside {N_ANCHORS} of gain 1")
    right.set_title("Probe of gain 1: points simulated, line closed form", fontsize=10)
    for axes in (left, right):
        axes.axhline(100 * FLAG_SHARE, color=LEVEL, linewidth=0.8, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
    left.annotate("flagged above", (0, 100 * FLAG_SHARE), (-0.4, 100 * FLAG_SHARE + 0.6))
    with atomic_file(path) as partial:
        figure.savefig(partial, format=path.suffix.lower().removeprefix("."))
    return path
