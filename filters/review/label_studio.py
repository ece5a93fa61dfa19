"""Export of tasks to Label Studio, and import of its annotations.

The format is Label Studio's JSON: a list of tasks, each with ``data``, ``annotations`` (people) and
``predictions`` (judges). Images are referenced as files in its local storage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from flipbench.core.errors import DataError
from flipbench.core.records import ImageRef

from ..effective_verdicts import REASONS, split_reason
from .ledger import ImportedRow, Ledger, RaterVerdict
from .pairs import EditedPair

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


def export_tasks(ledger: Ledger) -> str:
    """Return a task per pair, with the effective verdicts."""
    tasks = []
    for position, pair in enumerate(ledger.pairs):
        verdicts = ledger.decided(position)
        task = {
            "data": _data(pair),
            "annotations": [
                {"result": list(_result(pair, verdict, rater)), "lead_time": verdict.seconds}
                for rater, verdict in verdicts.items()
                if verdict.kind == "person"
            ],
            "predictions": [
                {"result": list(_result(pair, verdict)), "model_version": rater}
                for rater, verdict in verdicts.items()
                if verdict.kind != "person"
            ],
        }
        tasks.append(task)
    return json.dumps(tasks, ensure_ascii=False, indent=1)


def read_tasks(text: str, name: str) -> tuple[list[ImportedRow], list[str]]:
    """Read a Label Studio JSON export; return its annotations and the problems of others.

    Raises
    ------
    DataError
        If the text is not a list of tasks.
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
            problems.append(f"{where}: not an annotated pair ({type(error).__name__}: {error})")
    return rows, problems


def _data(pair: EditedPair) -> dict[str, Any]:
    def url(ref: ImageRef) -> str:
        return f"{LOCAL_FILES}{ref.sha256}.{ref.format}"

    original = pair.originals[0] if pair.originals else pair.edited
    return {
        "edit_id": pair.edit_id,
        "image_sha256": pair.edited.sha256,
        "original": url(original),
        "edited": url(pair.edited),
        "item": pair.item,
        "category": pair.category,
        "question": pair.question,
        "options": list(pair.options),
        "answer": f"New answer: {pair.new_text} (before: {pair.old_text})",
        "old_answer": pair.old_text,
        "new_answer": pair.new_text,
        "caption": pair.caption,
    }


def _result(
    pair: EditedPair, verdict: RaterVerdict, reviewer: str = ""
) -> Iterator[dict[str, Any]]:
    reason, note = split_reason(verdict.reason)
    note = note if verdict.kind == "person" else ""
    for name, kind, key, value in (
        ("decision", "choices", "choices", verdict.decision),
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
        edit_id=edit_id,
        image_sha256=image_sha256,
        rater=values.get("reviewer") or f"label-studio {author}".strip(),
        decision=values.get("decision", ""),
        reason=values.get("reason", ""),
        note=values.get("note", ""),
        seconds=None if seconds is None else float(seconds),
    )
