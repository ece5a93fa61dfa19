"""Pairs that exist already are judged, reviewed, shown and listed like those made here."""

from __future__ import annotations

import base64
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import flipbench as fb
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.images import ImageStore, png_bytes
from flipbench.core.paired import UNJUDGED, Candidate, PairedBenchmark
from flipbench.core.records import Verdict
from flipbench.core.run import Run
from flipbench.evaluate.scoring.soundness import Judged
from flipbench.filters.review.serve import export_verdicts, import_verdicts
from flipbench.models.protocols import JudgeDecision

N = 12


class EveryThird:
    """A judge that rejects every third pair."""

    name = "every third"
    rater_kind = "judge"

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[JudgeDecision | Exception]:
        return [
            JudgeDecision("reject" if int(c.item.name) % 3 == 0 else "keep", "third")
            for c in candidates
        ]


JUDGE = {"kind": "python", "target": f"{__name__}:EveryThird"}


def write_side(path: Path, answer: str, shade: int) -> None:
    """Write one side of the pairs as a VLMEvalKit TSV, pictures of sizes of their own."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["index", "question", "A", "B", "answer", "image"])
        for number in range(N):
            image = Image.new("RGB", (24 + shade, 20 + number), (shade, 9 * number, 40))
            picture = base64.b64encode(png_bytes(image)).decode()
            row = [number, f"Which is it, number {number}?", "one", "two", answer, picture]
            writer.writerow(row)


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    write_side(tmp_path / "original.tsv", "A", 10)
    write_side(tmp_path / "perturbed.tsv", "B", 90)
    sides = {
        side: {"format": "vlmeval", "path": str(tmp_path / f"{name}.tsv")}
        for side, name in (("original", "original"), ("counterfactual", "perturbed"))
    }
    return {
        "run": str(tmp_path / "run"),
        "benchmark": {"format": "pairs", "name": "theirs", "parts": [sides]},
    }


def filtered(config: dict[str, Any], **changes: Any) -> PairedBenchmark:
    return fb.Experiment(config | changes, progress=False).filter().pairs


def test_judges_decide_which_pairs_stay_and_ids_do_not_change(config: dict[str, Any]) -> None:
    unjudged = filtered(config)
    judged = filtered(config, filter={"judges": [JUDGE]})
    assert [pair.verdict for pair in unjudged.pairs] == [UNJUDGED] * N or not unjudged.judged
    assert len(unjudged.pairs) == N and len(judged.pairs) == len(judged.judged) == N * 2 // 3
    ids = {pair.original.id: pair.perturbed.id for pair in unjudged.pairs}
    assert all(ids[pair.original.id] == pair.perturbed.id for pair in judged.pairs)
    assert judged.judged_by.startswith("every third") and judged.exchangeable is False
    assert judged.funnel["items"] == N and judged.funnel["kept"] == N * 2 // 3


def test_pairs_that_nobody_judged_are_not_called_kept(config: dict[str, Any]) -> None:
    result = fb.Experiment(config, progress=False).filter()
    assert str(result).startswith(f"{N} pairs of theirs that nobody has judged")
    result = fb.Experiment(config | {"filter": {"judges": [JUDGE]}}, progress=False).filter()
    assert str(result).startswith(f"{N * 2 // 3} pairs of theirs kept")


def test_a_failed_judge_keeps_nothing(config: dict[str, Any]) -> None:
    judge = {"kind": "python", "target": f"{__name__}:NoSuchJudge"}
    with pytest.raises(ConfigError, match="NoSuchJudge"):
        filtered(config, filter={"judges": [judge]})


def test_people_review_them_and_their_verdicts_count(
    config: dict[str, Any], tmp_path: Path
) -> None:
    filtered(config)
    run = Path(config["run"])
    table = tmp_path / "verdicts.csv"
    export_verdicts(run, table)
    rows = list(csv.DictReader(table.open(newline="", encoding="utf-8-sig")))
    assert len(rows) == N
    for number, row in enumerate(rows):
        row |= {"rater": "ada", "decision": "keep" if number < 5 else "reject"}
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows[:8])
    import_verdicts(run, table)
    pairs = filtered(config)
    assert [pair.verdict for pair in pairs.pairs].count("keep") == 5
    assert len(pairs.judged) == 5 and len(pairs.pairs) == N - 3  # four have no verdict yet
    assert {v.rater for v in Run(run, read_only=True).read(Verdict) if v.rater_kind == "person"}


def test_people_say_how_many_bad_edits_the_judges_let_pass(
    config: dict[str, Any], tmp_path: Path
) -> None:
    with_judge = {"filter": {"judges": [JUDGE]}}
    assert filtered(config, **with_judge).bad_edits is None
    run, table = Path(config["run"]), tmp_path / "verdicts.csv"
    export_verdicts(run, table)
    rows = list(csv.DictReader(table.open(newline="", encoding="utf-8-sig")))
    by_item = {int(row["item"].split()[-1]): row for row in rows}  # a row for each verdict
    for number, row in by_item.items():
        row |= {"rater": "ada", "decision": "reject" if number in (1, 3) else "keep"}
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(by_item[number] for number in range(6))  # the judge keeps 1, 2, 4, 5
    import_verdicts(run, table)
    pairs = filtered(config, **with_judge)
    assert pairs.bad_edits == (1, 4)
    assert PairedBenchmark.load(run / "benchmark").bad_edits == (1, 4)
    judged = Judged(n=8, n_judged=8, raters=pairs.judged_by, bad_edits=pairs.bad_edits)
    assert judged.bad_rate and (judged.bad_rate.k, judged.bad_rate.n) == (1, 4)


def test_a_kept_list_names_pairs(config: dict[str, Any], tmp_path: Path) -> None:
    filtered(config, filter={"judges": [JUDGE]})
    listed = tmp_path / "kept.csv"
    listed.write_bytes((Path(config["run"]) / "filter" / "kept.csv").read_bytes())
    pairs = fb.Experiment(config, progress=False).filter(kept=listed).pairs
    assert len(pairs.pairs) == N * 2 // 3
    listed.write_text(listed.read_text().replace(pairs.pairs[0].original.id, "other"))
    with pytest.raises(DataError, match="is not in this run"):
        fb.Experiment(config, progress=False).filter(kept=listed)


def test_they_are_shown(config: dict[str, Any], tmp_path: Path) -> None:
    filtered(config, filter={"judges": [JUDGE]})
    shown = fb.Experiment(config, progress=False).show(tmp_path / "pairs.png", edits=True)
    assert (tmp_path / "pairs.png").exists() and "pairs.png" in str(shown)


def test_the_same_command_asks_nobody_again(config: dict[str, Any]) -> None:
    filtered(config, filter={"judges": [JUDGE]})
    again = fb.Experiment(config | {"filter": {"judges": [JUDGE]}}, progress=False).filter()
    assert sum(report.n_done for report in again.reports) == 0
