from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Flip, Item
from flipbench.filters.judges.shapes import SceneJudge
from flipbench.generate.captioners.shapes import SceneCaptioner
from flipbench.generate.editors.shapes import SceneEditor
from flipbench.models.protocols import CaptionText, Drawing
from flipbench.shapes.benchmark import scene_of
from flipbench.shapes.questions import QuestionFamily
from flipbench.shapes.render import render
from flipbench.shapes.scene import Scene, Thing
from flipbench.shapes.wording import describe, read_description
from tests.fixtures.flipped import flipped
from tests.shapes.test_scene import SCENES


@given(SCENES)
def test_a_described_scene_is_read_back_exactly(scene: Scene) -> None:
    assert read_description(describe(scene), scene) == scene


@given(scene=SCENES, like=SCENES)
def test_the_caption_wins_and_the_rest_is_kept(scene: Scene, like: Scene) -> None:
    read = read_description(describe(scene), original=like)
    assert [(t.cell, t.shape, t.color) for t in read.things] == [
        (t.cell, t.shape, t.color) for t in scene.things
    ]
    assert read.background == like.background
    before = {thing.cell: thing.shift for thing in like.things}
    assert all(thing.shift == before.get(thing.cell, thing.shift) for thing in read.things)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "mentions nothing"),
        ("A lovely afternoon.", "mentions nothing"),
        ("a pink star in row 1 column 1", "no such thing: pink star"),
        ("a red moon in row 1 column 1", "no such thing: red moon"),
        ("a red star in row 5 column 1", "row 5 column 1"),
        ("a red star in row 0 column 1", "row 0 column 1"),
        ("a red star in row 1 column 9", "row 1 column 9"),
        ("a red star in row 1 column 1, a blue ring in row 1 column 1", "share a cell"),
    ],
)
def test_bad_captions_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_description(text, original=Scene.of([Thing((0, 0), "star", "red")], 0))


@pytest.mark.slow
def test_the_captioner_describes_every_perturbed_scene_exactly(
    all_items: list[Item], shapes_store: ImageStore
) -> None:
    """For every item and every other option: caption → scene is the family's own scene."""
    n_checked = 0
    for item in all_items:
        family = QuestionFamily.from_json(item.extra["family"])
        options = item.options or ()
        for new in {*range(len(options))} - {item.answer}:
            candidate = flipped(item, new)
            (caption,) = SceneCaptioner()([candidate], shapes_store)
            assert isinstance(caption, CaptionText)
            expected = family.scenes[family.options.index(options[new])]
            assert read_description(caption.text, original=scene_of(candidate)) == expected
            n_checked += 1
    assert n_checked > 2 * len(all_items)


def test_the_editor_renders_the_perturbed_scene_and_the_oracle_agrees(
    shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    for item in shapes_items[:40]:
        candidate = flipped(item)
        assert candidate.flip
        (caption,) = SceneCaptioner()([candidate], shapes_store)
        assert isinstance(caption, CaptionText)
        record = Caption(flip_id=candidate.flip.id, captioner="c", prompt="p", text=caption.text)
        (drawing,) = SceneEditor()([replace(candidate, caption=record)], [0], shapes_store)
        assert isinstance(drawing, Drawing)
        family = QuestionFamily.from_json(item.extra["family"])
        twin = family.scenes[family.options.index(candidate.flip.new_text)]
        assert drawing.extra["scene"] == twin.to_json()
        assert drawing.image.tobytes() == render(twin).tobytes()
        assert drawing.image.tobytes() != shapes_store.open(item.images[0]).tobytes()


def test_items_from_elsewhere_are_failures_not_crashes(
    shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    foreign = flipped(shapes_items[0].model_copy(update={"extra": {}}), 0)
    strange = Candidate(
        shapes_items[0],
        Flip(item_id="i", method="m", seed=0, new_answer=0, new_text="no option of it"),
    )
    for candidate in (foreign, strange):
        (caption,) = SceneCaptioner()([candidate], shapes_store)
        assert isinstance(caption, DataError)
    for result in (
        SceneEditor()([foreign], [0], shapes_store)[0],
        SceneJudge()([foreign], shapes_store)[0],
    ):
        assert isinstance(result, DataError)
