"""A verdict as another tool wrote it, before anyone has looked whether it fits the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class ImportedRow:
    """One row of a table or one annotation; ``where`` names it in messages."""

    TEXTS: ClassVar[tuple[str, ...]] = (
        "edit_id",
        "image_sha256",
        "rater",
        "decision",
        "rater_kind",
        "reason",
        "note",
        "blind_answer",
    )

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
