"""Rules on deliberately wrong edits of the embedded world: what each catches, and what it costs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flipbench.config.policy import RULES, Policy
from flipbench.core.image_similarity import largest_change
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Edit, Item, JsonDict, Verdict
from flipbench.core.run import Run
from flipbench.filters.agreement.agreement import Agreement
from flipbench.filters.agreement.ratings import (
    agreement_tables,
    compare_raters,
    ratings_of,
)
from flipbench.filters.decide import index_verdicts
from flipbench.filters.judges.rules import (
    build_rules,
    duplicate_rule,
)
from flipbench.filters.judges.shapes import SceneJudge
from flipbench.filters.pipeline import apply_policy, rate
from flipbench.generate.captioners.shapes import SceneCaptioner
from flipbench.generate.editors.shapes import SceneEditor
from flipbench.models.protocols import CaptionText, Decision
from flipbench.shapes.benchmark import shapes_vqa
from flipbench.shapes.questions import QuestionFamily
from flipbench.shapes.wording import describe
from tests.fixtures.generated import generate
from tests.fixtures.options import QUIET

N = 70
WRONG_ANSWER = range(0, 8)


class Muddled(SceneCaptioner):
    """Describes for some items the scene of an option that is neither old nor new."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[CaptionText | Exception]:
        captions = super().__call__(candidates, images)
        for at, candidate in enumerate(candidates):
            if candidate.item.name in self.names and candidate.flip:
                family = QuestionFamily.from_json(candidate.item.extra["family"])
                answers = (candidate.item.answer_text, candidate.flip.new_text)
                third = [i for i, option in enumerate(family.options) if option not in answers]
                captions[at] = CaptionText(describe(family.scenes[third[0]]))
        return captions


def redrawn(
    candidate: Candidate, image: Image.Image, run: Run, extra: JsonDict | None = None
) -> Candidate:
    """Return the candidate with another picture for an edit; it keeps the scene that was meant."""
    assert candidate.edit
    ref = run.images.put_image(image, candidate.subject)
    changed: JsonDict = {"id": "", "editor": "careless", "image": ref}
    scene = {"scene": candidate.edit.extra["scene"]}  # without the note on the first picture
    changed["extra"] = scene if extra is None else extra
    return replace(candidate, edit=Edit.model_validate(candidate.edit.model_dump() | changed))


def with_item(candidate: Candidate, **changed: object) -> Candidate:
    item = Item.model_validate(candidate.item.model_dump() | {"id": ""} | changed)
    return replace(candidate, item=item)


def noise(seed: int, size: tuple[int, int]) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.NEAREST)


def original(candidate: Candidate, run: Run) -> Image.Image:
    return run.images.open(candidate.item.images[0])


def recompressed(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("rules") / "run")


@pytest.fixture(scope="module")
def faults(run: Run) -> tuple[list[Candidate], dict[str, str]]:
    """Return candidates and, by edit id, the fault each was given; "" is a right edit."""
    items = shapes_vqa(run.images, N)
    many = [i.name for i in items if len(i.options or ()) > 2][: len(WRONG_ANSWER)]
    made, _ = generate(items, Muddled(many), SceneEditor(), run, options=QUIET)
    wrong = [c for c in made if c.item.name in many]
    rest = [c for c in made if c.item.name not in many]
    found = [(c, "wrong answer") for c in wrong] + [(c, "") for c in rest[36:]]
    for at, c in enumerate(rest[:36]):
        picture = original(c, run)
        match at // 6:
            case 0:
                quality = (50, 60, 75, 85, 95, 100)[at % 6]
                found.append((redrawn(c, recompressed(picture, quality), run), "unchanged"))
            case 1:
                found.append((redrawn(c, noise(at, picture.size), run), "unrelated"))
            case 2:
                blank = Image.new("RGB", picture.size, (50 * (at % 6),) * 3)
                found.append((redrawn(c, blank, run), "unrelated"))
            case 3:
                assert c.edit
                smaller = run.images.open(c.edit.image).resize((208, 208))
                found.append((redrawn(c, smaller, run), "wrong-size"))
            case 4:
                assert c.edit and c.item.options and c.flip and c.flip.new_answer is not None
                options = list(c.item.options)
                free = (
                    next(
                        i
                        for i in range(len(options))
                        if i not in (c.flip.new_answer, c.item.answer)
                    )
                    if len(options) > 2
                    else len(options)
                )
                options[free : free + 1] = [f" {c.flip.new_text.upper()}."]
                twice = with_item(c, options=options)
                found.append((redrawn(twice, run.images.open(c.edit.image), run), "equal-options"))
            case 5:
                assert c.edit
                again = with_item(c, name=f"{c.item.name} again")
                found += [(c, ""), (_other_edit(again), "duplicate")]
    return [c for c, _ in found], {c.edit.id: fault for c, fault in found if c.edit}


