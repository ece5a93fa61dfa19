"""The commands of ``flipbench``, and what they share.

Reading order: ``demo``, ``stages`` (the loop), ``benchmarks`` (import, audit, export), ``models``
(detectors and models), ``detect`` (one model), ``cards`` (what is published about models),
``people`` (review, adjudicate).

A command parses its arguments, calls one function of ``pipelines`` or a stage, and prints; heavy
imports are inside the command, so that ``--help`` is fast. To add a command, decorate a function
with ``app.command`` in the file of its panel.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from flipbench import __version__
from flipbench.core.files import printable

if TYPE_CHECKING:
    from flipbench.api.stages.assembly import Assembly
    from flipbench.config.experiment import Config
    from flipbench.reporting.tables import Table

ORDER = (
    *("demo", "generate", "filter", "review", "agreement", "contaminate", "evaluate", "run"),
    *("init", "import", "audit", "adjudicate", "export", "rebuild", "show"),
    *("detect", "gap", "detectors", "validate", "card", "power", "claims", "doctor"),
)
"""The commands as ``--help`` lists them; others follow."""


MOVED = {"simulate-confound": "python -m studies.confound"}
"""Commands of earlier versions that are studies of a checkout now."""


class _Commands(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[:1] and (study := MOVED.get(args[0])):
            ctx.fail(f"{args[0]} is no command any more; in a checkout, run `{study}`")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=lambda x: ORDER.index(x) if x in ORDER else len(ORDER))


app = typer.Typer(
    cls=_Commands,
    help="""Answer-flipped benchmarks, controlled contamination, contamination detectors.

    Start with `flipbench demo`: everything on a laptop, in minutes, without weights, key or GPU.
    Then `flipbench init MYBENCH.tsv` writes a configuration, and `flipbench run` does what it says.

    A run directory holds all results. The same command again continues where it stopped.
    Exit status: 0 done, 1 some items failed, 2 wrong use.""",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"flipbench {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    pass


ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="a YAML file, see configs/")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="e.g. seed=1 contaminate.epochs=2"),
]
Limit = Annotated[int | None, typer.Option(min=1, help="take the first N items only")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="count the work, do nothing")]
Kept = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="make exactly the pairs of this kept.csv; nobody judges"),
]
Workers = Annotated[
    int, typer.Option(min=1, help="processes that share the work, one for each GPU")
]
Slurm = Annotated[
    bool, typer.Option("--slurm", help="the workers are jobs of a SLURM array (executor.slurm)")
]
Worker = Annotated[str | None, typer.Option(hidden=True)]  # i/n, set by the parent process
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="run code and use servers that a configuration from somebody else's run names",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress bars")]


STAGES, BENCHMARKS, MODELS = "The loop", "Benchmarks", "Models"  # panels of --help


def assemble(
    config: Path,
    overrides: list[str] | None,
    limit: int | None = None,
    quiet: bool = True,
    *,
    workers: int = 1,
    worker: str | None = None,
    slurm: bool = False,
    together: bool = False,
    store: bool = True,
    trust: bool = False,
) -> Assembly:
    """Load a configuration, and only then what is slow to import.

    ``together`` is for commands that several processes of ``accelerate launch`` may do as one.
    Without ``store``, for those that make nothing, the run's stored configuration stays as it is.
    ``trust`` as for `load_config`.
    """
    from flipbench.config.experiment import load_config
    from flipbench.core.errors import ConfigError
    from flipbench.core.locks import Share
    from flipbench.core.processes import exit_with_parent, is_main, n_processes
    from flipbench.distributed.workers import WORKER_VARIABLE

    if n_processes() > 1 and (workers > 1 or not together):
        raise ConfigError(
            "accelerate launch is for flipbench contaminate, without --workers: its processes train"
            " one model together; everything else is shared out by --workers alone"
        )
    if worker and os.environ.get(WORKER_VARIABLE):
        exit_with_parent()
        logging.getLogger().setLevel(logging.ERROR)  # the parent speaks
    if not is_main():
        logging.getLogger().setLevel(logging.CRITICAL)
    loaded = load_config(config, overrides or [], trust=trust)
    from flipbench.api.stages.assembly import Assembly

    return Assembly.open(
        loaded,
        limit=limit,
        progress=not quiet and is_main(),
        command="flipbench " + " ".join(sys.argv[1:]),
        n_workers=workers,
        share=Share.parse(worker) if worker else None,
        slurm=slurm,
        store=store,
    )


def say(text: str) -> int:
    """Print for people; return exit status 0."""
    print(printable(text))
    return 0


def say_error(text: object) -> None:
    """Print for people on standard error."""
    print(printable(str(text)), file=sys.stderr)


def say_markdown(text: str) -> int:
    """Print Markdown: as aligned tables on a terminal, as it is into a file or pipe."""
    if not sys.stdout.isatty():
        return say(text)
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(printable(text)))
    return 0


def say_aligned(table: Table) -> int:
    """Print a table with aligned columns, as wide as the terminal; whole lines into a pipe."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Columns

    columns = Columns(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    columns.add_column(table.stub, no_wrap=True)
    for column in table.columns:
        columns.add_column(column.header, justify="right" if column.numeric else "left")
    for title, rows in table.groups:
        if title:
            columns.add_section()
            columns.add_row(printable(title), style="bold")
        for row in rows:
            columns.add_row(*map(printable, (row.header, *(c.plain() for c in row.cells))))
    console = Console() if sys.stdout.isatty() else Console(width=200)
    with console.capture() as captured:
        console.print(columns, markup=False, highlight=False)
    print("\n".join(line.rstrip() for line in captured.get().rstrip().splitlines()))
    return 0


def finish(
    reports: Sequence[object], *, quiet: bool = False, then: Mapping[str, str] | None = None
) -> None:
    """Say what each stage did, and what comes next; exit with 1 where something failed."""
    failed = 0
    for report in reports:
        if not quiet:
            say_error(report)
        failed += getattr(report, "n_failed", 0)
    if failed and quiet:
        raise typer.Exit(1)  # the parent process tries them once more, and tells
    if failed:
        say_error(f"{failed} failed; the same command tries them again")
        raise typer.Exit(1)
    if then and not quiet:
        say_next(then)


def say_next(steps: Mapping[str, str]) -> int:
    """Print the commands that come next, beside the results; return exit status 0."""
    width = max(map(len, steps))
    lines = [f"  {command:{width}}  # {purpose}" for command, purpose in steps.items()]
    say_error("\n".join(["Next:", *lines]))
    return 0


@dataclass(frozen=True)
class Again:
    """The configuration, overrides and limit of a command, for the ones that come next."""

    config: Path
    overrides: Sequence[str] | None = None
    limit: int | None = None

    def __call__(self, command: str, *arguments: str) -> str:
        """Return a command line on the same configuration."""
        limit = [] if self.limit is None else ["--limit", self.limit]
        given = [*arguments, *limit]
        return command_line(command, self.config, *given, overrides=self.overrides)

    def then(self, loaded: Config) -> dict[str, str]:
        """Return what comes next when there are pairs."""
        if loaded.models and loaded.contaminate.strategies:
            return {self("contaminate", "--dry-run"): "plans, hours and disk of the training"}
        if loaded.models:
            return {self("evaluate", "--dry-run"): "the questions to the models"}
        without_limit = Again(self.config, self.overrides)
        return {
            without_limit("export", "OUT", "--format", "vlmeval"): "the pairs for another kit",
            "flipbench detect --model MODEL --benchmark " + shlex.quote(str(loaded.run)): (
                "was this model trained on the originals?"
            ),
        }


def command_line(command: str, *arguments: object, overrides: Sequence[str] | None = None) -> str:
    """Return a command as it is typed.

    >>> command_line("show", Path("my bench.yaml"), "pairs.png", overrides=["seed=1"])
    "flipbench show 'my bench.yaml' pairs.png seed=1"
    """
    return shlex.join(["flipbench", command, *map(str, arguments), *(overrides or ())])
