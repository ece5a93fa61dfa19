"""Import and export of verdicts: CSV here, Label Studio in `label_studio`."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from flipbench.core.errors import DataError
from flipbench.core.files import plain_cell, spreadsheet_cell

from ..effective_verdicts import ANSWERED_BLIND, join_reason, split_reason
from .label_studio import read_tasks
from .ledger import ImportedRow, Ledger, Refused
from .pairs import REVIEW
from .task import RaterVerdict, Task

MAX_NOTE = 2000


@dataclass
class ImportReport:
    """What an import found: new verdicts, of which some replace earlier ones, known ones, the rest.

    ``n_other`` counts the verdicts of judges, rules and oracles, which are never imported.
    """

    n_new: int = 0
    n_replacing: int = 0
    n_known: int = 0
    n_empty: int = 0
    n_other: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return one line for people."""
        replacing = f" ({self.n_replacing} in place of earlier ones)" if self.n_replacing else ""
        others = f", {self.n_other} of judges and rules left out" if self.n_other else ""
        return (
            f"{self.n_new} new verdicts{replacing}, {self.n_known} already known{others},"
            f" {self.n_empty} rows without a decision, {len(self.problems)} rows that do not fit"
        )


def export_csv(ledger: Ledger) -> str:
    """Return a row per effective verdict, and an empty row per pair without a person's verdict.

    Text that a spreadsheet would interpret as a formula gets a leading apostrophe, which
    `read_rows` removes.
    """
    buffer = io.StringIO()
    buffer.write("\ufeff")  # so that spreadsheets recognise UTF-8
    task = ledger.task
    writer = csv.DictWriter(buffer, task.columns, extrasaction="ignore")
    writer.writeheader()
    for position, pair in enumerate(ledger.pairs):
        facts = {
            name: text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
            for name, text in pair.facts().items()
        }
        columns = dict(zip(task.key_columns, pair.key, strict=True)) | facts
        decided = ledger.decided(position)
        rows = [_cells(rater, verdict, task) for rater, verdict in decided.items()]
        if not any(verdict.kind == "person" for verdict in decided.values()):
            rows.append({})
        for row in rows:
            writer.writerow(
                {name: spreadsheet_cell(text) for name, text in (columns | row).items()}
            )
    return buffer.getvalue()


def read_rows(data: bytes, name: str, task: Task = REVIEW) -> tuple[list[ImportedRow], list[str]]:
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
        return read_tasks(text, name, task)
    lines = io.StringIO(text, newline=None)  # of Windows, Unix and old Macs
    delimiter = max(",;\t", key=lines.readline().count)
    lines.seek(0)
    reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
    needed = (*task.key_columns, "rater", task.label_column)
    rows: list[ImportedRow] = []
    problems: list[str] = []
    try:
        missing = [column for column in needed if column not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"{name}: no column {', '.join(missing)}; an export has them all")
        for cells in reader:
            row = {key: plain_cell(text or "") for key, text in cells.items() if key is not None}
            where = f"{name}:{reader.line_num}"
            try:
                rows.append(_row(row, where, task))
            except ValueError as error:
                problems.append(f"{where}: {error}")
    except csv.Error as error:
        raise DataError(f"{name}:{reader.line_num}: not CSV ({error})") from error
    return rows, problems


def import_rows(
    ledger: Ledger,
    rows: Sequence[ImportedRow],
    problems: Sequence[str] = (),
    *,
    blind: bool = False,
) -> ImportReport:
    """Add people's verdicts to the run; each becomes its rater's newest.

    A row that does not fit the run (unknown edit, different image hash, unknown decision) is
    reported and skipped; a verdict that the rater has already given is not added again. With
    ``blind``, so is a verdict whose rater has no blind answer in the run, whatever the row says.

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
            report.n_empty += not row.decision
            report.n_other += bool(row.decision)
            continue
        try:
            rater, position, verdict = _fit(ledger, row)
            answered = ledger.verdicts(position).get(rater)
            if blind and (answered is None or answered.blind_answer is None):
                raise Refused(f"this review is blind, and {rater} has not answered the question")
        except DataError as error:
            report.problems.append(f"{row.where}: {error}")
            continue
        before = ledger.decided(position).get(rater)
        known = (before.decision, before.reason) if before else None
        if newest.get((rater, position), known) == (verdict.decision, verdict.reason):
            report.n_known += 1
            continue
        earlier = answered is not None and answered.reason != ANSWERED_BLIND
        report.n_replacing += earlier or (rater, position) in newest
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
    task = ledger.task
    position = ledger.position(row.key)
    decision = row.decision.strip().lower()
    if decision not in task.values:
        column = task.label_column
        raise Refused(f"{column} {row.decision!r} is none of {', '.join(task.values)}")
    why = row.reason.strip().lower()
    if why and why not in task.reasons:
        raise Refused(f"reason {row.reason!r} is none of {', '.join(task.reasons) or 'these'}")
    seconds = row.seconds
    if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
        raise Refused(f"{seconds} is not a valid number of seconds")
    reason = join_reason(why, _plain(row.note))
    blind_answer = _plain(row.blind_answer) or None
    verdict = RaterVerdict(0, "person", decision, reason, blind_answer, seconds)
    return ledger.reviewer(row.rater), position, verdict


def _cells(rater: str, verdict: RaterVerdict, task: Task) -> dict[str, str]:
    reason, note = split_reason(verdict.reason)
    return {
        "rater": rater,
        task.label_column: verdict.decision,
        "rater_kind": verdict.kind,
        "reason": reason,
        "note": note,
        "blind_answer": verdict.blind_answer or "",
        "seconds": "" if verdict.seconds is None else f"{verdict.seconds:.3f}",
    }


def _row(cells: dict[str, str], where: str, task: Task) -> ImportedRow:
    first, second = (cells[column] for column in task.key_columns)
    return ImportedRow(
        where=where,
        key=(first, second),
        rater=cells["rater"],
        decision=cells[task.label_column],
        rater_kind=cells.get("rater_kind", ""),
        reason=cells.get("reason", ""),
        note=cells.get("note", ""),
        blind_answer=cells.get("blind_answer", ""),
        seconds=_seconds(cells.get("seconds", "")),
    )


def _seconds(text: str) -> float | None:
    try:
        return float(text.replace(",", ".")) if text else None
    except ValueError:
        raise ValueError(f"seconds {text!r} is not a number") from None


def _plain(text: str) -> str:
    """Return text on one line, without lone surrogates, which JSON can contain."""
    return " ".join(text.split()).encode(errors="replace").decode()[:MAX_NOTE]
