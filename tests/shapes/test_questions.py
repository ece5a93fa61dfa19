from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from flipbench.shapes.questions import (
    KINDS,
    KINDS_OF,
    PHRASINGS,
    Question,
    QuestionFamily,
    answer,
    draw_family,
    fresh_scene,
    questions_on,
)
from flipbench.shapes.scene import COLORS, SHAPES, Scene, Thing

N_FAMILIES = 300
ALL_OPTIONS = (
    *COLORS,
    *SHAPES,
    *"01234",
    *(f"{v} {h}" for v in ("top", "bottom") for h in ("left", "right")),
    *("left", "right", "above", "below"),
)


def holds(scene: Scene, text: str, option: str) -> bool:
    """Say whether ``option`` answers the question ``text``, from the words and the bare scene."""
    things = [tuple(row) for row in scene.to_json()["things"]]  # row, column, shape, color, dx, dy
    if found := re.fullmatch(r"How many (\w+?)(?:s| objects) are there\?", text):
        name = {"crosse": "cross"}.get(found[1], found[1])
        return option == str(sum(name in (shape, color) for _, _, shape, color, *_ in things))
    if found := re.fullmatch(r"What color is the (\w+)\?", text):
        return [color for _, _, shape, color, *_ in things if shape == found[1]] == [option]
    if found := re.fullmatch(r"What shape is the (\w+) object\?", text):
        return [shape for _, _, shape, color, *_ in things if color == found[1]] == [option]
    if found := re.fullmatch(r"Where is the (\w+)\?", text):
        at = [(row, column) for row, column, shape, *_ in things if shape == found[1]]
        quarter = f"{'top' if at[0][0] in (0, 1) else 'bottom'} "
        quarter += "left" if at[0][1] in (0, 1) else "right"
        return len(at) == 1 and option == quarter
    if found := re.fullmatch(r"What color is the object directly (.+) the (\w+)\?", text):
        right, below = {"right of": (1, 0), "below": (0, 1)}[found[1]]
        (a,) = [thing for thing in things if thing[2] == found[2]]
        at = (a[0] + below, a[1] + right)
        return [color for row, column, _, color, *_ in things if (row, column) == at] == [option]
    found = re.fullmatch(r"Is the (\w+) (left or right of|above or below) the (\w+)\?", text)
    assert found, text
    (a,) = [thing for thing in things if thing[2] == found[1]]
    (b,) = [thing for thing in things if thing[2] == found[3]]
    sides = {"left": a[1] < b[1], "right": a[1] > b[1], "above": a[0] < b[0], "below": a[0] > b[0]}
    return option in found[2].split() and sides.get(option, False)


@pytest.fixture(
    scope="module", params=[(level, kind) for level, kinds in KINDS_OF.items() for kind in kinds]
)
def families(request: pytest.FixtureRequest) -> list[QuestionFamily]:
    rng, (level, kind) = np.random.default_rng(7), request.param
    return [draw_family(rng, kind, level) for _ in range(N_FAMILIES)]


@pytest.mark.slow
def test_every_member_makes_its_option_right_and_no_other(families: list[QuestionFamily]) -> None:
    for family in families:
        text = family.question.text()
        assert len(family.scenes) == len(family.options) == len(set(family.options))
        for option, scene in zip(family.options, family.scenes, strict=True):
            assert [other for other in ALL_OPTIONS if holds(scene, text, other)] == [option]


def test_answer_agrees_with_brute_force_on_any_scene() -> None:
    rng = np.random.default_rng(3)
    n_asked: Counter[str] = Counter()
    for scene in (fresh_scene(rng) for _ in range(60)):
        for question in questions_on(scene):
            right = [o for o in ALL_OPTIONS if holds(scene, question.text(), o)]
            assert right == [answer(scene, question)], (question, scene)
            n_asked[question.kind] += 1
    assert set(n_asked) == set(KINDS) and min(n_asked.values()) > 50


@pytest.mark.parametrize(
    "question",
    [
        Question("color", "star"),
        Question("place", "star"),
        Question("shape", "red"),
        Question("relation", "star", "ring"),
        Question("relation", "ring", "star"),
        Question("relation", "ring", "cross", vertical=True),
        Question("color", "circle"),
        Question("number", "black"),
    ],
    ids=str,
)
def test_an_ambiguous_question_has_no_answer(question: Question) -> None:
    blacks = [Thing((r, 3), "square", "black") for r in range(4)] + [
        Thing((3, 2), "cross", "black")
    ]
    things = [
        Thing((0, 0), "star", "red"),
        Thing((0, 1), "star", "red"),
        Thing((3, 0), "ring", "blue"),
        *blacks,
    ]
    scene = Scene.of(things, 0)
    assert answer(scene, question) is None
    assert question not in questions_on(scene)


