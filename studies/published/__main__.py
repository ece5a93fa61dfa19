"""Recompute tables of the published audit: ``python -m studies.published TABLE.csv …``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flipbench.cli import main
from flipbench.commands.printing import say
from studies.published.audit import examine_audit, read_audit

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def recompute(
    paths: Annotated[
        list[Path], typer.Argument(metavar="TABLE.csv...", help="in tests/published, audit_*.csv")
    ],
) -> None:
    """Recompute corrected p-values, tails and overlaps that an audit of several models printed.

    Exit status 1 where something cannot be true.
    """
    tables = list(map(read_audit, dict.fromkeys(paths)))
    lines, issues = [f"rows of audits: {sum(map(len, tables))}"], examine_audit(tables)
    for name, is_error in (("cannot all be true", True), ("odd, but possible", False)):
        texts = [f"  {issue}" for issue in issues if issue.wrong == is_error]
        lines += [
            "",
            f"{len(texts)} {'finding' if len(texts) == 1 else 'findings'}: {name}",
            *texts,
        ]
    say("\n".join(lines))
    raise typer.Exit(1 if any(issue.wrong for issue in issues) else 0)


if __name__ == "__main__":
    main(app)
