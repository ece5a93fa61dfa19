"""A verdict as imported from another tool, before it is checked against the run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ImportedRow:
    """A row of a table or an annotation; ``where`` is its location in messages."""

    where: str
    edit_id: str
    image_sha256: str
    rater: str
    decision: str
    rater_kind: str = ""
    reason: str = ""
    note: str = ""
    blind_answer: str = ""
    seconds: float | None = None
