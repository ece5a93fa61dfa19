"""People's verdicts: the review page, and files in and out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flipbench.commands import STAGES, app, say
from flipbench.core.errors import ConfigError


@app.command(rich_help_panel=STAGES)
def review(
    run: Annotated[Path, typer.Argument(help="a run directory with edits")],
    host: Annotated[str, typer.Option(help="another address than loopback needs a token")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8765,
    blind: Annotated[
        bool, typer.Option("--blind", help="answer first, then see the new answer")
    ] = False,
    doubtful: Annotated[
        bool, typer.Option("--doubtful", help="only what 'flipbench filter' left undecided")
    ] = False,
    export: Annotated[
        Path | None, typer.Option(help="write verdicts to a CSV, or a Label Studio .json, and end")
    ] = None,
    import_: Annotated[
        Path | None, typer.Option("--import", help="take verdicts from such a file, and end")
    ] = None,
) -> None:
    """Serve the page on which people judge edited pairs; every verdict is on disk at once.

    A token for other addresses may be given in FLIPBENCH_REVIEW_TOKEN; else one is made and
    printed once.
    """
    from flipbench.filters.funnel import read_doubtful
    from flipbench.filters.pipeline import FOLDER
    from flipbench.filters.review.serve import export_verdicts, import_verdicts, serve_review

    if import_ and (export or doubtful):
        raise ConfigError("--import is for a file's verdicts alone: not with --export, --doubtful")
    if import_:
        report = import_verdicts(run, import_)
        say(str(report))
        raise typer.Exit(1 if report.problems else 0)
    edit_ids = read_doubtful(run / FOLDER / "reasons.csv") if doubtful else None
    if doubtful and not edit_ids:
        raise typer.Exit(say("no pair is doubtful: nothing to review"))
    if export:
        n_pairs = export_verdicts(run, export, edit_ids)
        raise typer.Exit(say(f"{n_pairs:,} pairs with their verdicts in {export}"))
    token = os.environ.get("FLIPBENCH_REVIEW_TOKEN") or None
    serve_review(run, host=host, port=port, token=token, blind=blind, edit_ids=edit_ids)