def _other_edit(candidate: Candidate) -> Candidate:
    """Return the candidate with an edit of its own that drew the same picture."""
    assert candidate.edit
    changed = candidate.edit.model_dump() | {"id": "", "seed": candidate.edit.seed + 1}
    return replace(candidate, edit=Edit.model_validate(changed))


@pytest.mark.slow
def test_every_filter_s_precision_and_recall_are_measured(
    run: Run, faults: tuple[list[Candidate], dict[str, str]]
) -> None:
    candidates, fault_of = faults
    assert len(fault_of) == len(candidates)
    policy = Policy(ask_rejected=True)
    raters, _ = rate(candidates, [SceneJudge()], run, policy, options=QUIET)
    filtered = apply_policy(candidates, raters, run, policy)
    truth: dict[str, Decision] = {i: "reject" if f else "keep" for i, f in fault_of.items()}
    ratings = ratings_of(candidates, index_verdicts(run.read(Verdict)), policy)
    decided = {r.candidate.edit.id: r.decision for r in filtered.rulings if r.candidate.edit}
    ratings = ratings.add("policy", decided).add("truth", truth)
    report = compare_raters(ratings, "truth")
    found: dict[str, Agreement] = {a.first: a for a in report.overall}

    for rater, slug in raters.rules.items():
        decisions = ratings.decisions[rater]
        rejected = {fault_of[i] for i, decision in decisions.items() if decision == "reject"}
        missed = [i for i, d in decisions.items() if d == "keep" and fault_of[i] == slug]
        assert (slug, rejected, missed) == (slug, {slug}, [])
        assert found[rater].rejection_precision.value == 1
        assert found[rater].recall.value == 1  # no right edit is rejected
        n_bad, n_caught = sum(map(bool, fault_of.values())), list(fault_of.values()).count(slug)
        assert (found[rater].rejection_recall.k, found[rater].rejection_recall.n) == (
            n_caught,
            n_bad,
        )
    oracle = found["shapes oracle"]  # it knows the scene that was meant, not the pixels
    assert oracle.recall.value == 1
    assert oracle.rejection_recall.k == len(WRONG_ANSWER)
    assert (found["policy"].precision.value, found["policy"].recall.value) == (1, 1)
    assert filtered.counts["kept"] == list(fault_of.values()).count("")

    tables = {table.key: table for table in agreement_tables(report)}
    (policy,) = (row for row in tables["agreement"].rows if row.header == "policy")
    assert "1.000" in policy.cells[2].text
    by_category = tables["agreement_by_category"].rows
    ns = [int(row.cells[1].text) for row in by_category if row.cells[0].text == "policy"]
    assert sum(ns) == len(candidates) and len(ns) > 2


@pytest.mark.slow
def test_no_right_edit_of_the_embedded_world_is_rejected(run: Run) -> None:
    items = shapes_vqa(run.images, 120)
    candidates, _ = generate(items, SceneCaptioner(), SceneEditor(), run, options=QUIET)
    for rule in build_rules(RULES, candidates):
        opinions = rule(candidates, run.images)
        assert [getattr(o, "decision", o) for o in opinions] == ["keep"] * len(candidates)


