"""Import and export of verdicts: CSV, and Label Studio's JSON.

Label Studio has a list of tasks, each with ``data``, ``annotations`` (people) and ``predictions``
(judges). Images are referenced as files in its local storage.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flipbench.benchmarks.tables import parse_json
from flipbench.core.errors import DataError
from flipbench.core.files import plain_cell, spreadsheet_cell
from flipbench.reporting.pages import environment

from ..effective_verdicts import ANSWERED_BLIND, join_reason, split_reason
from .ledger import Ledger, Refused
from .tasks import REVIEW, RaterVerdict, Task

PAGE = Path(__file__).parent / "page"
MAX_NOTE = 2000
LOCAL_FILES = "/data/local-files/?d=images/"

Row = tuple[str, dict[str, str]]
"""Where a row comes from, for messages, and its cells by column, not yet checked."""


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
        judges_text = f", {self.n_other} of judges and rules left out" if self.n_other else ""
        return (
            f"{self.n_new} new verdicts{replacing}, {self.n_known} already known{judges_text},"
            f" {self.n_empty} rows without a decision, {len(self.problems)} rows that do not fit"
        )


def export_csv(ledger: Ledger) -> str:
    """Return a row per effective verdict, and an empty row per pair without a person's verdict.

    Text that a spreadsheet would interpret as a formula gets a leading apostrophe, which
    `read_rows` removes.
    """
    task = ledger.task
    buffer = io.StringIO()
    buffer.write("\ufeff")  # so that spreadsheets recognise UTF-8
    writer = csv.DictWriter(buffer, task.columns, extrasaction="ignore")
    writer.writeheader()
    for position, pair in enumerate(ledger.pairs):
        columns = dict(zip(task.key_columns, pair.key, strict=True)) | {
            name: text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
            for name, text in task.facts(pair).items()
        }
        verdicts = ledger.decided(position)
        rows = [_verdict_cells(rater, verdict, task) for rater, verdict in verdicts.items()]
        if not any(verdict.kind == "person" for verdict in verdicts.values()):
            rows.append({})
        for row in rows:
            cells = (columns | row).items()
            writer.writerow({name: spreadsheet_cell(text) for name, text in cells})
    return buffer.getvalue()


def _verdict_cells(rater: str, verdict: RaterVerdict, task: Task) -> dict[str, str]:
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


def label_config(task: Task = REVIEW, *, several: bool = False) -> str:
    """Return the labelling configuration of a task for Label Studio, as XML.

    ``several``: some pairs have further images, which are the same on both sides.
    """
    template = environment(PAGE).get_template("label_studio.xml.jinja")
    return template.render(task=task, several=several) + "\n"


def have_several(ledger: Ledger) -> bool:
    """Return whether some pairs have further images, the same on both sides."""
    return any(pair.others for pair in ledger.pairs)


def export_tasks(ledger: Ledger) -> str:
    """Return a Label Studio task per pair, with the effective verdicts."""
    task, several = ledger.task, have_several(ledger)
    exported = []
    for position, pair in enumerate(ledger.pairs):
        images = [f"{LOCAL_FILES}{ref.sha256}.{ref.format}" for ref in pair.pictures]
        values = (*pair.key, images[0], images[-1])
        data: dict[str, Any] = dict(zip((*task.key_columns, *task.sides), values, strict=True))
        people, judges = [], []
        for rater, verdict in ledger.decided(position).items():
            result = list(_label_studio_result(pair.key[0], task, verdict, rater))
            if verdict.kind == "person":
                people.append({"result": result, "lead_time": verdict.seconds})
            else:
                judges.append({"result": result, "model_version": rater})
        exported.append(
            {
                "data": data | ({"others": images[1:-1]} if several else {}) | task.facts(pair),
                "annotations": people,
                "predictions": judges,
            }
        )
    return json.dumps(exported, ensure_ascii=False, indent=1)


def _label_studio_result(
    key: str, task: Task, verdict: RaterVerdict, rater: str
) -> Iterator[dict[str, Any]]:
    reason, note = split_reason(verdict.reason)
    is_person = verdict.kind == "person"
    for name, kind, value_key, value in (
        (task.label_column, "choices", "choices", verdict.decision),
        ("reason", "choices", "choices", reason),
        ("note", "textarea", "text", note if is_person else ""),
        ("reviewer", "textarea", "text", rater if is_person else ""),
    ):
        if value:
            yield {
                "id": f"{key[:8]}-{name}",
                "from_name": name,
                "to_name": task.sides[1],
                "type": kind,
                "value": {value_key: [value]},
            }


def read_rows(data: bytes, name: str, task: Task = REVIEW) -> tuple[list[Row], list[str]]:
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
        return _read_tasks(text, name, task)
    lines = io.StringIO(text, newline=None)  # of Windows, Unix and old Macs
    delimiter = max(",;\t", key=lines.readline().count)
    lines.seek(0)
    reader = csv.DictReader(lines, delimiter=delimiter, strict=True)
    required = (*task.key_columns, "rater", task.label_column)
    rows: list[Row] = []
    try:
        lacking = [column for column in required if column not in (reader.fieldnames or ())]
        if lacking:
            raise DataError(f"{name}: no column {', '.join(lacking)}; an export has them all")
        for row in reader:
            cells = {key: plain_cell(text or "") for key, text in row.items() if key is not None}
            rows.append((f"{name}:{reader.line_num}", cells))
    except csv.Error as error:
        raise DataError(f"{name}:{reader.line_num}: not CSV ({error})") from error
    return rows, []


def _read_tasks(text: str, name: str, task: Task) -> tuple[list[Row], list[str]]:
    """Return the annotations of a Label Studio export as rows, and the problems of others."""
    try:
        tasks = parse_json(text)
    except ValueError as error:
        raise DataError(f"{name}: not JSON ({error})") from error
    if not isinstance(tasks, list):
        raise DataError(f"{name}: not a list of tasks; export from Label Studio as JSON")
    if tasks and not any(isinstance(entry, dict) and "data" in entry for entry in tasks):
        raise DataError(
            f"{name}: no task has 'data'; export from Label Studio as JSON, not JSON-MIN"
        )
    rows: list[Row] = []
    problems: list[str] = []
    for number, entry in enumerate(tasks, 1):
        source = f"{name}: task {number}"
        try:
            key = {column: str(entry["data"][column]) for column in task.key_columns}
            for annotation in entry.get("annotations") or []:
                if not annotation.get("was_cancelled"):
                    rows.append((source, _annotation_cells(annotation, task) | key))
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            problems.append(f"{source}: not an annotated pair ({type(error).__name__}: {error})")
    return rows, problems


def _annotation_cells(annotation: dict[str, Any], task: Task) -> dict[str, str]:
    answers: dict[str, str] = {}
    for result in annotation["result"]:
        value = result["value"].get("choices") or result["value"].get("text") or [""]
        answers[result["from_name"]] = value if isinstance(value, str) else str(value[0])
    author = annotation.get("completed_by", "")
    if isinstance(author, dict):
        author = author.get("email") or author.get("id", "")
    seconds = annotation.get("lead_time")
    return {name: answers.get(name, "") for name in (task.label_column, "reason", "note")} | {
        "rater": answers.get("reviewer") or f"label-studio {author}".strip(),
        "seconds": "" if seconds is None else str(seconds),
    }


def import_rows(
    ledger: Ledger,
    rows: Sequence[Row],
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
    verdicts: list[tuple[str, int, RaterVerdict]] = []
    newest: dict[tuple[str, int], tuple[str, str]] = {}
    for source, cells in rows:
        if not cells.get(ledger.task.label_column):
            report.n_empty += 1
            continue
        if cells.get("rater_kind", "") not in ("", "person"):
            report.n_other += 1
            continue
        try:
            rater, position, verdict = _fit(ledger, cells)
            stored_verdict = ledger.verdicts(position).get(rater)
            if blind and (stored_verdict is None or stored_verdict.blind_answer is None):
                raise Refused(f"this review is blind, and {rater} has not answered the question")
        except DataError as error:
            report.problems.append(f"{source}: {error}")
            continue
        previous = stored_verdict[2:4] if stored_verdict and stored_verdict.decided else None
        if newest.get((rater, position), previous) == (verdict.decision, verdict.reason):
            report.n_known += 1
            continue
        is_replaced = stored_verdict is not None and stored_verdict.reason != ANSWERED_BLIND
        report.n_replacing += is_replaced or (rater, position) in newest
        newest[rater, position] = verdict.decision, verdict.reason
        verdicts.append((rater, position, verdict))
    if report.problems and not verdicts and not report.n_known:
        raise DataError(
            f"nothing was imported, {len(report.problems)} rows do not fit this run;"
            f" the first: {report.problems[0]}"
        )
    report.n_new = ledger.add(verdicts)
    return report


def _fit(ledger: Ledger, cells: dict[str, str]) -> tuple[str, int, RaterVerdict]:
    """Return rater, pair and verdict of a row."""
    task = ledger.task
    key, sha256 = (cells[column] for column in task.key_columns)
    position = ledger.position((key, sha256))
    label = cells[task.label_column]
    decision = label.strip().lower()
    if decision not in task.values:
        column = task.label_column
        raise Refused(f"{column} {label!r} is none of {', '.join(task.values)}")
    reason = cells.get("reason", "").strip().lower()
    if reason and reason not in task.reasons:
        reasons = ", ".join(task.reasons) or "these"
        raise Refused(f"reason {cells['reason']!r} is none of {reasons}")
    verdict = RaterVerdict(
        0,
        "person",
        decision,
        join_reason(reason, _plain(cells.get("note", ""))),
        _plain(cells.get("blind_answer", "")) or None,
        _seconds(cells.get("seconds", "")),
    )
    return ledger.reviewer(cells["rater"]), position, verdict


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text.replace(",", ".")) if text else None
    except ValueError:
        raise Refused(f"seconds {text!r} is not a number") from None
    if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
        raise Refused(f"{seconds} is not a valid number of seconds")
    return seconds


def _plain(text: str) -> str:
    """Return text on one line, without lone surrogates, which JSON can contain."""
    return " ".join(text.split()).encode(errors="replace").decode()[:MAX_NOTE]
