"""Import and export of verdicts: CSV here, Label Studio in `label_studio`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import get_args

from flipbench.core.errors import DataError
from flipbench.models.protocols import Decision

from ..effective_verdicts import REASONS, join_reason, split_reason
from .label_studio import read_tasks
from .ledger import ImportedRow, Ledger, RaterVerdict, Refused

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
    """Counts of an import: new and known verdicts, rows without a verdict; and its problems."""

    n_new: int = 0
    n_known: int = 0
    n_empty: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return one line for people."""
        text = f"{self.n_new} new verdicts, {self.n_known} already known, {self.n_empty} rows"
        return f"{text} without a person's verdict, {len(self.problems)} rows that do not fit"


def export_csv(ledger: Ledger) -> str:
    """Return a row per effective verdict, and an empty row per pair without a person's verdict.

    Text that a spreadsheet would interpret as a formula gets a leading apostrophe, which
    `read_rows` removes.
    """
    buffer = io.StringIO()
    buffer.write("\ufeff")  # so that spreadsheets recognise UTF-8
    writer = csv.DictWriter(buffer, COLUMNS)
    writer.writeheader()
    for position, pair in enumerate(ledger.pairs):
        columns = {
            "edit_id": pair.edit_id,
            "image_sha256": pair.edited.sha256,
            "item": pair.item,
            "category": pair.category,
            "question": pair.question,
            "options": json.dumps(pair.options, ensure_ascii=False),
            "old_answer": pair.old_text,
            "new_answer": pair.new_text,
        }
        decided = ledger.decided(position)
        rows = [_cells(rater, verdict) for rater, verdict in decided.items()]
        if not any(verdict.kind == "person" for verdict in decided.values()):
            rows.append({})
        for row in rows:
            writer.writerow({name: _safe(text) for name, text in (columns | row).items()})
    return buffer.getvalue()


def read_rows(data: bytes, name: str) -> tuple[list[ImportedRow], list[str]]:
    """Read a CSV file or a Label Studio export; return its rows and the problems of others.

    Raises
    ------
    DataError
        If the file is neither of the two.
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
        raise DataError(f"{name}: no column {', '.join(missing)}; an export has them all")
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
    """Add people's verdicts to the run; each becomes its rater's newest.

    A row that does not fit the run (unknown edit, different image hash, unknown decision) is
    reported and skipped; a verdict that the rater has already given is not added again.

    Raises
    ------
    DataError
        If no row fits the run.
    """
    report = ImportReport(problems=list(problems))
    new: list[tuple[str, int, RaterVerdict]] = []
    newest: dict[tuple[str, int], tuple[str, str]] = {}
    for row in rows:
        if not row.decision or row.rater_kind not in ("", "person"):
            report.n_empty += 1
            continue
        try:
            rater, position, verdict = _fit(ledger, row)
        except DataError as error:
            report.problems.append(f"{row.where}: {error}")
            continue
        before = ledger.decided(position).get(rater)
        known = (before.decision, before.reason) if before else None
        if newest.get((rater, position), known) == (verdict.decision, verdict.reason):
            report.n_known += 1
            continue
        newest[rater, position] = verdict.decision, verdict.reason
        new.append((rater, position, verdict))
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
        raise Refused(f"{seconds} is not a valid number of seconds")
    reason = join_reason(row.reason, _plain(row.note))
    blind_answer = _plain(row.blind_answer) or None
    verdict = RaterVerdict(0, "person", decision, reason, blind_answer, seconds)  # type: ignore[arg-type]
    return ledger.reviewer(row.rater), position, verdict


def _cells(rater: str, verdict: RaterVerdict) -> dict[str, str]:
    reason, note = split_reason(verdict.reason)
    return {
        "rater": rater,
        "decision": verdict.decision,
        "rater_kind": verdict.kind,
        "reason": reason,
        "note": note,
        "blind_answer": verdict.blind_answer or "",
        "seconds": "" if verdict.seconds is None else f"{verdict.seconds:.3f}",
    }


def _row(cells: dict[str, str], where: str) -> ImportedRow:
    seconds = float(cells["seconds"].replace(",", ".")) if cells.get("seconds") else None
    names = [f.name for f in fields(ImportedRow) if f.name not in ("where", "seconds")]
    texts = {name: cells.get(name, "") for name in names}
    return ImportedRow(where=where, seconds=seconds, **texts)


def _plain(text: str) -> str:
    """Return text on one line, without lone surrogates, which JSON can contain."""
    return " ".join(text.split()).encode(errors="replace").decode()[:MAX_NOTE]


def _safe(text: str) -> str:
    return "'" + text if text.startswith(_FORMULA) else text


def _unsafe(text: str) -> str:
    return text[1:] if text[:1] == "'" and text[1:].startswith(_FORMULA) else text
