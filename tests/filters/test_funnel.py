"""What filtering leaves behind: kept list, reasons, funnel; and verdicts edited into nonsense."""

from __future__ import annotations

import csv
import json
import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from flipbench.config.policy import Policy
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.rates import Rate
from flipbench.core.records import Edit, Failure, Verdict
from flipbench.core.run import Run
from flipbench.filters.funnel import read_doubtful
from flipbench.filters.judges.shapes import SceneJudge
from flipbench.filters.kept_list import listed_items, select_kept
from flipbench.filters.pipeline import (
    apply_policy,
    edited_in,
    filtered_in,
    keep_valid,
    rate,
    unjudged,
)
from flipbench.generate.captioners.shapes import SceneCaptioner
from flipbench.generate.editors.shapes import SceneEditor
from flipbench.models.protocols import JudgeDecision
from flipbench.reporting.tables import Cell, Column, Row, Table
from flipbench.reporting.writers import write_tables
from flipbench.shapes.benchmark import shapes_vqa
from tests.fixtures.generated import generate
from tests.fixtures.options import QUIET

N = 12


class Picky:
    """Rejects, is unsure of, or fails at some items, by number."""

    rater_kind: Literal["judge", "rule", "oracle"] = "judge"
    name = "picky"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[JudgeDecision | Exception]:
        self.asked += [c.item.name for c in candidates]
        decisions: dict[str, JudgeDecision | Exception] = {
            "0002": JudgeDecision("reject", "two stars | or three?\nwho knows"),
            "0003": JudgeDecision("unsure", "blurred"),
            "0004": DataError("the server is down"),
        }
        return [decisions.get(c.item.name, JudgeDecision("keep", "fine")) for c in candidates]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Candidate]]:
    """Return a run that has generated its candidates, and these."""
    run = Run(tmp_path_factory.mktemp("generated") / "run")
    items = shapes_vqa(run.images, N)
    return run.path, generate(items, SceneCaptioner(), SceneEditor(), run, options=QUIET)[0]


@pytest.fixture
def run(generated: tuple[Path, list[Candidate]], tmp_path: Path) -> Run:
    """Return a copy of that run, to change."""
    return Run(shutil.copytree(generated[0], tmp_path / "run"))


@pytest.fixture
def candidates(generated: tuple[Path, list[Candidate]], run: Run) -> list[Candidate]:
    made = [*generated[1]]
    failure = Failure(
        stage="caption",
        record_id="x",
        subject=made[1].subject,
        error="ServiceError",
        message="refused as unsafe",
    )
    run.append([failure])
    made[0] = Candidate(made[0].item)
    made[1] = replace(made[1], caption=None, edit=None)
    assert made[5].edit and made[6].edit
    made[6] = replace(made[6], edit=made[6].edit.model_copy(update={"image": made[5].edit.image}))
    return made


def person(candidate: Candidate, decision: str, run: int = 0, reason: str = "") -> Verdict:
    assert candidate.edit
    return Verdict(
        edit_id=candidate.edit.id,
        image_sha256=candidate.edit.image.sha256,
        rater="ann",
        rater_kind="person",
        run=run,
        decision=decision,  # type: ignore[arg-type]
        reason=reason,
    )


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open(newline="")))


