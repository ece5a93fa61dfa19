"""What commands print: text, tables, what failed, and which commands come next."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flipbench.core.files import printable

if TYPE_CHECKING:
    from flipbench.reporting.tables import Table


def say(text: object) -> None:
    """Print for people."""
    print(printable(str(text)))


def say_error(text: object) -> None:
    """Print for people on standard error."""
    print(printable(str(text)), file=sys.stderr)


def say_markdown(text: str) -> None:
    """Print Markdown: as aligned tables on a terminal, as it is into a file or pipe."""
    if not sys.stdout.isatty():
        return say(text)
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(printable(text)))


def say_aligned(table: Table) -> None:
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


def say_next(steps: Mapping[str, str]) -> None:
    """Print the commands that come next, beside the results."""
    if steps:
        width = max(map(len, steps))
        lines = [f"  {command:{width}}  # {purpose}" for command, purpose in steps.items()]
        say_error("\n".join(["Next:", *lines]))


def finish(reports: Sequence[object], steps: Mapping[str, str] | None = None) -> int:
    """Say what each stage did, and what comes next; return 1 where something failed."""
    for report in reports:
        say_error(report)
    if n_failed := sum(getattr(report, "n_failed", 0) for report in reports):
        say_error(f"{n_failed} failed; the same command tries them again")
        return 1
    say_next(steps or {})
    return 0


def command_line(command: str, *arguments: object, overrides: Sequence[str] | None = None) -> str:
    """Return a command as it is typed.

    >>> from pathlib import Path
    >>> command_line("show", Path("my bench.yaml"), "pairs.png", overrides=["seed=1"])
    "flipbench show 'my bench.yaml' pairs.png seed=1"
    """
    return shlex.join(["flipbench", command, *map(str, arguments), *(overrides or ())])
