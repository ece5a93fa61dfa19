"""Export of tasks to Label Studio, and import of its annotations.

The format is Label Studio's JSON: a list of tasks, each with ``data``, ``annotations`` (people) and
``predictions`` (judges). Images are referenced as files in its local storage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from flipbench.benchmarks.tables import parse_json
from flipbench.core.errors import DataError

from ..effective_verdicts import split_reason
from .ledger import ImportedRow, Ledger
from .pairs import REVIEW
from .task import Pair, RaterVerdict, Task

OTHERS = "others"
LOCAL_FILES = "/data/local-files/?d=images/"


def label_config(task: Task = REVIEW, *, several: bool = False) -> str:
    """Return the labelling configuration of a task, as XML.

    ``several``: some pairs have further images, which are the same on both sides.
    """
    left, right = task.sides
    labels = "\n".join(
        f'    <Choice value="{label.value}" hotkey="{label.key}"/>' for label in task.labels
    )
    reasons = "\n".join(f'    <Choice value="{reason}"/>' for reason in task.reasons)
    asked = f"""  <Choices name="reason" toName="{right}" choice="single" showInLine="true">
{reasons}
  </Choices>
"""
    single = 'choice="single" required="true" showInLine="true"'
    others = f'  <Image name="{OTHERS}" valueList="${OTHERS}"/>\n' if several else ""
    answer = '  <Text name="answer" value="$answer"/>\n'
    return f"""<View>
  <View style="display: grid; grid-template-columns: 1fr 1fr; gap: 1em">
    <Image name="{left}" value="${left}"/>
    <Image name="{right}" value="${right}"/>
  </View>
{others}\
  <Header value="$question"/>
{answer if task.reasons else ""}\
  <Choices name="{task.label_column}" toName="{right}" {single}>
{labels}
  </Choices>
{asked if task.reasons else ""}\
  <TextArea name="note" toName="{right}" maxSubmissions="1" placeholder="note"/>
  <TextArea name="reviewer" toName="{right}" maxSubmissions="1" placeholder="your name"/>
</View>
"""


def have_several(ledger: Ledger) -> bool:
    """Return whether some pairs have further images, the same on both sides."""
    return any(len(pair.pictures) > 2 for pair in ledger.pairs)


def export_tasks(ledger: Ledger) -> str:
    """Return a task per pair, with the effective verdicts."""
    task, tasks, several = ledger.task, [], have_several(ledger)
    for position, pair in enumerate(ledger.pairs):
        verdicts = ledger.decided(position)
        exported = {
            "data": _data(pair, task, several),
            "annotations": [
                {"result": list(_result(pair, task, verdict, rater)), "lead_time": verdict.seconds}
                for rater, verdict in verdicts.items()
                if verdict.kind == "person"
            ],
            "predictions": [
                {"result": list(_result(pair, task, verdict)), "model_version": rater}
                for rater, verdict in verdicts.items()
                if verdict.kind != "person"
            ],
        }
        tasks.append(exported)
    return json.dumps(tasks, ensure_ascii=False, indent=1)


def read_tasks(text: str, name: str, task: Task) -> tuple[list[ImportedRow], list[str]]:
    """Read a Label Studio JSON export; return its annotations and the problems of others.

    Raises
    ------
    DataError
        If the text is not a list of tasks.
    """
    try:
        tasks = parse_json(text)
    except ValueError as error:
        raise DataError(f"{name}: not JSON ({error})") from error
    if not isinstance(tasks, list):
        raise DataError(f"{name}: not a list of tasks; export from Label Studio as JSON")
    if tasks and not any(isinstance(each, dict) and "data" in each for each in tasks):
        raise DataError(
            f"{name}: no task has 'data'; export from Label Studio as JSON, not JSON-MIN"
        )
    rows: list[ImportedRow] = []
    problems: list[str] = []
    for number, annotated in enumerate(tasks, 1):
        where = f"{name}: task {number}"
        try:
            first, second = (str(annotated["data"][column]) for column in task.key_columns)
            for annotation in annotated.get("annotations") or []:
                if not annotation.get("was_cancelled"):
                    rows.append(_row(annotation, where, (first, second), task.label_column))
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            problems.append(f"{where}: not an annotated pair ({type(error).__name__}: {error})")
    return rows, problems


def _data(pair: Pair, task: Task, several: bool) -> dict[str, Any]:
    images = [f"{LOCAL_FILES}{ref.sha256}.{ref.format}" for ref in pair.pictures]
    return (
        dict(zip(task.key_columns, pair.key, strict=True))
        | dict(zip(task.sides, (images[0], images[-1]), strict=True))
        | ({OTHERS: images[1:-1]} if several else {})
        | pair.facts()
    )


def _result(
    pair: Pair, task: Task, verdict: RaterVerdict, reviewer: str = ""
) -> Iterator[dict[str, Any]]:
    reason, note = split_reason(verdict.reason)
    note = note if verdict.kind == "person" else ""
    for name, kind, key, value in (
        (task.label_column, "choices", "choices", verdict.decision),
        ("reason", "choices", "choices", reason),
        ("note", "textarea", "text", note),
        ("reviewer", "textarea", "text", reviewer),
    ):
        if value:
            yield {
                "id": f"{pair.key[0][:8]}-{name}",
                "from_name": name,
                "to_name": task.sides[1],
                "type": kind,
                "value": {key: [value]},
            }


def _row(
    annotation: dict[str, Any], where: str, key: tuple[str, str], label_column: str
) -> ImportedRow:
    values: dict[str, str] = {}
    for result in annotation["result"]:
        value = result["value"].get("choices") or result["value"].get("text") or [""]
        values[result["from_name"]] = value if isinstance(value, str) else str(value[0])
    author = annotation.get("completed_by", "")
    if isinstance(author, dict):
        author = author.get("email") or author.get("id", "")
    seconds = annotation.get("lead_time")
    return ImportedRow(
        where=where,
        key=key,
        rater=values.get("reviewer") or f"label-studio {author}".strip(),
        decision=values.get(label_column, ""),
        reason=values.get("reason", ""),
        note=values.get("note", ""),
        seconds=None if seconds is None else float(seconds),
    )
