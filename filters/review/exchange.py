"""Verdicts to and from other tools: CSV here, Label Studio's JSON in its own file."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from flipbench.core.errors import DataError

from ..effective_verdicts import REASONS, join_reason, split_reason
from .label_studio import read_tasks
from .ledger import Decision, Ledger, RaterVerdict, Refused
from .rows import ImportedRow

NEEDED = ("edit_id", "image_sha256", "rater", "decision")
COLUMNS = (
    *NEEDED,
    "rater_kind",
    "reason",
    "note",
    "blind_answer",
    "seconds",
    "item",
    "category",
    "question",
    "options",
    "old_answer",
    "new_answer",
)
MAX_NOTE = 2000
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass
class ImportReport:
    """What an import did: new verdicts, those known already, rows that say nothing, problems."""

    n_new: int = 0
    n_known: int = 0
    n_empty: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return one line for people."""
        text = f"{self.n_new} new verdicts, {self.n_known} known already, {self.n_empty} rows"
        return f"{text} without a person's verdict, {len(self.problems)} rows that do not fit"


def export_csv(ledger: Ledger) -> str:
    """Return a row for each verdict that counts, and an empty one where no person has decided.

    Text that a spreadsheet would take for a formula gets an apostrophe in front; `read_rows` takes
    it off.
    """
    buffer = io.StringIO()
    buffer.write("\ufeff")  # or spreadsheets take UTF-8 for something else
    writer = csv.DictWriter(buffer, COLUMNS)
    writer.writeheader()
    for position, pair in enumerate(ledger.pairs):
        about = {
            "edit_id": pair.edit_id,
            "image_sha256": pair.edited.sha256,
            "item": pair.item,
            "category": pair.category,
            "question": pair.question,
            "options": json.dumps(pair.options, ensure_ascii=False),
            "old_answer": pair.old_text,
            "new_answer": pair.new_text,
        }
        decided = {r: said for r, said in ledger.said(position).items() if said.decided}
        rows = [_verdict(rater, said) for rater, said in decided.items()]
        if not any(said.kind == "person" for said in decided.values()):
            rows.append({})
        for row in rows:
            writer.writerow({name: _safe(text) for name, text in (about | row).items()})
    return buffer.getvalue()


def read_rows(data: bytes, name: str) -> tuple[list[ImportedRow], list[str]]:
    """Read a CSV file or a Label Studio export; return its rows and what is wrong with others.

    Raises
    ------
    DataError
        If the file is neither.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not UTF-8 ({error}); save it as 'CSV UTF-8'") from error
    if text.lstrip().startswith(("[", "{")):
        return read_tasks(text, name)
    head = text.partition("\n")[0]
    reader = csv.DictReader(io.StringIO(text), delimiter=";" if ";" in head else ",", strict=True)
    missing = [column for column in NEEDED if column not in (reader.fieldnames or ())]
    if missing:
        raise DataError(f"{name}: no column {', '.join(missing)}; an export has all that is needed")
    rows: list[ImportedRow] = []
    problems: list[str] = []
    try:
        for cells in reader:
            row = {key: _unsafe(text or "") for key, text in cells.items() if key is not None}
            where = f"{name}:{reader.line_num}"
            try:
                rows.append(_row(row, where))
            except ValueError as error:
                problems.append(f"{where}: {error}")
    except csv.Error as error:
        raise DataError(f"{name}:{reader.line_num}: not CSV ({error})") from error
    return rows, problems


def import_rows(
    ledger: Ledger, rows: Sequence[ImportedRow], problems: Sequence[str] = ()
) -> ImportReport:
    """Take people's verdicts into the run; each becomes its rater's newest.

    A row that does not fit the run (an unknown edit, a picture with another hash, no such decision)
    is named and left out; a verdict that the rater gave already is no new one.

    Raises
    ------
    DataError
        If no row fits the run at all.
    """
    report = ImportReport(problems=list(problems))
    new: list[tuple[str, int, RaterVerdict]] = []
    newest: dict[tuple[str, int], tuple[str, str]] = {}
    for row in rows:
        if not row.decision or row.rater_kind not in ("", "person"):
            report.n_empty += 1
            continue
        try:
            rater, position, said = _fit(ledger, row)
        except DataError as error:
            report.problems.append(f"{row.where}: {error}")
            continue
        before = ledger.said(position).get(rater)
        known = (before.decision, before.reason) if before and before.decided else None
        if newest.get((rater, position), known) == (said.decision, said.reason):
            report.n_known += 1
            continue
        newest[rater, position] = said.decision, said.reason
        new.append((rater, position, said))
    if report.problems and not new and not report.n_known:
        raise DataError(
            f"nothing was imported, {len(report.problems)} rows do not fit this run;"
            f" the first: {report.problems[0]}"
        )
    report.n_new = ledger.add(new)
    return report


def _fit(ledger: Ledger, row: ImportedRow) -> tuple[str, int, RaterVerdict]:
    position = ledger.position(row.edit_id, row.image_sha256)
    decision = row.decision.strip().lower()
    if decision not in get_args(Decision):
        raise Refused(f"decision {row.decision!r} is none of {', '.join(get_args(Decision))}")
    if row.reason and row.reason not in REASONS:
        raise Refused(f"reason {row.reason!r} is none of {', '.join(REASONS)}")
    seconds = row.seconds
    if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
        raise Refused(f"{seconds} is no number of seconds")
    reason = join_reason(row.reason, _plain(row.note))
    blind_answer = _plain(row.blind_answer) or None
    said = RaterVerdict(0, "person", decision, reason, blind_answer, seconds)  # type: ignore[arg-type]
    return ledger.reviewer(row.rater), position, said


def _verdict(rater: str, said: RaterVerdict) -> dict[str, str]:
    reason, note = split_reason(said.reason)
    return {
        "rater": rater,
        "decision": said.decision,
        "rater_kind": said.kind,
        "reason": reason,
        "note": note,
        "blind_answer": said.blind_answer or "",
        "seconds": "" if said.seconds is None else f"{said.seconds:.3f}",
    }


def _row(cells: dict[str, str], where: str) -> ImportedRow:
    seconds = float(cells["seconds"].replace(",", ".")) if cells.get("seconds") else None
    texts = {name: cells.get(name, "") for name in ImportedRow.TEXTS}
    return ImportedRow(where=where, seconds=seconds, **texts)


def _plain(text: str) -> str:
    """Return text on one line, without the halves of characters that JSON can hold."""
    return " ".join(text.split()).encode(errors="replace").decode()[:MAX_NOTE]


def _safe(text: str) -> str:
    return "'" + text if text.startswith(_FORMULA) else text


def _unsafe(text: str) -> str:
    return text[1:] if text[:1] == "'" and text[1:].startswith(_FORMULA) else text
