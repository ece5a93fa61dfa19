"""Do what is left of a population study: ``python -m studies.population CONFIG``."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Annotated

import typer

from flipbench.cli import main
from flipbench.commands.printing import say, say_error, say_next
from studies.population import settings
from studies.population import study as population

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def run_population(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="a YAML file with phases")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="e.g. seed=1")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the budget only")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress bars")] = False,
    workers: Annotated[int, typer.Option(min=1, help="processes that share the work")] = 1,
    trust: Annotated[
        bool, typer.Option("--trust", help="run code that somebody else's configuration names")
    ] = False,
) -> None:
    """Print a population study's budget, and train, ask and score what is left of it."""
    study = settings.load_study(config, overrides or [], trust=trust)
    say(population.budget(study))
    if dry_run:
        return
    if not quiet:
        logging.getLogger("studies.population").setLevel(logging.INFO)
    failed = population.run_study(study, workers)
    say(f"the study's models and answers: {study.run}")
    for message in failed:
        say_error(message)
    if failed:
        raise typer.Exit(1)
    page = f"python -m studies.population.page {shlex.quote(str(study.run))}"
    say_next({page: "makes the study's tables"})


if __name__ == "__main__":
    main(app)
