from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest

from flipbench.core.errors import DataError
from flipbench.core.records import Verdict
from flipbench.core.run import Run
from flipbench.filters.effective_verdicts import REASONS
from flipbench.filters.review.exchange import (
    export_csv,
    export_tasks,
    import_rows,
    label_config,
    read_rows,
)
from flipbench.filters.review.ledger import Ledger
from flipbench.filters.review.serve import export_verdicts, import_verdicts
from flipbench.filters.review.tasks import edited_pairs
from tests.fixtures.edited_run import EVIL, edited_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return edited_run(tmp_path_factory.mktemp("made") / "discs", 8, size=40).path


@pytest.fixture
def open_run(made: Path, tmp_path: Path) -> Iterator[Any]:
    """Open copies of the same run, as two people on two machines have."""
    runs: list[Run] = []

    def open_copy(name: str) -> Ledger:
        path = tmp_path / name
        run = Run(path if path.exists() else shutil.copytree(made, path))
        runs.append(run)
        return Ledger(run, edited_pairs(run))

    yield open_copy
    for run in runs:
        run.close()


def reviewed(ledger: Ledger) -> Ledger:
    ledger.answer_blind("anna", 0, "green", 1.5)
    ledger.decide("anna", 0, "keep", seconds=4.25)
    ledger.decide("anna", 1, "reject", "ambiguous: =cmd|' /C calc'!A0, \"quoted\"; ä\U0001f642")
    ledger.decide("=ben", 1, "unsure", "note: -2 or 3?")
    ledger.decide("anna", 2, "keep")
    ledger.undo("anna")
    return ledger


def people(ledger: Ledger) -> list[dict[str, tuple[str, str]]]:
    return [
        {
            rater: (verdict.decision, verdict.reason)
            for rater, verdict in ledger.verdicts(position).items()
            if verdict.kind == "person" and verdict.decided
        }
        for position in range(len(ledger.pairs))
    ]


def test_csv_round_trip(open_run: Any, tmp_path: Path) -> None:
    mine, yours = reviewed(open_run("mine")), open_run("yours")
    text = export_csv(mine)
    report = import_rows(yours, *read_rows(text.encode(), "x.csv"))
    assert (report.n_new, report.n_known, report.problems) == (3, 0, [])
    assert people(yours) == people(mine)
    assert yours.verdicts(0)["anna"].blind_answer == "green"
    assert yours.verdicts(0)["anna"].seconds == 4.25
    again = import_rows(yours, *read_rows(text.encode(), "x.csv"))
    assert (again.n_new, again.n_known) == (0, 3)
    assert people(open_run("yours")) == people(mine)  # read anew from disk


def test_csv_is_safe_in_spreadsheets(open_run: Any, tmp_path: Path) -> None:
    text = export_csv(reviewed(open_run("mine")))
    for row in csv.DictReader(io.StringIO(text.removeprefix("\ufeff"))):
        assert not [cell for cell in row.values() if cell.startswith(("=", "+", "-", "@"))]
    (tmp_path / "x.csv").write_text(text, newline="")
    table = pd.read_csv(tmp_path / "x.csv")
    assert table.columns[0] == "edit_id"
    assert set(table["edit_id"]) == {pair.key[0] for pair in open_run("mine").pairs}
    assert table["rater_kind"].value_counts().to_dict() == {"judge": 8, "person": 3}
    assert EVIL in set(table["question"])


def test_undecided_pairs_have_an_empty_row(open_run: Any) -> None:
    text = export_csv(reviewed(open_run("mine"))).removeprefix("\ufeff")
    empty = [row["item"] for row in csv.DictReader(io.StringIO(text)) if not row["rater"]]
    assert empty == [f"discs {number:04d}" for number in range(2, 8)]


