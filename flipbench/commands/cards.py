"""What is published about models: the contamination transparency card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flipbench.commands import MODELS, app, command_line, say, say_next


@app.command(rich_help_panel=MODELS)
def card(
    run: Annotated[
        Path, typer.Argument(help="the run directory of a detect or evaluate, or its report")
    ],
    rates: Annotated[
        Path | None,
        typer.Option(help="a report on models of known history, for the detectors' error rates"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder to write; by default that of the report")
    ] = None,
) -> None:
    """Write a contamination transparency card: what was checked, at which error rates, the result.

    As Markdown and JSON, to publish beside a model or a benchmark. Nothing is asked again.
    """
    from flipbench.evaluate.verdict.transparency_card import card_of, write_card

    made = card_of(run, rates)
    report = run / "report"
    folder = out or (report if report.is_dir() else run if run.is_dir() else run.parent)
    if len(made.findings) == 1:
        say(made.findings[0].sentence)
    else:
        say(f"{len(made.findings)} models, {len(made.checks)} rules of detectors")
    say("\n".join(map(str, write_card(made, folder))))
    if made.rates is None:
        again = command_line("card", run, "--rates", "REPORT")
        say_next({again: "states the error rates of a study of models of known history"})
