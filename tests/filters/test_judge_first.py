"""The recipe: judges settle what they agree on, people see exactly the rest, and decide it."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest

from flipbench.core.records import Verdict
from flipbench.core.run import Run
from tests.fixtures.command_line import Flipbench

CONFIG = Path(__file__).parents[2] / "configs" / "filter" / "judge-first.yaml"
RUN = Path("run")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def edit_ids(path: Path) -> set[str]:
    return {row["edit_id"] for row in rows(path)}


@pytest.mark.slow
def test_people_decide_what_the_judges_leave_open(flipbench: Flipbench) -> None:
    settings = (CONFIG, "run=run", "-q", "--limit", "25")
    assert flipbench("generate", *settings).status == 0
    assert flipbench("review", RUN, "--doubtful").status == 2  # nobody has filtered yet
    filtered = flipbench("filter", *settings)
    assert filtered.status == 0
    kept = edit_ids(RUN / "filter" / "kept.csv")

    verdicts = list(Run(RUN).read(Verdict))
    votes_on: dict[str, set[str]] = defaultdict(set)
    for verdict in verdicts:
        if verdict.rater_kind == "judge":
            votes_on[verdict.edit_id].add(verdict.decision)
    split = {edit_id for edit_id, votes in votes_on.items() if votes not in ({"keep"}, {"reject"})}
    assert "flipbench review run --doubtful" in filtered.err
    assert f"people judge the {len(split)} doubtful pairs" in filtered.err
    assert 3 < len(split) < 22 and kept == {e for e, votes in votes_on.items() if votes == {"keep"}}

    todo, done = Path("todo.csv"), Path("done.csv")
    assert f"{len(split)} pairs" in flipbench("review", RUN, "--doubtful", "--export", todo).out
    empty = [row for row in rows(todo) if not row["rater"]]
    assert edit_ids(todo) == {row["edit_id"] for row in empty} == split

    for number, row in enumerate(sorted(empty, key=lambda row: row["edit_id"])):
        row |= {"rater": "ann", "decision": "keep" if number % 3 else "reject"}
    with done.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(empty[0]))
        writer.writeheader()
        writer.writerows(empty)
    assert flipbench("review", RUN, "--import", done).status == 0
    assert flipbench("review", RUN, "--import", done, "--doubtful").status == 2
    assert flipbench("filter", *settings).status == 0
    agreement = flipbench("review", "run", "--agreement")  # one person is people too
    assert agreement.status == 0 and "ann" in agreement.out
    by_ann = {row["edit_id"] for row in empty if row["decision"] == "keep"}
    assert edit_ids(RUN / "filter" / "kept.csv") == kept | by_ann
    lost = [row for row in rows(RUN / "filter" / "reasons.csv") if row["decided_by"] == "ann"]
    assert {row["edit_id"] for row in lost} == split - by_ann
    assert {(row["decision"], row["loss"]) for row in lost} == {("reject", "rejected by people")}
    nothing = flipbench("review", RUN, "--doubtful")
    assert nothing.status == 0 and "nothing to review" in nothing.out
    assert len(list(Run(RUN).read(Verdict))) == len(verdicts) + len(split)  # no judge asked twice