def test_every_lost_pair_is_named_and_counted(run: Run, candidates: list[Candidate]) -> None:
    run.append([person(candidates[7], "reject", 0, "ambiguous: two")])
    judge = Picky()
    benchmark, reports = keep_valid("b", candidates, [judge], run, options=QUIET)
    assert benchmark.funnel == {
        "items": 12,
        "flipped": 11,
        "captioned": 10,
        "edited": 10,
        "kept": 4,
    }
    assert [p.original.name for p in benchmark.pairs] == ["0008", "0009", "0010", "0011"]
    assert "0005" not in judge.asked and "0006" not in judge.asked  # the rule is enough
    assert [r.stage for r in reports] == ["rules", "judge picky"]

    folder = run.path / "filter"
    reasons = {row["item"]: row for row in rows(folder / "reasons.csv")}
    assert {name: (row["step"], row["loss"]) for name, row in reasons.items()} == {
        "0000": ("not flipped", "not tried yet"),
        "0001": ("not captioned", "refused as unsafe"),
        "0002": ("not kept", "rejected by judges"),
        "0003": ("not kept", "judges are unsure"),
        "0004": ("not kept", "a judge gave no verdict"),
        "0005": ("not kept", "rule: duplicate"),
        "0006": ("not kept", "rule: duplicate"),
        "0007": ("not kept", "rejected by people"),
    }
    doubtful = {name for name, row in reasons.items() if row["decision"] == "unsure"}
    assert doubtful == {"0003", "0004"} and reasons["0001"]["decision"] == ""
    assert read_doubtful(folder / "reasons.csv") == {reasons[name]["edit_id"] for name in doubtful}
    assert reasons["0002"]["reason"] == "two stars | or three?\nwho knows"
    assert (reasons["0002"]["decided_by"], reasons["0007"]["decided_by"]) == ("picky", "ann")

    funnel = rows(folder / "funnel.csv")
    left = {row["step"]: int(row["n"]) for row in funnel if row["step"]}
    assert left == benchmark.funnel
    assert sum(int(row["n"]) for row in funnel if row["lost"]) == -(12 - 4)
    by_category = rows(folder / "losses_by_category.csv")
    assert sum(int(row["items"]) for row in by_category) == 12
    assert sum(int(row["kept"]) for row in by_category) == 4
    page = (folder / "funnel.md").read_text()
    assert "| | rule: duplicate | -2 |" in page.replace("|  |", "| |")
    assert Policy.model_validate_json((folder / "policy.json").read_text()) == Policy()


def test_a_file_without_doubtful_pairs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "reasons.csv"
    for data in (None, b"item,edit_id\n0001,x\n", b"item,edit_id,decision\n\xff,x,unsure\n"):
        if data:
            path.write_bytes(data)
        with pytest.raises(DataError, match=r"reasons\.csv.*flipbench filter"):
            read_doubtful(path)


def test_the_kept_list_rebuilds_the_pairs(run: Run, candidates: list[Candidate]) -> None:
    benchmark, _ = keep_valid("b", candidates, [Picky()], run, options=QUIET)
    path = run.path / "filter" / "kept.csv"
    again = [c.pair() for c in select_kept(path, candidates, run.images)]
    assert tuple(again) == benchmark.pairs
    lines = path.read_text().splitlines()
    for text, problem in [
        ([*lines, lines[1]], "line 7: 0007 is listed twice"),
        ([lines[0], lines[1].replace(rows(path)[0]["image_sha256"], "0" * 64)], "line 2: the run"),
        ([lines[0], lines[2].replace(rows(path)[1]["item_id"], "f" * 24)], "0008 is not in this"),
        (["item,answer", "0001,A"], "needs rows with the columns"),
        ([lines[0]], "needs rows with"),
    ]:
        path.write_text("\n".join(text) + "\n")
        with pytest.raises(DataError, match=problem):
            select_kept(path, candidates, run.images)
    with pytest.raises(DataError, match="no such file"):
        select_kept(path.with_name("none.csv"), candidates, run.images)
    path.write_text("\n".join(lines) + "\n")
    first = benchmark.pairs[0].perturbed.images[0]
    run.images.path(first).write_bytes(b"another picture")
    with pytest.raises(DataError, match=r"line 2: the image of shapes-vqa 0007 was changed"):
        select_kept(path, candidates, run.images)


def test_a_list_of_another_benchmark_names_its_items(run: Run, candidates: list[Candidate]) -> None:
    keep_valid("b", candidates, [Picky()], run, options=QUIET)
    path, items = run.path / "filter" / "kept.csv", [c.item for c in candidates]
    assert [i.name for i in listed_items(path, items)] == [row["item"] for row in rows(path)]
    with pytest.raises(DataError, match="line 3: 0008 is not in this benchmark"):
        listed_items(path, [item for item in items if item.name != "0008"])


