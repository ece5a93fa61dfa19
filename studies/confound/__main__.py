"""Print the confound simulation: ``python -m studies.confound``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flipbench.cli import main
from flipbench.commands import say, say_markdown
from flipbench.reporting.writers import markdown
from studies.confound import simulation
from studies.confound.figures import draw_confound

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


if __name__ == "__main__":
    main(app)
