"""Rejected edits are tried again, and nothing else; others have the last word."""

from __future__ import annotations

import csv
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import flipbench as fb
from flipbench.api.stages.attempts import AttemptRow, attempts_table, cost_by_edit
from flipbench.config.experiment import Config
from flipbench.config.trust import settings_to_trust
from flipbench.core.errors import ConfigError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate, PairedBenchmark
from flipbench.core.records import Caption, Edit, Flip
from flipbench.core.run import Run
from flipbench.filters.judges.shapes import SceneJudge
from flipbench.generate.captioners.api import APICaptioner
from flipbench.models.protocols import JudgeDecision
from tests.fixtures.command_line import Flipbench

N = 24


class SecondOracle(SceneJudge):
    """The oracle under another name."""

    name = "second oracle"


class Stubborn:
    """A judge that keeps nothing."""

    name = "stubborn"
    rater_kind = "judge"

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[JudgeDecision | Exception]:
        return [JudgeDecision("reject", "no") for _ in candidates]


def python_judge(judge: type) -> dict[str, str]:
    return {"kind": "python", "target": f"{__name__}:{judge.__name__}"}


def configured(run: Path, n: int, *, wrong: float = 0.5, **attempts: Any) -> dict[str, Any]:
    return {
        "run": str(run),
        "benchmark": {"format": "shapes", "n_items": N},
        "generate": {
            "editor": {"kind": "shapes", "wrong": wrong},
            "attempts": {"n": n, "judges": ["shapes"], **attempts},
        },
        "filter": {"judges": [python_judge(SecondOracle)]},
    }


def filtered(run: Path, n: int, **attempts: Any) -> PairedBenchmark:
    result = fb.Experiment(configured(run, n, **attempts), progress=False).filter()
    return result.pairs


def attempts_in(run: Path) -> list[dict[str, str]]:
    return list(
        csv.DictReader((run / "filter" / "attempts.csv").open(newline="", encoding="utf-8-sig"))
    )


def ids(run: Path, kind: type[Edit] | type[Flip] | type[Caption] = Edit) -> set[str]:
    return Run(run, read_only=True).ids(kind)


def test_only_what_is_rejected_is_drawn_again(tmp_path: Path) -> None:
    plain = configured(tmp_path / "once", 1)
    plain["generate"]["attempts"] = {"n": 1}
    once = fb.Experiment(plain, progress=False).filter().pairs
    pairs = filtered(tmp_path / "often", 4)
    assert len(once.pairs) < 0.8 * N < len(pairs.pairs)
    assert ids(tmp_path / "once") < ids(tmp_path / "often")  # the first attempts are the same
    rows = attempts_in(tmp_path / "often")
    by_item: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_item.setdefault(row["item"], []).append(row)
    assert len(by_item) == N and len(rows) == len(ids(tmp_path / "often"))
    for tries in by_item.values():
        assert [int(row["attempt"]) for row in tries] == list(range(len(tries)))
        assert all(row["decision"] == "reject" for row in tries[:-1])
        assert tries[-1]["decision"] == "keep" or len(tries) == 4
        assert sum(row["chosen"] == "yes" for row in tries) == 1
    assert {row["step"] for row in rows} == {"first", "other seed"}
    shown = (tmp_path / "often" / "filter" / "attempts.md").read_text()
    assert f"({len(pairs.pairs)}/{N})" in shown


def test_more_attempts_go_on_where_fewer_ended(tmp_path: Path) -> None:
    filtered(tmp_path / "a", 2)
    before = ids(tmp_path / "a")
    filtered(tmp_path / "a", 4)
    filtered(tmp_path / "b", 4)
    assert before < ids(tmp_path / "a") == ids(tmp_path / "b")
    again = fb.Experiment(configured(tmp_path / "a", 4), progress=False).filter()
    assert sum(report.n_done for report in again.reports) == 0


def test_another_answer_is_one_that_was_not_tried(tmp_path: Path) -> None:
    filtered(tmp_path, 4, steps=[{"answer": True}])
    run = Run(tmp_path, read_only=True)
    flips, captions = run.index(Flip), run.index(Caption)
    drawn = [flips[captions[edit.caption_id].flip_id] for edit in run.read(Edit)]
    tried = Counter((flip.item_id, flip.new_answer) for flip in drawn)
    assert len(tried) > N and set(tried.values()) == {1}
    assert {row["step"] for row in attempts_in(tmp_path)} == {"first", "other answer"}


def test_a_step_may_change_the_editor(tmp_path: Path) -> None:
    pairs = filtered(tmp_path, 2, wrong=1.0, steps=[{"editor": {"wrong": 0.0}}])
    assert len(pairs.pairs) == N
    settings = [edit.settings for edit in Run(tmp_path, read_only=True).read(Edit)]
    assert settings.count({"wrong": 1.0}) == settings.count({}) == N


def test_judges_that_keep_nothing_end_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        filtered(tmp_path, 4, judges=[python_judge(Stubborn)], stop_after=N)
    assert len(ids(tmp_path)) == N
    assert f"{N} items are not tried again: of {N} edits, stubborn" in caplog.text


def test_money_ends_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flipbench.api.stages import attempts

    monkeypatch.setattr(attempts, "cost_by_edit", lambda run: {"x": 2.5})
    with caplog.at_level(logging.WARNING):
        filtered(tmp_path, 4, max_usd=2)
    assert len(ids(tmp_path)) == N and "$2.50 are spent" in caplog.text


