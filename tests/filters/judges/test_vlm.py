"""A judge that is only asked the question: a shipped model, on right and on wrong pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from flipbench.config.kinds import Context
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.run import Run
from flipbench.filters.judges.vlm import VLMJudge, VLMJudgeSpec
from flipbench.generate.captioners.shapes import SceneCaptioner
from flipbench.generate.editors.shapes import SceneEditor
from flipbench.models.protocols import JudgeDecision
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from flipbench.shapes.benchmark import shapes_vqa
from tests.fixtures.generated import generate
from tests.fixtures.options import QUIET

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("judged") / "run")


@pytest.fixture(scope="module")
def candidates(run: Run) -> list[Candidate]:
    """Return rightly edited pairs of the two kinds that the shipped models can answer."""
    items = [i for i in shapes_vqa(run.images, 60) if i.category in ("color", "shape")]
    return generate(items, SceneCaptioner(), SceneEditor(), run, options=QUIET)[0]


@pytest.fixture(scope="module")
def llava() -> HuggingFaceVLM:
    return HuggingFaceVLM("shapes:llava")


def opinions(
    judge: VLMJudge, candidates: Sequence[Candidate], images: ImageStore
) -> list[JudgeDecision]:
    found = [o for o in judge(candidates, images) if isinstance(o, JudgeDecision)]
    assert len(found) == len(candidates)
    return found


def unchanged(candidate: Candidate) -> Candidate:
    assert candidate.edit
    edit = candidate.edit.model_copy(update={"image": candidate.item.images[0]})
    return replace(candidate, edit=edit)


@pytest.mark.slow
@pytest.mark.parametrize("ask", ["choose", "generate"])
def test_the_new_answer_is_kept_and_the_old_one_rejected(
    ask: str, llava: HuggingFaceVLM, candidates: list[Candidate], run: Run
) -> None:
    judge = VLMJudge(llava, PromptSettings(ask=ask))  # type: ignore[arg-type]
    right = opinions(judge, candidates, run.images)
    wrong = opinions(judge, [unchanged(c) for c in candidates], run.images)
    assert sum(o.decision == "keep" for o in right) >= len(candidates) - 2
    assert sum(o.decision == "reject" for o in wrong) >= len(candidates) - 2
    for candidate, opinion in zip(candidates, right, strict=True):
        assert candidate.flip
        kept = opinion.decision == "keep"
        assert (opinion.blind_answer == candidate.flip.new_text) == kept
    assert ("probability" in right[0].reason) == (ask == "choose")


@pytest.mark.slow
def test_a_judge_below_its_threshold_is_unsure(
    llava: HuggingFaceVLM, candidates: list[Candidate], run: Run
) -> None:
    certain = opinions(VLMJudge(llava), candidates, run.images)
    strict = opinions(VLMJudge(llava, sure=1.0), candidates, run.images)
    assert {o.decision for o in strict} == {"unsure"}
    assert [o.blind_answer for o in strict] == [o.blind_answer for o in certain]
    middle = opinions(VLMJudge(llava, sure=0.9), candidates, run.images)
    for opinion, before in zip(middle, certain, strict=True):
        share = float(opinion.reason.split(", ")[-1].split()[0])
        assert opinion.decision == ("unsure" if share < 0.9 else before.decision)
    assert len({o.decision for o in middle}) > 1


def test_items_without_options_or_edit_fail_alone(
    llava: HuggingFaceVLM, candidates: list[Candidate], run: Run
) -> None:
    first, second, third = candidates[:3]
    free = first.item.model_copy(update={"options": None, "answer": None})
    decisions = VLMJudge(llava)(
        [replace(first, item=free), replace(second, edit=None), third], run.images
    )
    assert [type(o) for o in decisions] == [DataError, DataError, JudgeDecision]
    assert "free-form" in str(decisions[0]) and "no edited image" in str(decisions[1])
    assert VLMJudge(llava)([], run.images) == []


def test_a_judge_s_name_covers_all_that_its_answers_depend_on(
    llava: HuggingFaceVLM, tmp_path: Path
) -> None:
    judges = [
        VLMJudge(llava),
        VLMJudge(llava, sure=0.9),
        VLMJudge(llava, PromptSettings(instruction="Answer.")),
        VLMJudge(HuggingFaceVLM("shapes:qwen2_vl")),
    ]
    assert len({judge.name for judge in judges}) == 4
    spec = VLMJudgeSpec.model_validate({"model": {"path": "shapes:llava"}, "sure": 0.9})
    assert spec.build(Context(tmp_path)).name.split()[-1] == judges[1].name.split()[-1]


def test_a_confidence_threshold_needs_probabilities() -> None:
    with pytest.raises(ValidationError, match="choose"):
        VLMJudgeSpec.model_validate(
            {"model": {"path": "m"}, "sure": 0.5, "prompt": {"ask": "generate"}}
        )
