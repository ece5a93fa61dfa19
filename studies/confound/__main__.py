"""Print the confound simulation: ``python -m studies.confound``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flipbench.cli import main
from flipbench.commands.printing import say, say_markdown
from flipbench.core.errors import DataError
from flipbench.evaluate.cohort.tail_enrichment import FLAG_SHARE, LEVELS
from flipbench.reporting.figures import LIGHT, save, settings
from flipbench.reporting.writers import markdown
from studies.confound import simulation
from studies.confound.simulation import N_ANCHORS, ConfoundSimulation

SIMULATED, PREDICTED, *_ = LIGHT.lines
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def simulate_confound(
    figure: Annotated[
        Path | None, typer.Option(help="draw the result as well: PATH.svg and PATH.png")
    ] = None,
    seed: Annotated[int, typer.Option(help="the published run's by default")] = simulation.SEED,
    repeats: Annotated[
        int, typer.Option(min=1, help="cohorts drawn for each composition")
    ] = simulation.N_REPEATS,
) -> None:
    """Show how models that differ in gain alone look contaminated when compared with each other."""
    result = simulation.simulate_confound(seed=seed, n_repeats=repeats)
    say_markdown("\n".join(map(markdown, simulation.confound_tables(result))).rstrip())
    if figure:
        say("\n".join(map(str, draw_confound(result, figure))))


def draw_confound(result: ConfoundSimulation, path: Path) -> tuple[Path, Path]:
    """Write the parity run and the sweep side by side as ``path.svg`` and ``path.png``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(_canvas(result), path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error
    return path.with_suffix(".svg"), path.with_suffix(".png")


def _canvas(result: ConfoundSimulation) -> Figure:
    with settings():
        canvas = Figure(figsize=(8.6, 3.3), layout="constrained")
        left, right = canvas.subplots(1, 2, sharey=True)
        _draw_parity(left, result)
        _draw_sweep(right, result)
        for axes in (left, right):
            axes.axhline(100 * FLAG_SHARE, color=LIGHT.muted, linewidth=0.8, linestyle=":")
    return canvas


def _draw_parity(axes: Axes, result: ConfoundSimulation) -> None:
    shares = [100 * (model.published.above[1].value or 0) for model in result.parity]
    places = range(len(shares))
    axes.bar(places, shares, 0.6, color=SIMULATED)
    axes.set_xticks(places, [f"gain {model.gain:g}" for model in result.parity])
    axes.set_ylabel(f"items with delta > {LEVELS[1]:g}, %")
    axes.set_title("Five models, none contaminated")


def _draw_sweep(axes: Axes, result: ConfoundSimulation) -> None:
    counts = [point.n_low for point in result.sweep]
    axes.plot(counts, [100 * p.closed_form for p in result.sweep], "--", color=PREDICTED)
    axes.plot(counts, [100 * p.share for p in result.sweep], "o", color=SIMULATED)
    axes.set_xticks(counts)
    axes.set_xlabel(f"models of low gain beside {N_ANCHORS} of gain 1")
    axes.set_title("The same model of gain 1 in other company")


if __name__ == "__main__":
    main(app)
