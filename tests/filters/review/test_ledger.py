from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pytest

from flipbench.core.errors import DataError
from flipbench.core.records import Edit, ImageRef, Verdict
from flipbench.core.run import Run
from flipbench.filters.effective_verdicts import (
    ANSWERED_BLIND,
    REASONS,
    WITHDRAWN,
    effective_verdicts,
    join_reason,
    split_reason,
)
from flipbench.filters.review.ledger import Ledger, Refused
from flipbench.filters.review.tasks import edited_pairs, image_path
from tests.fixtures.edited_run import edited_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return edited_run(tmp_path_factory.mktemp("made") / "discs", 12, size=40).path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Iterator[Run]:
    with Run(shutil.copytree(made, tmp_path / "discs")) as run:
        yield run


@pytest.fixture
def ledger(run: Run) -> Ledger:
    return Ledger(run, edited_pairs(run))


def again(run: Run) -> Ledger:
    return Ledger(Run(run.path), edited_pairs(run))


def of(run: Run, rater: str) -> list[Verdict]:
    found = [v for v in run.read(Verdict) if v.rater == rater]
    return sorted(found, key=lambda v: (v.edit_id, v.run))


def test_a_changed_verdict_is_added_and_the_newest_counts(run: Run, ledger: Ledger) -> None:
    ledger.decide("anna", 0, "keep", seconds=2.5)
    ledger.decide("anna", 0, "reject", "ambiguous: two discs")
    assert [(v.run, v.decision) for v in of(run, "anna")] == [(0, "keep"), (1, "reject")]
    assert of(run, "anna")[0].seconds == 2.5
    for each in (ledger, again(run)):
        assert each.verdicts(0)["anna"].decision == "reject"
        assert each.counts("anna") == {"keep": 0, "reject": 1, "unsure": 0}
    counting = [v for v in effective_verdicts(run.read(Verdict)) if v.rater == "anna"]
    assert [(v.decision, v.reason) for v in counting] == [("reject", "ambiguous: two discs")]


def test_the_newest_counts_in_whatever_order_verdicts_are_read(run: Run, ledger: Ledger) -> None:
    ledger.decide("anna", 0, "keep")
    ledger.decide("anna", 0, "reject")
    verdicts = of(run, "anna")
    assert effective_verdicts(verdicts) == effective_verdicts(verdicts[::-1]) == [verdicts[1]]
    for path in (run.path / "verdicts").glob("*.jsonl"):
        path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert again(run).verdicts(0)["anna"].decision == "reject"


def test_every_run_of_a_judge_counts(run: Run) -> None:
    edit = next(run.read(Edit))
    runs = [
        Verdict(
            edit_id=edit.id,
            image_sha256=edit.image.sha256,
            rater="gpt",
            rater_kind="judge",
            run=number,
            decision=decision,
        )
        for number, decision in enumerate(["keep", "reject", "keep"])
    ]
    assert effective_verdicts(runs) == runs
    run.append(runs)
    verdicts = again(run).verdicts(0)
    assert [verdicts[name].decision for name in ("gpt", "gpt (run 1)", "gpt (run 2)")] == [
        "keep",
        "reject",
        "keep",
    ]


def test_undo_restores_the_previous_verdict(run: Run, ledger: Ledger) -> None:
    ledger.decide("anna", 0, "keep")
    ledger.decide("anna", 1, "unsure")
    ledger.decide("anna", 0, "reject", "unsafe")
    ledger.decide("ben", 0, "reject")
    assert ledger.undo("anna") == 0
    assert ledger.verdicts(0)["anna"].decision == "keep"
    assert ledger.undo("anna") == 1
    assert not ledger.verdicts(1)["anna"].decided
    assert ledger.undo("anna") == 0
    assert ledger.undo("anna") is None
    assert ledger.verdicts(0)["ben"].decision == "reject"
    assert ledger.queue("anna", "undecided") == list(range(12))
    assert again(run).counts("anna") == {"keep": 0, "reject": 0, "unsure": 0}
    assert [v for v in effective_verdicts(run.read(Verdict)) if v.rater == "anna"] == []
    assert [v.reason for v in of(run, "anna")].count(WITHDRAWN) == 2
    assert len(of(run, "anna")) == 6  # nothing is erased


def test_the_same_verdict_again_writes_nothing(run: Run, ledger: Ledger) -> None:
    for _ in range(3):
        ledger.decide("anna", 0, "keep")
    assert len(of(run, "anna")) == 1
    ledger.undo("anna")
    ledger.decide("anna", 0, "keep")
    assert again(run).verdicts(0)["anna"].decision == "keep"


def test_the_first_blind_answer_stays(run: Run, ledger: Ledger) -> None:
    ledger.answer_blind("anna", 0, "blue", 3.0)
    ledger.answer_blind("anna", 0, "green", 1.0)
    assert ledger.queue("anna", "undecided")[0] == 0
    ledger.decide("anna", 0, "keep")
    ledger.undo("anna")
    ledger.answer_blind("anna", 0, "green", 1.0)
    ledger.decide("anna", 0, "reject")
    assert {v.blind_answer for v in of(run, "anna")} == {"blue"}
    assert [v.reason for v in of(run, "anna")] == [ANSWERED_BLIND, "", WITHDRAWN, ""]
    assert again(run).verdicts(0)["anna"].blind_answer == "blue"