@pytest.mark.parametrize("line_end", ["\r\n", "\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_what_a_spreadsheet_saves_is_read(open_run: Any, delimiter: str, line_end: str) -> None:
    ledger = open_run("mine")
    pair = ledger.pairs[3]
    head = ("edit_id", "image_sha256", "rater", "decision", "reason", "note", "seconds")
    row = (pair.key[0], pair.key[1], "Dora", "Reject", "Ambiguous", '"a;b\tc,"', '"2,5"')
    text = line_end.join(delimiter.join(cells) for cells in (head, row, ()))
    report = import_rows(ledger, *read_rows(text.encode(), "x.csv"))
    assert (report.n_new, report.problems) == (1, [])
    assert ledger.verdicts(3)["Dora"][2:] == ("reject", "ambiguous: a;b c,", None, 2.5)


def test_an_import_says_what_it_replaces_and_leaves_out(open_run: Any) -> None:
    ledger = reviewed(open_run("mine"))
    old = export_csv(ledger)
    ledger.decide("anna", 0, "unsure")  # on the page, after the export
    report = import_rows(ledger, *read_rows(old.encode(), "old.csv"))
    counts = (report.n_new, report.n_replacing, report.n_known, report.n_other, report.n_empty)
    assert counts == (1, 1, 2, 8, 6)
    assert str(report) == (
        "1 new verdicts (1 in place of earlier ones), 2 already known, 8 of judges and rules left"
        " out, 6 rows without a decision, 0 rows that do not fit"
    )


def test_bad_rows_are_named_and_the_rest_imported(open_run: Any) -> None:
    ledger = open_run("mine")
    pairs = ledger.pairs
    rows = [
        (pairs[0].key[0], pairs[0].key[1], "dora", "keep", "", ""),
        (pairs[1].key[0], pairs[0].key[1], "dora", "keep", "", ""),
        ("f" * 24, pairs[0].key[1], "dora", "keep", "", ""),
        (pairs[2].key[0], pairs[2].key[1], "dora", "perhaps", "", ""),
        (pairs[2].key[0], pairs[2].key[1], "", "keep", "", ""),
        (pairs[2].key[0], pairs[2].key[1], "test judge", "keep", "", ""),
        (pairs[2].key[0], pairs[2].key[1], "dora", "reject", "ugly", ""),
        (pairs[2].key[0], pairs[2].key[1], "dora", "reject", "", "soon"),
        (pairs[2].key[0], pairs[2].key[1], "dora", "", "", ""),
    ]
    head = "edit_id,image_sha256,rater,decision,reason,seconds\n"
    text = head + "\n".join(",".join(row) for row in rows)
    report = import_rows(ledger, *read_rows(text.encode(), "x.csv"))
    assert (report.n_new, report.n_empty, len(report.problems)) == (1, 1, 7)
    problems = "\n".join(report.problems)
    for message in (":3: edit", "another hash", ":4:", "not in this run", "'perhaps'", "a judge"):
        assert message in problems
    assert "'ugly'" in problems and "x.csv:9: seconds 'soon' is not a number" in problems


def test_an_import_of_another_run_is_refused(open_run: Any, tmp_path: Path) -> None:
    other = edited_run(tmp_path / "other", 4, size=48)
    rows = read_rows(export_csv(reviewed(open_run("mine"))).encode(), "x.csv")
    before = list(other.read(Verdict))
    with pytest.raises(DataError, match="3 rows do not fit this run"):
        import_rows(Ledger(other, edited_pairs(other)), *rows)
    assert list(other.read(Verdict)) == before


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"rater,decision\na,keep\n", "no column edit_id"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b'edit_id,"image_sha256', "not CSV"),
        (b"[1, 2", "not JSON"),
        (b'[{"id": 1, "decision": "keep"}]', "not JSON-MIN"),
        (b'{"tasks": []}', "not a list"),
        (b'edit_id,image_sha256,rater,decision\n"a,b', "not CSV"),
        (b"", "no column"),
    ],
)
def test_unknown_file_types_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_rows(data, "x")


