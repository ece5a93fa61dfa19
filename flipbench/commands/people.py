"""People's verdicts: the review page, and files in and out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flipbench.commands import STAGES, app, say
from flipbench.errors import ConfigError


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
    from flipbench.filters.review.serve import export_verdicts, import_verdicts, serve_review

    if export and import_:
        raise ConfigError("--export and --import: one at a time")
    if export:
        raise typer.Exit(say(f"{export_verdicts(run, export):,} verdicts in {export}"))
    if import_:
        report = import_verdicts(run, import_)
        say(str(report))
        raise typer.Exit(1 if report.problems else 0)
    token = os.environ.get("FLIPBENCH_REVIEW_TOKEN") or None
    serve_review(run, host=host, port=port, token=token, blind=blind)