def test_filtered_candidates_are_read_back(run: Run, candidates: list[Candidate]) -> None:
    assert filtered_in(run) == []
    keep_valid("b", candidates, [Picky()], run, options=QUIET)
    found = filtered_in(run)
    assert [c.item.name for c in found] == [c.item.name for c in candidates]
    assert found[2:6] == candidates[2:6]
    assert found[0] == candidates[0] and found[1].edit is None
    (run.path / "filter" / "kept.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="kept.csv.*rewrites it"):
        filtered_in(run)


@pytest.mark.usefixtures("candidates")
def test_before_filtering_an_item_s_newest_edit_counts(run: Run) -> None:
    first, *others = edited_in(run)
    assert first.edit is not None and all(candidate.edit for candidate in others)
    again = Edit(**first.edit.model_dump(exclude={"id", "seed"}), seed=first.edit.seed + 1)
    run.append([again])
    assert edited_in(run) == [replace(first, edit=again), *others]


def test_a_verdict_file_edited_into_nonsense_loses_that_line_only(
    run: Run, candidates: list[Candidate], caplog: pytest.LogCaptureFixture
) -> None:
    run.append([person(candidates[n], "reject") for n in (7, 8, 9)])
    run.close()
    (shard,) = (run.path / "verdicts").glob("*.jsonl")
    lines = shard.read_text().splitlines()
    record = json.loads(lines[1]) | {"decision": "perhaps"}
    shard.write_text("\n".join([lines[0], json.dumps(record), "{not json", lines[2]]) + "\n")
    with caplog.at_level(logging.WARNING):
        benchmark, _ = keep_valid("b", candidates, [Picky()], run, options=QUIET)
    names = [pair.original.name for pair in benchmark.pairs]
    assert names == ["0008", "0010", "0011"]
    for number in (2, 3):
        assert f"{shard}:{number} is set aside" in caplog.text


def test_a_changed_policy_needs_no_new_verdicts(run: Run, candidates: list[Candidate]) -> None:
    judge = Picky()
    policy = Policy(n_runs=2, ask_rejected=True)
    raters, reports = rate(candidates, [judge], run, policy, options=QUIET)
    assert [r.stage for r in reports] == ["rules", "judge picky", "judge picky, run 1"]
    assert len(judge.asked) == 2 * 10
    strict = apply_policy(candidates, raters, run, policy)
    assert [c.item.name for c in strict.doubtful] == ["0003", "0004"]
    run.append([person(candidates[3], "reject"), person(candidates[3], "keep", 1)])
    looked = apply_policy(candidates, raters, run, policy)
    assert {c.item.name for c in looked.kept} - {c.item.name for c in strict.kept} == {"0003"}
    ignored = apply_policy(candidates, raters, run, Policy(n_runs=2, people="ignore"))
    assert ignored.kept == strict.kept
    n_asked = len(judge.asked)
    keep_valid("b", candidates, [judge], run, policy=policy, options=QUIET)
    assert set(judge.asked[n_asked:]) == {"0004"}  # only what failed is tried again


def test_the_oracle_also_judges_what_a_rule_rejects(run: Run, candidates: list[Candidate]) -> None:
    picky, oracle = Picky(), SceneJudge()
    rate(candidates, [picky, oracle], run, Policy(), options=QUIET)
    by_rater = Counter(v.rater for v in run.read(Verdict) if v.rater_kind != "rule")
    assert by_rater == {"picky": 7, "shapes oracle": 10}  # picky fails once, and 2 are duplicates
    assert [c.item.name for c in unjudged(candidates, picky, run, Policy())] == [
        "0004",
        "0000",
        "0001",
    ]
    assert [c.item.name for c in unjudged(candidates, oracle, run, Policy())] == ["0000", "0001"]
    again = unjudged(candidates, picky, run, Policy(ask_rejected=True, n_runs=2))
    assert len(again) == (1 + 2 + 2) + (10 + 2)


def test_judges_no_longer_configured_do_not_count(run: Run, candidates: list[Candidate]) -> None:
    keep_valid("b", candidates, [Picky()], run, options=QUIET)
    benchmark, _ = keep_valid("b", candidates, [SceneJudge()], run, options=QUIET)
    assert len(benchmark.pairs) == 8


def test_tables_keep_any_text(tmp_path: Path) -> None:
    odd = 'a|b\n<script>, "c" `d` [e](f) \\'
    row = Row(odd, (Cell("1"),))
    table = Table("t", "Caption.", "x", (Column("n"),), (("", (row,)),))
    write_tables([table], tmp_path / "new", "page.md", "Title")
    assert rows(tmp_path / "new" / "t.csv") == [{"x": odd, "n": "1"}]
    line = (tmp_path / "new" / "page.md").read_text().splitlines()[-3]
    assert line.count("|") - line.count("\\|") == 3 and "<script" not in line
    with pytest.raises(ValueError, match="does not fit"):
        Table("t", "", "x", (), (("", (row,)),))
    for k, n in ((3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="fraction"):
            Rate(k=k, n=n)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        write_tables([table], tmp_path / "file", "page.md", "Title")