def test_the_editor_s_own_note_is_trusted(run: Run) -> None:
    items = shapes_vqa(run.images, 2)
    candidate = generate(items, SceneCaptioner(), SceneEditor(), run, options=QUIET)[0][0]
    assert candidate.edit
    picture = run.images.open(candidate.edit.image)
    decisions, rules = {}, build_rules(("unchanged", "unrelated"), [])
    for label in ("unchanged", "near-identical", "edited", "unrelated"):
        noted = redrawn(candidate, picture, run, {"similarity": {"label": label}})
        opinions = [rule([noted], run.images)[0] for rule in rules]
        decisions[label] = [getattr(o, "decision", o) for o in opinions]
    assert decisions == {
        "unchanged": ["reject", "keep"],
        "near-identical": ["keep", "keep"],  # the pictures are compared, and differ in one place
        "edited": ["keep", "keep"],
        "unrelated": ["keep", "reject"],
    }


def test_a_small_change_counts_anywhere_in_the_image() -> None:
    old = noise(0, (101, 67))
    for corner in ((0, 0), (93, 59), (0, 59), (47, 30)):
        new = old.copy()
        new.paste((255, 0, 255), (*corner, corner[0] + 8, corner[1] + 8))
        assert largest_change(old, new) > 25
    assert largest_change(old, old) == 0
    assert largest_change(Image.new("RGB", (3, 5)), Image.new("RGB", (3, 5), "white")) == 255


def test_an_edit_shared_by_two_originals_is_rejected(run: Run) -> None:
    items = shapes_vqa(run.images, 4)
    made = generate(items, SceneCaptioner(), SceneEditor(), run, options=QUIET)[0]
    placeholder = noise(5, (224, 224))
    candidates = [redrawn(made[0], placeholder, run), made[1], redrawn(made[2], placeholder, run)]
    rule = duplicate_rule(candidates)
    opinions = [getattr(o, "decision", o) for o in rule(candidates, run.images)]
    assert opinions == ["reject", "keep", "reject"]
    alone = duplicate_rule(candidates[:2])
    assert [getattr(o, "decision", o) for o in alone(candidates[:2], run.images)] == ["keep"] * 2
    assert alone.name != rule.name  # else the first verdict would stand for the larger set


@pytest.mark.parametrize(
    ("options", "new", "decision"),
    [
        (("3", "4", " 3. "), 1, "reject"),  # the old answer twice
        (("3", "4", "4"), 1, "reject"),
        (("3", "4", "5", "5"), 1, "keep"),  # both are wrong
        (("!", "?", "..."), 1, "keep"),
        (("ﬁve", "six", "FIVE"), 1, "reject"),
    ],
)
def test_equal_options_are_rejected(
    run: Run, options: tuple[str, ...], new: int, decision: Decision
) -> None:
    items = shapes_vqa(run.images, 1)
    made = generate(items, SceneCaptioner(), SceneEditor(), run, options=QUIET)[0][0]
    assert made.flip
    flip = made.flip.model_copy(update={"new_answer": new, "new_text": options[new]})
    candidate = replace(
        with_item(made, options=options, answer=0, answer_text=options[0]), flip=flip
    )
    (rule,) = build_rules(("equal-options",), [])
    (opinion,) = rule([candidate], run.images)
    assert getattr(opinion, "decision", opinion) == decision


def test_a_missing_image_fails_only_its_own_item(run: Run, tmp_path: Path) -> None:
    with Run(tmp_path) as other:
        items = shapes_vqa(other.images, 3)
        candidates, _ = generate(items, SceneCaptioner(), SceneEditor(), other, options=QUIET)
        assert candidates[1].edit
        other.images.path(candidates[1].edit.image).unlink()
        raters, (report,) = rate(candidates, [], other, Policy(), options=QUIET)
        assert report.n_failed == 2 and len(raters.rules) == len(RULES)
        policy = Policy(unjudged="keep")
        filtered = apply_policy(candidates, raters, other, policy)
        assert [r.loss for r in filtered.rulings] == ["", "a rule could not be applied", ""]
