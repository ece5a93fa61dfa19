"""The kept list: a file from which the same pairs can be rebuilt from the run or its recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flipbench.benchmarks.tables import numbered_rows
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Item

from .decide import Ruling

HEADERS = ("item", "item_id", "edit_id", "image_sha256", "category", "decided_by")


def kept_rows(rulings: Sequence[Ruling]) -> list[tuple[str, ...]]:
    """Return one row under `HEADERS` for each kept pair, in order."""
    rows: list[tuple[str, ...]] = []
    for ruling in rulings:
        item, edit = ruling.candidate.item, ruling.candidate.edit
        if ruling.kept and edit is not None:
            pair = (item.name, item.id, edit.id, edit.image.sha256, item.category)
            rows.append((*pair, "; ".join(ruling.decided_by)))
    return rows


@dataclass(frozen=True)
class KeptRow:
    """One row of a kept list and its line number; ``decided_by`` is empty if nobody judged it."""

    line: int
    item: str
    item_id: str
    image_sha256: str
    decided_by: str = ""
    edit_id: str = ""


def read_kept(path: Path) -> list[KeptRow]:
    """Return the rows of a kept list.

    Raises
    ------
    DataError
        If the file cannot be read, is not a kept list, is empty, or repeats an item.
    """
    columns, rows = numbered_rows(path)
    if not rows or not {"item_id", "image_sha256"} <= set(columns):
        raise DataError(f"{path}: a kept list needs rows with the columns item_id and image_sha256")
    rows_by_id: dict[str, KeptRow] = {}
    problems = []
    for line, row in rows:
        item_id = row["item_id"]
        name = row.get("item") or item_id or "the row"
        if item_id in rows_by_id:
            problems.append(f"line {line}: {name} is listed twice")
        rows_by_id[item_id] = KeptRow(
            line,
            name,
            item_id,
            row["image_sha256"],
            row.get("decided_by") or "",
            row.get("edit_id") or "",
        )
    _refuse(path, problems)
    return list(rows_by_id.values())


def listed_items(path: Path, items: Sequence[Item]) -> list[Item]:
    """Return the items in a kept list, in the list's order.

    Raises
    ------
    DataError
        As `read_kept`, or if an item is not in ``items``; the message lists such lines.
    """
    by_id, rows = {item.id: item for item in items}, read_kept(path)
    unknown = [row for row in rows if row.item_id not in by_id]
    _refuse(path, [f"line {r.line}: {r.item} is not in this benchmark" for r in unknown])
    return [by_id[row.item_id] for row in rows]


def select_kept(path: Path, candidates: Sequence[Candidate], images: ImageStore) -> list[Candidate]:
    """Return the candidates in a kept list, in the list's order.

    Raises
    ------
    DataError
        As `read_kept`, or if the run lacks an item, has a different image of it, or if an image
        file does not match its hash; the message lists such lines.
    """
    by_id, rows = {candidate.item.id: candidate for candidate in candidates}, read_kept(path)
    problems = [(row.line, _problem(row, by_id.get(row.item_id), images)) for row in rows]
    _refuse(path, [f"line {line}: {problem}" for line, problem in problems if problem])
    return [by_id[row.item_id] for row in rows]


def _problem(row: KeptRow, candidate: Candidate | None, images: ImageStore) -> str:
    """Return how a row differs from the run, or an empty string."""
    if candidate is None or candidate.edit is None:
        return f"{row.item} is not in this run"
    ref = candidate.edit.image
    if ref.sha256 != row.image_sha256:
        return f"the run has a different image of {candidate.subject}"
    if not images.has(ref):
        return (
            f"the image of {candidate.subject} was changed, or is missing ({images.path(ref)});"
            " delete it to redraw it"
        )
    return ""


def _refuse(path: Path, problems: Sequence[str]) -> None:
    if problems:
        summary = f"\n  ... and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise DataError(
            f"{path}: not a list of this run's pairs; was it made with the same items and seed?\n  "
            + "\n  ".join(problems[:5])
            + summary
        )