def test_label_studio_round_trip(open_run: Any) -> None:
    mine, yours = reviewed(open_run("mine")), open_run("yours")
    text = export_tasks(mine)
    report = import_rows(yours, *read_rows(text.encode(), "tasks.json"))
    assert (report.n_new, report.problems) == (3, [])
    assert people(yours) == people(mine)
    assert import_rows(yours, *read_rows(text.encode(), "tasks.json")).n_new == 0


def test_tasks_match_the_labelling_configuration(open_run: Any) -> None:
    config = ElementTree.fromstring(label_config())
    named = {node.get("name"): node for node in config.iter() if node.get("name")}
    values = {node.get("value", "")[1:] for node in config.iter() if node.tag != "Choice"} - {""}
    choices = {name: {c.get("value") for c in node} for name, node in named.items()}
    assert choices["decision"] == {"keep", "reject", "unsure"}
    assert choices["reason"] == set(REASONS)
    for task in json.loads(export_tasks(reviewed(open_run("mine")))):
        assert values <= set(task["data"])
        assert all(option in task["data"]["answer"] for option in task["data"]["options"])
        for verdict in (*task["annotations"], *task["predictions"]):
            for result in verdict["result"]:
                tag = named[result["from_name"]]
                assert tag.tag.lower() == result["type"]
                assert tag.get("toName") == result["to_name"]
                chosen = result["value"].get("choices", ())
                assert bool(chosen) == (result["type"] == "choices")
                assert set(chosen) <= choices[result["from_name"]]


def test_label_studio_s_own_export_is_read(open_run: Any) -> None:
    """Annotators' ids or addresses, skipped tasks, and results of other tags."""
    ledger = open_run("mine")
    tasks = json.loads(export_tasks(ledger))

    def annotation(**more: Any) -> dict[str, Any]:
        value = {"choices": ["reject"]}
        result = {"from_name": "decision", "to_name": "edited", "type": "choices", "value": value}
        return {"id": 7, "result": [result], "was_cancelled": False, "lead_time": 3.2} | more

    tasks[0]["annotations"] = [
        annotation(completed_by=3),
        annotation(completed_by={"email": "e@x.org"}),
    ]
    tasks[1]["annotations"] = [annotation(was_cancelled=True), annotation(result=[])]
    tasks[2]["annotations"] = [annotation(lead_time=float("inf"), completed_by=3)]
    tasks[3] = {"data": {}}
    rows = read_rows(json.dumps(tasks).encode(), "tasks.json")
    report = import_rows(ledger, *rows)
    assert (report.n_new, report.n_empty) == (2, 1)
    assert sorted(ledger.people) == ["label-studio 3", "label-studio e@x.org"]
    assert len(report.problems) == 2 and "task 4" in report.problems[0]


def test_a_selection_of_pairs_can_be_exported(open_run: Any, tmp_path: Path) -> None:
    pairs = open_run("mine").pairs
    some = {pairs[1].key[0], pairs[6].key[0]}
    assert export_verdicts(tmp_path / "mine", tmp_path / "v.csv", some) == 2
    rows, _ = read_rows((tmp_path / "v.csv").read_bytes(), "v.csv")
    assert {cells["edit_id"] for _, cells in rows} == some


def test_verdict_files_work_without_the_page(open_run: Any, tmp_path: Path) -> None:
    reviewed(open_run("mine"))
    assert export_verdicts(tmp_path / "mine", tmp_path / "out" / "v.csv") == 8
    export_verdicts(tmp_path / "mine", tmp_path / "out" / "tasks.json")
    assert (tmp_path / "out" / "tasks.xml").read_text() == label_config()
    open_run("a"), open_run("b")
    assert import_verdicts(tmp_path / "a", tmp_path / "out" / "v.csv").n_new == 3
    assert import_verdicts(tmp_path / "b", tmp_path / "out" / "tasks.json").n_new == 3
    assert people(open_run("a")) == people(open_run("b")) == people(open_run("mine"))
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(DataError):
            import_verdicts(path, tmp_path / "out" / "v.csv")
    assert not (tmp_path / "nothing").exists()
