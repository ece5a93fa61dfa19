"""Tasks for Label Studio, and its annotations back.

The format is Label Studio's own JSON: a list of tasks, each with ``data``, ``annotations`` (people)
and ``predictions`` (judges). Pictures are named as files below its local storage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from flipbench.core.errors import DataError

from ..effective_verdicts import REASONS, split_reason
from .ledger import Ledger, RaterVerdict
from .pairs import EditedPair
from .rows import ImportedRow

LOCAL_FILES = "/data/local-files/?d=images/"
_REASONS = "\n".join(f'    <Choice value="{reason}"/>' for reason in REASONS)
LABEL_CONFIG = f"""<View>
  <View style="display: grid; grid-template-columns: 1fr 1fr; gap: 1em">
    <Image name="original" value="$original"/>
    <Image name="edited" value="$edited"/>
  </View>
  <Header value="$question"/>
  <Text name="answer" value="$answer"/>
  <Choices name="decision" toName="edited" choice="single" required="true" showInLine="true">
    <Choice value="keep" hotkey="k"/>
    <Choice value="reject" hotkey="r"/>
    <Choice value="unsure" hotkey="u"/>
  </Choices>
  <Choices name="reason" toName="edited" choice="single" showInLine="true">
{_REASONS}
  </Choices>
  <TextArea name="note" toName="edited" maxSubmissions="1" placeholder="note"/>
  <TextArea name="reviewer" toName="edited" maxSubmissions="1" placeholder="your name"/>
</View>
"""


def export_tasks(ledger: Ledger, picture_root: str = LOCAL_FILES) -> str:
    """Return a task for each pair, with the verdicts that count."""
    tasks = []
    for position, pair in enumerate(ledger.pairs):
        said = {r: one for r, one in ledger.said(position).items() if one.decided}
        task = {
            "data": _data(pair, picture_root),
            "annotations": [
                {"result": list(_result(pair, one, rater)), "lead_time": one.seconds}
                for rater, one in said.items()
                if one.kind == "person"
            ],
            "predictions": [
                {"result": list(_result(pair, one)), "model_version": rater}
                for rater, one in said.items()
                if one.kind != "person"
            ],
        }
        tasks.append(task)
    return json.dumps(tasks, ensure_ascii=False, indent=1)


def read_tasks(text: str, name: str) -> tuple[list[ImportedRow], list[str]]:
    """Read Label Studio's JSON export; return its annotations and what is wrong with others.

    Raises
    ------
    DataError
        If it is not a list of tasks.
    """
    try:
        tasks = json.loads(text)
    except ValueError as error:
        raise DataError(f"{name}: not JSON ({error})") from error
    if not isinstance(tasks, list):
        raise DataError(f"{name}: not a list of tasks; export from Label Studio as JSON")
    rows: list[ImportedRow] = []
    problems: list[str] = []
    for number, task in enumerate(tasks, 1):
        where = f"{name}: task {number}"
        try:
            data = task["data"]
            edit_id, sha256 = str(data["edit_id"]), str(data["image_sha256"])
            for annotation in task.get("annotations") or []:
                if not annotation.get("was_cancelled"):
                    rows.append(_row(annotation, where, edit_id, sha256))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            problems.append(f"{where}: no annotated pair ({type(error).__name__}: {error})")
    return rows, problems


def _data(pair: EditedPair, picture_root: str) -> dict[str, Any]:
    def url(sha256: str, fmt: str) -> str:
        return f"{picture_root}{sha256}.{fmt}"

    original = pair.originals[0] if pair.originals else pair.edited
    return {
        "edit_id": pair.edit_id,
        "image_sha256": pair.edited.sha256,
        "original": url(original.sha256, original.format),
        "edited": url(pair.edited.sha256, pair.edited.format),
        "item": pair.item,
        "category": pair.category,
        "question": pair.question,
        "options": list(pair.options),
        "answer": f"New answer: {pair.new_text} (before: {pair.old_text})",
        "old_answer": pair.old_text,
        "new_answer": pair.new_text,
        "caption": pair.caption,
    }


def _result(pair: EditedPair, said: RaterVerdict, reviewer: str = "") -> Iterator[dict[str, Any]]:
    reason, note = split_reason(said.reason)
    note = note if said.kind == "person" else ""
    for name, kind, key, value in (
        ("decision", "choices", "choices", said.decision),
        ("reason", "choices", "choices", reason),
        ("note", "textarea", "text", note),
        ("reviewer", "textarea", "text", reviewer),
    ):
        if value:
            yield {
                "id": f"{pair.edit_id[:8]}-{name}",
                "from_name": name,
                "to_name": "edited",
                "type": kind,
                "value": {key: [value]},
            }


def _row(annotation: dict[str, Any], where: str, edit_id: str, image_sha256: str) -> ImportedRow:
    said: dict[str, str] = {}
    for result in annotation["result"]:
        value = result["value"].get("choices") or result["value"].get("text") or [""]
        said[result["from_name"]] = value if isinstance(value, str) else str(value[0])
    by = annotation.get("completed_by", "")
    by = by.get("email") or by.get("id", "") if isinstance(by, dict) else by
    seconds = annotation.get("lead_time")
    return ImportedRow(
        where=where,
        edit_id=edit_id,
        image_sha256=image_sha256,
        rater=said.get("reviewer") or f"label-studio {by}".strip(),
        decision=said.get("decision", ""),
        reason=said.get("reason", ""),
        note=said.get("note", ""),
        seconds=None if seconds is None else float(seconds),
    )