def test_members_differ_only_as_stated(families: list[QuestionFamily]) -> None:
    for family in families:
        kind, about = family.question.kind, family.question.about
        assert len({scene.background for scene in family.scenes}) == 1
        assert len({len(scene.things) for scene in family.scenes}) == 1
        for i, first in enumerate(family.scenes):
            for j, second in enumerate(family.scenes[:i]):
                gone = sorted(set(first.things) - set(second.things))
                come = sorted(set(second.things) - set(first.things))
                if kind in ("color", "shape", "neighbor"):
                    assert len(gone) == len(come) == 1
                    changed = {"shape" if kind == "shape" else "color": ""}
                    assert replace(gone[0], **changed) == replace(come[0], **changed)
                elif kind == "place":
                    assert len(gone) == len(come) == 1
                    assert replace(gone[0], cell=(0, 0)) == replace(come[0], cell=(0, 0))
                elif kind == "number":
                    attribute = "shape" if about in SHAPES else "color"
                    n_changed = abs(int(family.options[i]) - int(family.options[j]))
                    assert len(gone) == len(come) == n_changed
                    for a, b in zip(gone, come, strict=True):
                        assert replace(a, **{attribute: ""}) == replace(b, **{attribute: ""})
                else:
                    a, b = gone
                    assert come == [replace(b, cell=a.cell, shift=a.shift), come[1]]
                    assert come[1] == replace(a, cell=b.cell, shift=b.shift)
                    assert {a.shape, b.shape} == {about, family.question.other}


def test_a_family_survives_json(families: list[QuestionFamily]) -> None:
    for family in families[:20]:
        assert QuestionFamily.from_json(json.loads(json.dumps(family.to_json()))) == family


def test_a_family_with_a_wrong_member_is_refused(families: list[QuestionFamily]) -> None:
    family = families[0]
    with pytest.raises(ValueError, match="is not"):
        QuestionFamily(family.question, family.options, family.scenes[::-1][: len(family.options)])


def test_draws_depend_on_the_generator_alone() -> None:
    for level, kinds in KINDS_OF.items():
        for kind in kinds:
            a, b, c = (draw_family(np.random.default_rng(s), kind, level) for s in (1, 1, 2))
            assert a == b != c


def test_option_sets_are_varied(families: list[QuestionFamily]) -> None:
    kind = families[0].question.kind
    n_values = {"color": 8, "shape": 6, "number": 5, "place": 4, "relation": 4, "neighbor": 8}
    expected = n_values[kind]
    assert len({option for family in families for option in family.options}) == expected
    n_options = {len(family.options) for family in families}
    hard = min(len(scene.things) for family in families for scene in family.scenes) >= 10
    assert n_options == ({2} if kind == "relation" else {4} if hard else {3, 4})


def test_the_hard_level_is_crowded_and_a_neighbor_needs_both_things() -> None:
    rng = np.random.default_rng(11)
    for kind in KINDS_OF["hard"]:
        for family in (draw_family(rng, kind, "hard") for _ in range(50)):
            assert {len(scene.things) for scene in family.scenes} <= set(range(10, 14))
    things = [Thing((0, 0), "star", "red"), Thing((0, 1), "ring", "blue")]
    right, below = Question("neighbor", "star"), Question("neighbor", "star", vertical=True)
    assert answer(Scene.of(things, 0), right) == "blue"
    assert answer(Scene.of(things, 0), below) is None
    assert answer(Scene.of(things[1:], 0), right) is None
    assert answer(Scene.of([*things, Thing((3, 3), "star", "black")], 0), right) is None


def test_paraphrases_differ_and_name_the_same_things() -> None:
    for kind in PHRASINGS:
        assert len(set(PHRASINGS[kind])) == 3
        for vertical in (False, True):
            question = Question(kind, "red" if kind == "shape" else "cross", "ring", vertical)
            texts = [question.text(i) for i in range(3)]
            assert len(set(texts)) == 3
            assert all("{" not in text for text in texts)
            for word in (question.about, *([question.other] if kind == "relation" else [])):
                assert all(word in text for text in texts)
