"""People's verdicts: the review page, its two tasks, and files in and out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flipbench.commands import (
    BENCHMARKS,
    STAGES,
    Again,
    ConfigPath,
    Overrides,
    Trust,
    app,
    assemble,
    command_line,
    say,
    say_error,
    say_markdown,
    say_next,
)
from flipbench.core.errors import ConfigError

if TYPE_CHECKING:
    from flipbench.filters.review.exchange import ImportReport

_SHOWN = 20
Host = Annotated[str, typer.Option(help="another address than loopback needs a token")]
Port = Annotated[int, typer.Option(min=0, max=65535)]
Export = Annotated[
    Path | None, typer.Option(help="write verdicts to a CSV, or a Label Studio .json, and end")
]
Import = Annotated[
    Path | None, typer.Option("--import", help="take verdicts from such a file, and end")
]


@app.command(rich_help_panel=STAGES)
def review(
    run: Annotated[Path, typer.Argument(help="a run directory with edits")],
    host: Host = "127.0.0.1",
    port: Port = 8765,
    blind: Annotated[
        bool, typer.Option("--blind", help="answer first, then see the new answer")
    ] = False,
    doubtful: Annotated[
        bool, typer.Option("--doubtful", help="only what 'flipbench filter' left undecided")
    ] = False,
    export: Export = None,
    import_: Import = None,
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
    if blind and (import_ or export):
        raise ConfigError("--blind is for the page: whoever opens a file sees the new answer")
    if import_:
        report = import_verdicts(run, import_)
        raise typer.Exit(_say_import(report, run, _with_verdicts(run)))
    edit_ids = read_doubtful(run / FOLDER / "reasons.csv") if doubtful else None
    if doubtful and not edit_ids:
        raise typer.Exit(say("no pair is doubtful: nothing to review"))
    if export:
        n_pairs = export_verdicts(run, export, edit_ids)
        say(f"{n_pairs:,} pairs with their verdicts in {export}{_labelling(export)}")
        back = command_line("review", run, "--import", _filled(export))
        raise typer.Exit(say_next({back: "reads the verdicts that people filled in"}))
    serve_review(run, host=host, port=port, token=_token(), blind=blind, edit_ids=edit_ids)
    say_next(_with_verdicts(run))


def _labelling(export: Path) -> str:
    if export.suffix != ".json":
        return ""
    return f", their labelling configuration for Label Studio in {export.with_suffix('.xml')}"


def _filled(export: Path) -> Path:
    """Return the file to import: people fill in the table, but Label Studio exports a new file."""
    return Path("EXPORTED.json") if export.suffix == ".json" else export


def _say_import(report: ImportReport, run: Path, then: Mapping[str, str]) -> int:
    say(f"{report}, in {run}")
    for problem in report.problems[:_SHOWN]:
        say_error(f"left out: {problem}")
    if len(report.problems) > _SHOWN:
        say_error(f"... and {len(report.problems) - _SHOWN} more")
    say_next(then)
    return 1 if report.problems else 0


def _with_verdicts(run: Path) -> dict[str, str]:
    return {command_line("filter", run / "config.yaml"): "keeps the pairs by these verdicts"}


@app.command(rich_help_panel=BENCHMARKS)
def adjudicate(
    config: ConfigPath,
    overrides: Overrides = None,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    agreement: Annotated[
        bool, typer.Option("--agreement", help="print labels and kappa, write tables, and end")
    ] = False,
    export: Export = None,
    import_: Import = None,
    trust: Trust = False,
) -> None:
    """Serve the page on which people label the corpus pictures that an audit has flagged.

    A benchmark picture is shown beside each. A token as for `flipbench review`.
    """
    assembly = assemble(config, overrides, trust=trust)
    from flipbench.filters.agreement.adjudication import adjudication_of, write_adjudication
    from flipbench.filters.review.serve import export_verdicts, import_verdicts, serve_review
    from flipbench.filters.review.tasks import ADJUDICATION

    if sum(map(bool, (agreement, export, import_))) > 1:
        raise ConfigError("give only one of --agreement, --export and --import")
    run = assembly.run
    if agreement:
        outcome = adjudication_of(run, seed=assembly.config.seed)
        page = write_adjudication(outcome, run.path)
        say_markdown(page.read_text())
        raise typer.Exit(say(f"{outcome}\n{page}"))
    again = Again(config, overrides)
    then = {again("adjudicate", "--agreement"): "labels, kappa and tables"}
    if import_:
        report = import_verdicts(run.path, import_, ADJUDICATION)
        raise typer.Exit(_say_import(report, run.path, then))
    if export:
        n_pairs = export_verdicts(run.path, export, task=ADJUDICATION)
        say(f"{n_pairs:,} pairs with their labels in {export}{_labelling(export)}")
        back = again("adjudicate", "--import", str(_filled(export)))
        raise typer.Exit(say_next({back: "reads the labels that people filled in"}))
    serve_review(run.path, host=host, port=port, token=_token(), task=ADJUDICATION)
    say_next(then)


def _token() -> str | None:
    return os.environ.get("FLIPBENCH_REVIEW_TOKEN") or None
