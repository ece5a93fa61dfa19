"""Recompute tables of the published audit: ``python -m studies.published TABLE.csv …``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flipbench.cli import main
from flipbench.commands.printing import say
from flipbench.core.errors import DataError
from studies.published.audit import AuditRow, examine_audit, read_audit

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
    tables = list(map(_read, dict.fromkeys(paths)))
    lines, issues = [f"rows of audits: {sum(map(len, tables))}"], examine_audit(tables)
    wrong, odd = [i for i in issues if i.wrong], [i for i in issues if not i.wrong]
    for name, listed in (("cannot all be true", wrong), ("odd, but possible", odd)):
        lines += ["", f"{len(listed)} {'finding' if len(listed) == 1 else 'findings'}: {name}"]
        lines += [f"  {issue}" for issue in listed]
    say("\n".join(lines))
    raise typer.Exit(1 if wrong else 0)


def _read(path: Path) -> list[AuditRow]:
    rows = read_audit(path)
    if rows is None:
        raise DataError(f"{path}: no table of the audit; for others, run `flipbench doctor`")
    return rows


if __name__ == "__main__":
    main(app)
