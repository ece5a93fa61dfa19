from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from flipbench.config.policy import RULES, Policy
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate, PairedBenchmark
from flipbench.core.records import Failure, Verdict
from flipbench.core.run import Run
from flipbench.filters.judges.shapes import SceneJudge
from flipbench.filters.judges.stage import JudgeStage
from flipbench.filters.pipeline import keep_valid
from flipbench.generate.captioners.shapes import SceneCaptioner
from flipbench.generate.editors.shapes import SceneEditor
from flipbench.models.protocols import CaptionText, Decision, JudgeDecision
from flipbench.shapes.benchmark import scene_of, shapes_vqa
from flipbench.shapes.questions import QuestionFamily, answer
from flipbench.shapes.scene import Scene
from flipbench.shapes.wording import describe
from tests.fixtures.generated import generate
from tests.fixtures.options import QUIET

pytestmark = pytest.mark.slow

N_ITEMS = 20


class Misled(SceneCaptioner):
    """Describes the wrong scene of some items: the original, unchanged but for its corner."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[CaptionText | Exception]:
        return [
            CaptionText(describe(scene_of(c))) if c.item.name in self.names else caption
            for c, caption in zip(candidates, super().__call__(candidates, images), strict=True)
        ]


class Grumpy:
    """A judge with a fixed opinion of each item, which may raise or return errors."""

    rater_kind: Literal["judge"] = "judge"

    def __init__(self, name: str, **opinions: Decision | Exception) -> None:
        self.name, self.opinions, self.n_asked = name, opinions, 0

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[JudgeDecision | Exception]:
        self.n_asked += len(candidates)
        out: list[JudgeDecision | Exception] = []
        for candidate in candidates:
            opinion = self.opinions.get(f"q{candidate.item.name}", "keep")
            if isinstance(opinion, RuntimeError):
                raise opinion
            out.append(opinion if isinstance(opinion, Exception) else JudgeDecision(opinion, "so"))
        return out


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture
def candidates(run: Run) -> list[Candidate]:
    items = shapes_vqa(run.images, N_ITEMS)
    return generate(items, SceneCaptioner(), SceneEditor(), run, options=QUIET)[0]


def names(benchmark: PairedBenchmark) -> list[str]:
    return [pair.original.name for pair in benchmark.pairs]


def keep(run: Run, candidates: Sequence[Candidate], *judges: Any) -> PairedBenchmark:
    return keep_valid("shapes-vqa", candidates, judges, run, options=QUIET)[0]


def test_the_oracle_keeps_right_edits_and_rejects_wrong_ones(run: Run) -> None:
    items = shapes_vqa(run.images, N_ITEMS)
    wrong = ["0002", "0007", "0013"]
    candidates, _ = generate(items, Misled(wrong), SceneEditor(), run, options=QUIET)
    benchmark, _ = keep_valid(
        "b", candidates, [SceneJudge()], run, policy=Policy(ask_rejected=True), options=QUIET
    )
    assert names(benchmark) == [item.name for item in items if item.name not in wrong]
    verdicts = [v for v in run.read(Verdict) if v.rater_kind == "oracle"]
    assert len(verdicts) == N_ITEMS
    rejected = [v for v in verdicts if v.decision == "reject"]
    by_edit = {c.edit.id: c for c in candidates if c.edit}
    assert sorted(by_edit[v.edit_id].item.name for v in rejected) == wrong
    for verdict in rejected:
        candidate = by_edit[verdict.edit_id]
        assert candidate.flip
        assert verdict.blind_answer == candidate.item.answer_text  # the picture is the old one
        assert candidate.flip.new_text in verdict.reason


def test_kept_pairs_are_correct(run: Run, candidates: list[Candidate]) -> None:
    for pair in keep(run, candidates, SceneJudge()).pairs:
        family = QuestionFamily.from_json(pair.perturbed.extra["family"])
        drawn = Scene.from_json(pair.perturbed.extra["scene"])
        assert answer(drawn, family.question) == pair.perturbed.answer_text
        assert pair.perturbed.answer_text != pair.original.answer_text


def test_a_pair_is_kept_if_every_judge_keeps_it(run: Run, candidates: list[Candidate]) -> None:
    first = Grumpy("first", q0001="reject", q0002="unsure", q0003="reject")
    second = Grumpy("second", q0003="reject", q0004="reject")
    kept = names(keep(run, candidates, first, second))
    assert kept == [f"{i:04d}" for i in range(N_ITEMS) if i not in (1, 2, 3, 4)]
    assert names(keep(run, candidates, second)) == [
        f"{i:04d}" for i in range(N_ITEMS) if i not in (3, 4)
    ]


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_an_item_whose_judge_fails_is_not_kept(
    run: Run, candidates: list[Candidate], how: str
) -> None:
    error = DataError("cannot see") if how == "returns" else RuntimeError("cannot see")
    benchmark, reports = keep_valid(
        "shapes-vqa", candidates, [SceneJudge(), Grumpy("g", q0005=error)], run, options=QUIET
    )
    assert names(benchmark) == [f"{i:04d}" for i in range(N_ITEMS) if i != 5]
    assert [r.n_failed for r in reports] == [0, 0, 1]  # the rules, the oracle, the other judge
    (failure,) = run.read(Failure)
    assert failure.subject == "shapes-vqa 0005" and "cannot see" in failure.message

    recovered = Grumpy("g")
    assert len(keep(run, candidates, SceneJudge(), recovered).pairs) == N_ITEMS
    assert recovered.n_asked == 1


def test_items_are_judged_once(run: Run, candidates: list[Candidate]) -> None:
    judge = Grumpy("g")
    first, second = keep(run, candidates, judge), keep(run, candidates, judge)
    assert judge.n_asked == N_ITEMS
    assert first == second
    assert sum(v.rater == "g" for v in run.read(Verdict)) == N_ITEMS
    assert len(list(run.read(Verdict))) == N_ITEMS * (1 + len(RULES))


def test_the_funnel_counts_every_step(run: Run) -> None:
    items = shapes_vqa(run.images, 10)
    full, _ = generate(items, SceneCaptioner(), SceneEditor(), run, options=QUIET)
    candidates = [
        Candidate(items[0]),
        replace(full[1], caption=None, edit=None),
        replace(full[2], caption=None, edit=None),
        replace(full[3], edit=None),
        *full[4:],
    ]
    benchmark = keep(run, candidates, Grumpy("g", q0009="unsure"))
    assert benchmark.funnel == {
        "items": 10,
        "flipped": 9,
        "captioned": 7,
        "edited": 6,
        "kept": 5,
    }
    assert names(benchmark) == ["0004", "0005", "0006", "0007", "0008"]


def test_a_verdict_names_its_exact_image(run: Run, candidates: list[Candidate]) -> None:
    stage, other = JudgeStage(Grumpy("g"), run.images), JudgeStage(Grumpy("h"), run.images)
    candidate = candidates[0]
    assert candidate.edit and candidates[1].edit
    (verdict,) = stage([candidate])
    assert isinstance(verdict, Verdict)
    assert verdict.image_sha256 == candidate.edit.image.sha256
    assert verdict.id == stage.id_of(candidate)
    redrawn = replace(
        candidate, edit=candidate.edit.model_copy(update={"image": candidates[1].edit.image})
    )
    again = JudgeStage(Grumpy("g"), run.images, run=1)
    ids = {
        s.id_of(c)
        for s, c in ((stage, candidate), (other, candidate), (stage, redrawn), (again, candidate))
    }
    assert len(ids) == 4


def test_no_edits_to_judge_is_an_error(run: Run, candidates: list[Candidate]) -> None:
    with pytest.raises(DataError, match="flipbench generate"):
        keep(run, [Candidate(candidates[0].item)], SceneJudge())
    with pytest.raises(DataError, match="no edited image"):
        JudgeStage(SceneJudge(), run.images).id_of(Candidate(candidates[0].item))


def test_a_paired_benchmark_survives_the_disk(
    run: Run, candidates: list[Candidate], tmp_path: Path
) -> None:
    benchmark = keep(run, candidates, SceneJudge())
    benchmark.save(run.path / "benchmark")
    benchmark.save(tmp_path / "elsewhere")
    for folder in (run.path / "benchmark", tmp_path / "elsewhere"):
        loaded = PairedBenchmark.load(folder)
        assert (loaded.pairs, loaded.id, loaded.funnel) == (
            benchmark.pairs,
            benchmark.id,
            benchmark.funnel,
        )
        for item in (*loaded.originals, *loaded.perturbed):
            assert loaded.images.open(item.images[0]).size == (224, 224)
    assert not (run.path / "benchmark" / "images").exists()
    assert len(list((tmp_path / "elsewhere" / "images").iterdir())) == 2 * N_ITEMS


def test_a_damaged_paired_benchmark_is_refused_with_its_line(
    run: Run, candidates: list[Candidate], tmp_path: Path
) -> None:
    folder = tmp_path / "b"
    with pytest.raises(DataError, match="flipbench filter"):
        PairedBenchmark.load(folder)
    keep(run, candidates[:3], SceneJudge()).save(folder)
    lines = (folder / "pairs.jsonl").read_text().splitlines()
    for damage in (lines[1][:-20], '{"original": {}}', "[]"):
        (folder / "pairs.jsonl").write_text("\n".join([lines[0], damage, lines[2]]) + "\n")
        with pytest.raises(DataError, match=r"pairs.jsonl:2: not a pair"):
            PairedBenchmark.load(folder)
    for lost in ([lines[0], lines[2]], lines[:2], lines[::-1]):
        (folder / "pairs.jsonl").write_text("\n".join(lost) + "\n")
        with pytest.raises(DataError, match="does not match the id in benchmark.json"):
            PairedBenchmark.load(folder)