def test_two_people_at_once_lose_nothing(run: Run, ledger: Ledger) -> None:
    def review(rater: str) -> None:
        for turn in range(5):
            for position in range(12):
                ledger.decide(rater, position, "keep" if turn % 2 else "reject")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(review, ["anna", "ben", "anna", "cleo"]))
    assert len(of(run, "ben")) == len(of(run, "cleo")) == 60
    for rater in ("anna", "ben", "cleo"):
        runs = [v.run for v in of(run, rater) if v.edit_id == ledger.pairs[0].key[0]]
        assert runs == list(range(len(runs)))
        assert sum(again(run).counts(rater).values()) == 12
    assert again(run).verdicts(3) == ledger.verdicts(3)


def test_a_rule_without_objection_is_no_disagreement(run: Run, ledger: Ledger) -> None:
    run.append([by_rule(ledger, 0, "keep"), by_rule(ledger, 1, "reject")])
    ledger = again(run)
    ledger.decide("anna", 0, "reject")  # as the judge does
    assert ledger.queue("anna", "disagreement") == [1]  # which the judge keeps


def by_rule(ledger: Ledger, position: int, decision: Literal["keep", "reject"]) -> Verdict:
    pair = ledger.pairs[position]
    return Verdict(
        edit_id=pair.key[0],
        image_sha256=pair.key[1],
        rater="rule unchanged",
        rater_kind="rule",
        decision=decision,
    )


def test_queues_can_be_filtered(ledger: Ledger) -> None:
    ledger.decide("anna", 0, "keep")  # the judge rejects 0, 5 and 10
    ledger.decide("anna", 1, "keep")
    ledger.decide("anna", 5, "reject")
    ledger.decide("ben", 1, "unsure")
    ledger.undo("ben")
    assert ledger.queue("anna", "undecided") == [2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert ledger.queue("anna", "disagreement") == [0]
    assert ledger.queue("anna", "keep") == [0, 1]
    assert ledger.queue("anna", "reject") == [5]
    assert ledger.queue("anna", "all", "number") == [2, 5, 8, 11]
    assert ledger.queue("anna", "undecided", "number", "doubt") == []
    assert ledger.queue("ben", "undecided", judges="doubt") == [0, 5, 10]
    assert ledger.queue("ben", "all", judges="keep") == [1, 2, 3, 4, 6, 7, 8, 9, 11]
    assert ledger.counts("anna", "color") == {"keep": 1, "reject": 0, "unsure": 0}


def test_reviewer_names_are_normalised(run: Run, ledger: Ledger) -> None:
    ledger.decide(ledger.reviewer("  Zoe\u0308  K. "), 0, "keep")
    assert ledger.reviewer("zo\u00eb k.") == "Zo\u00eb K."  # a phone writes the first letter large
    for wrong in ("", "  ", "x" * 61, "a\x07b", "\ud800", "Test Judge", "People", "policy"):
        with pytest.raises(Refused):
            ledger.reviewer(wrong)


def test_a_nonsensical_verdict_line_is_set_aside(
    run: Run, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.decide("anna", 0, "keep")
    ledger.decide("anna", 1, "keep")
    ledger.decide("anna", 2, "keep")
    path = next(p for p in (run.path / "verdicts").glob("*.jsonl") if "anna" in p.read_text())
    lines = path.read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if "anna" in line) + 1
    lines[number] = lines[number].replace('"keep"', '"perhaps"')
    path.write_text("\n".join(lines) + "\n")
    with caplog.at_level(logging.WARNING):
        found = again(run)
    assert f"{path.name}:{number + 1} is set aside" in caplog.text
    assert found.queue("anna", "keep") == [0, 2]
    found.decide("anna", 1, "reject")
    assert again(run).queue("anna", "reject") == [1]


def test_pairs_with_missing_images_are_left_out(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    pairs = edited_pairs(run)
    run.images.path(pairs[1].pictures[0]).unlink()
    run.images.path(pairs[2].right).unlink()
    with caplog.at_level(logging.WARNING):
        left = edited_pairs(run)
    assert len(left) == len(pairs) - 2
    assert "discs 0001: image" in caplog.text and "its image is missing" in caplog.text


def test_pairs_come_in_item_order_or_the_order_requested(run: Run) -> None:
    pairs = edited_pairs(run)
    assert [pair.item for pair in pairs] == [f"discs {n:04d}" for n in range(12)]
    edit_ids = {pairs[3].key[0], pairs[7].key[0]}
    assert [pair.item for pair in edited_pairs(run, edit_ids)] == ["discs 0003", "discs 0007"]
    with pytest.raises(DataError, match="no edited images"):
        edited_pairs(run, set())


def test_no_record_can_name_a_file_outside_the_run(run: Run, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"secret")
    sha256 = "a" * 64
    (run.path / "images" / f"{sha256}.png").symlink_to(secret)
    for name, fmt in ((sha256, "png"), ("../../secret", "png"), ("a" * 64, "/../../secret.png")):
        with pytest.raises(DataError, match="not among the images"):
            image_path(run.images, ImageRef(sha256=name, format=fmt, width=1, height=1))


@pytest.mark.parametrize("reason", ["", *REASONS])
@pytest.mark.parametrize("note", ["", "two: discs", "note", "(withdrawn)", "ambiguous"])
def test_reasons_and_notes_are_restored(reason: str, note: str) -> None:
    assert split_reason(join_reason(reason, note)) == (reason, note)
