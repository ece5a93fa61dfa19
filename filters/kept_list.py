"""The kept list: a file by which anyone with the same run can rebuild the same pairs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from flipbench.errors import DataError
from flipbench.filters.decide import Ruling
from flipbench.filters.tables import Table
from flipbench.paired import Candidate

HEADERS = ("item", "item_id", "edit_id", "image_sha256", "category", "decided_by")


def kept_table(rulings: Sequence[Ruling]) -> Table:
    """Return one row for each kept pair, in order."""
    rows = []
    for ruling in rulings:
        item, edit = ruling.candidate.item, ruling.candidate.edit
        if ruling.kept and edit is not None:
            made_of = (item.name, item.id, edit.id, edit.image.sha256, item.category)
            rows.append((*made_of, "; ".join(ruling.decided_by)))
    return Table("kept", "The kept pairs.", HEADERS, tuple(rows))


def select_kept(path: Path, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that a kept list names, in the list's order.

    Raises
    ------
    DataError
        Where the file cannot be read, names an item twice, or names one that the run lacks or has
        drawn otherwise; all such lines are named, and nothing is returned.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a kept list ({error})") from error
    if rows and not {"item_id", "image_sha256"} <= set(rows[0]):
        raise DataError(f"{path}: a kept list has the columns item_id and image_sha256")
    by_id = {candidate.item.id: candidate for candidate in candidates}
    chosen: dict[str, Candidate] = {}
    problems = []
    for line, row in enumerate(rows, 2):
        candidate, wanted = by_id.get(row["item_id"] or ""), row["image_sha256"]
        if candidate is None or candidate.edit is None:
            problems.append(f"line {line}: {row.get('item') or row['item_id']} is not in this run")
        elif candidate.edit.image.sha256 != wanted:
            problems.append(f"line {line}: the run has another picture of {candidate.subject}")
        elif candidate.item.id in chosen:
            problems.append(f"line {line}: {candidate.subject} is named twice")
        else:
            chosen[candidate.item.id] = candidate
    if problems:
        more = f"\n  ... and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise DataError(
            f"{path}: not a list of this run's pairs; was it made with the same items and seed?\n  "
            + "\n  ".join(problems[:5])
            + more
        )
    return list(chosen.values())