def test_a_kept_list_names_any_attempt(tmp_path: Path) -> None:
    pairs = filtered(tmp_path, 4)
    kept = tmp_path / "filter" / "kept.csv"
    listed = tmp_path / "mine.csv"
    listed.write_bytes(kept.read_bytes())
    later = [edit for edit in Run(tmp_path, read_only=True).read(Edit) if "attempt" in edit.extra]
    kept_ids = {
        row["edit_id"] for row in csv.DictReader(kept.open(newline="", encoding="utf-8-sig"))
    }
    lost = [edit for edit in later if edit.id in kept_ids]
    assert lost
    for edit in lost:
        (tmp_path / "images" / f"{edit.image.sha256}.png").unlink()
    experiment = fb.Experiment(configured(tmp_path, 4), progress=False)
    rebuilt = experiment.filter(kept=listed).pairs
    assert [p.perturbed.id for p in rebuilt.pairs] == [p.perturbed.id for p in pairs.pairs]


def test_a_recipe_draws_later_attempts_again(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", 4)
    pairs = fb.Experiment(config, progress=False).filter().pairs
    exported = fb.Experiment(config, progress=False).export(tmp_path / "out", format="recipe")
    recipe = exported.files[0].parent
    rebuilt = fb.rebuild(recipe, {"run": str(tmp_path / "again")}, progress=False, trust=True)
    assert [p.perturbed.images for p in rebuilt.pairs.pairs] == [
        p.perturbed.images for p in pairs.pairs
    ]


ORACLE = {"n": 2, "judges": ["shapes"]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"generate": {"attempts": {"n": 2}}}, "name the judges"),
        ({"filter": {"judges": ["shapes"]}}, "must name another one"),
        ({"generate": {"attempts": ORACLE | {"steps": []}}}, "steps is empty"),
        ({"generate": {"attempts": ORACLE | {"steps": [{"editor": {"wrng": 1}}]}}}, "wrng"),
    ],
)
def test_attempts_that_cannot_work_are_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    config = configured(tmp_path, 2) | changes
    with pytest.raises(ConfigError, match=says):
        fb.Experiment(config)


def test_a_captioner_that_cannot_write_again_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be told what was wrong"):
        filtered(tmp_path, 2, steps=[{"caption": True}])


def test_the_editor_of_a_step_needs_trust_like_any_other() -> None:
    config = configured(Path("x"), 2, steps=[{"editor": {"kind": "python", "target": "a:B"}}])
    places = [place for place, _ in settings_to_trust(Config.model_validate(config))]
    assert ("generate", "attempts", "steps", 0, "editor", "target") in places


def test_a_captioner_is_told_what_was_wrong(shapes_store: ImageStore) -> None:
    class Chat:
        name, settings = "chat", {"model": "m"}

        def ask(self, requests: Sequence[Any], images: ImageStore) -> list[Exception]:
            self.texts = [request.text for request in requests]
            return [RuntimeError() for _ in requests]

    from flipbench.shapes.benchmark import shapes_vqa

    item = shapes_vqa(shapes_store, 1)[0]
    assert item.options and item.answer is not None
    new = (item.answer + 1) % len(item.options)
    flip = Flip(item_id=item.id, method="m", seed=0, new_answer=new, new_text=item.options[new])
    chat = Chat()
    captioner = APICaptioner(chat)  # type: ignore[arg-type]
    again = captioner.rewriting(2, {item.id: "The cross is white, not purple."})
    again([Candidate(item, flip)], shapes_store)
    assert chat.texts[0].endswith("The cross is white, not purple.")
    captioner([Candidate(item, flip)], shapes_store)
    assert "white, not purple" not in chat.texts[0]
    assert again.settings == {"model": "m", "attempt": 2} and captioner.settings == {"model": "m"}


def test_the_table_counts_what_each_attempt_adds() -> None:
    rows = [
        AttemptRow("i1", "0", "first", "e1", "keep", "yes"),
        AttemptRow("i2", "0", "first", "e2", "keep", "yes"),
        AttemptRow("i3", "0", "first", "e3", "reject", ""),
        AttemptRow("i3", "1", "other seed", "e4", "keep", "yes"),
        AttemptRow("i4", "0", "first", "e5", "unsure", "yes"),
    ]
    table = attempts_table(rows, {"i1", "i3", "i4"}, 5, {"e1": 0.5, "e4": 0.25})
    cells = [[cell.text for cell in row.cells] for row in table.rows]
    assert [row.header for row in table.rows] == ["1, first", "2, other seed"]
    counts = [(row[0], row[4], row[5]) for row in cells]
    assert counts == [("4", "0.80", "0.50"), ("1", "1.00", "0.25")]
    text = [[cell.plain() for cell in row.cells] for row in table.rows]
    assert "2/4" in text[0][1] and "1/2" in text[0][2] and "2/5" in text[0][3]
    assert "1/1" in text[1][1] and "1/1" in text[1][2] and "3/5" in text[1][3]


def test_an_edit_costs_its_caption_and_verdicts_too(tmp_path: Path) -> None:
    filtered(tmp_path, 1)
    with Run(tmp_path) as run:
        edit = next(run.read(Edit))
        verdict_costs = cost_by_edit(run)
        assert set(verdict_costs.values()) == {0.0} and edit.id in verdict_costs


def test_a_dry_run_counts_attempts_and_the_editor_s_memory(flipbench: Flipbench) -> None:
    config = Path(__file__).parents[2] / "configs" / "generate" / "attempts.yaml"
    result = flipbench("generate", str(config), "--dry-run")
    assert result.status == 0 and "up to 3 times each" in result.out and "images: " in result.out
