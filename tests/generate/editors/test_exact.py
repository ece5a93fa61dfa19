"""Exact edits: which answers they can make true, what they change, and what they leave alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import skimage.data
from PIL import Image, ImageDraw, ImageFont

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Edit, Flip, ImageRef, Item, Source
from flipbench.generate.edit import EditStage
from flipbench.generate.editors import exact_operations as operations
from flipbench.generate.editors.exact import ExactEditor, ExactEditorSpec, read_regions
from flipbench.generate.editors.exact_rules import COLOURS, ExactEdit, Region, exact_edits
from flipbench.generate.flip import FlipStage
from flipbench.generate.letters import matched_letters
from flipbench.models.protocols import Drawing

CAT, DOG = Region((10, 10, 40, 40), "cat"), Region((90, 10, 40, 40), "dog")


def item(
    question: str,
    options: Sequence[str] | None,
    answer: int | str,
    name: str = "1",
    images: tuple[ImageRef, ...] = (),
) -> Item:
    text = answer if isinstance(answer, str) else (options or ())[answer]
    return Item(
        benchmark="made-up",
        name=name,
        images=images,
        question=question,
        options=None if options is None else tuple(options),
        answer=None if isinstance(answer, str) else answer,
        answer_text=text,
        source=Source(dataset="made-up"),
    )


COLOUR_OPTIONS = ("red", "Grey.", "striped", "blue")


@pytest.mark.parametrize(
    ("question", "options", "answer", "regions", "operation", "reached"),
    [
        ("Where is the cat?", ("top left", "top right", "middle"), 0, (), "mirror", [1]),
        ("Is the cat left or right of the dog?", ("left", "right"), 1, (), "mirror", [0]),
        ("Is the cat to the left of the dog?", None, "Yes", (), "mirror", [1]),
        ("Is the cat on the left side?", ("no", "yes"), 1, (), "mirror", [0]),
        ("What color is the cat?", COLOUR_OPTIONS, 0, (CAT,), "recolour", [1, 3]),
        ("How many cats are there?", ("1", "two", "0", "5"), 0, (CAT,), "repeat", [1, 2]),
        ("How many cats are there?", ("2", "0", "one", "9"), 0, (CAT, CAT), "remove", [1, 2]),
        ("Is the cat above or below the dog?", ("below", "above"), 0, (CAT, DOG), "swap", [1]),
        ("What is on the left?", ("a bus", "Dog", "cat"), 2, (CAT, DOG), "swap", [1]),
    ],
)
def test_an_edit_for_each_answer_that_it_makes_true(
    question: str,
    options: Sequence[str] | None,
    answer: int | str,
    regions: Sequence[Region],
    operation: str,
    reached: list[int],
) -> None:
    edits = exact_edits(item(question, options, answer), regions)
    assert sorted(edits) == reached
    wanted = {"repeat", "remove"} if operation in ("repeat", "remove") else {operation}
    assert {edit.operation for edit in edits.values()} <= wanted


@pytest.mark.parametrize(
    ("question", "options", "answer", "regions"),
    [
        ("What is on the left?", ("cat", "dog"), 0, ()),  # nobody knows what is on the right
        ("Is there a cat on the left?", None, "Yes", ()),  # there may be another on the right
        ("Is the light on the left green?", None, "Yes", ()),
        ("Is the cat to the left of the dog?", None, "No", ()),  # it may be above
        ("Which way does the sign point?", ("left", "right"), 0, ()),
        ("Which lane is right of the car on the left?", ("left", "right"), 0, ()),
        ("Is it right now?", ("right", "left"), 0, ()),
        ("What color is the cat?", COLOUR_OPTIONS, 0, ()),
        ("What color is the cat?", COLOUR_OPTIONS, 2, (CAT,)),  # which part would change?
        ("How many cats are there?", ("3", "4"), 0, (CAT,)),  # a copy may hide a third
        ("How many cats are there?", ("0", "1"), 0, ()),
        ("Which animal is larger?", ("cat", "dog"), 0, (CAT, DOG)),
        ("Where is the cat?", ("left of the sign", "right of the sign"), 0, ()),
    ],
)
def test_no_edit_where_the_new_answer_is_not_certain(
    question: str, options: Sequence[str] | None, answer: int | str, regions: Sequence[Region]
) -> None:
    assert exact_edits(item(question, options, answer), regions) == {}


# pixels


@pytest.fixture
def scene() -> np.ndarray:
    """Return a red disc and a blue square on a shaded ground."""
    ground = np.linspace(150, 200, 160)[None, :, None] * np.ones((100, 1, 3))
    image = Image.fromarray(ground.astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.ellipse((15, 15, 45, 45), fill=(200, 30, 35))
    draw.rectangle((95, 15, 125, 45), fill=(40, 90, 205))
    return np.asarray(image)


@pytest.mark.parametrize("colour", sorted(set(COLOURS) - {"red"}))
def test_an_object_takes_the_colour_and_nothing_else_changes(
    scene: np.ndarray, colour: str
) -> None:
    drawn, changed = operations.recolour(scene, CAT.box, COLOURS[colour])
    assert (drawn[~changed] == scene[~changed]).all()
    assert not changed[:, 80:].any()
    distances = {
        name: np.abs(drawn[25:35, 25:35].mean(axis=(0, 1)) - rgb).sum()
        for name, rgb in COLOURS.items()
    }
    assert min(distances, key=lambda name: distances[name]) == colour


def test_removing_leaves_the_ground(scene: np.ndarray) -> None:
    drawn, changed = operations.remove(scene, [CAT.box])
    assert (drawn[~changed] == scene[~changed]).all()
    ground = scene[60, 15:45].astype(int)
    assert np.abs(drawn[30, 15:45].astype(int) - ground).max() < 12


def test_a_copy_lies_beside_the_other_objects(scene: np.ndarray) -> None:
    drawn, changed = operations.repeat(scene, CAT.box, 2, [DOG.box])
    assert (drawn[~changed] == scene[~changed]).all()
    assert (drawn[15:46, 95:126] == scene[15:46, 95:126]).all()

    def n_red(picture: np.ndarray) -> int:
        return int((picture[..., 0].astype(int) - picture[..., 1] > 120).sum())

    assert 2.7 < n_red(drawn) / n_red(scene) < 3.1


def test_swapped_objects_stand_in_each_others_place(scene: np.ndarray) -> None:
    drawn, changed = operations.swap(scene, CAT.box, DOG.box)
    assert (drawn[~changed] == scene[~changed]).all()
    assert drawn[30, 30, 2] > 180 > drawn[30, 30, 0] and drawn[30, 110, 0] > 180


def test_mirroring_twice_gives_the_picture(scene: np.ndarray) -> None:
    assert (operations.mirror(operations.mirror(scene)[0])[0] == scene).all()


@pytest.mark.parametrize(
    ("box", "says"),
    [
        ((-1, 0, 40, 40), "leaves the picture of 160 x 100"),
        ((130, 0, 40, 40), "leaves the picture"),
        ((10, 10, 7, 40), "edge below 8"),
        ((0, 0, 160, 100), "is the whole picture"),
        ((50, 55, 40, 40), "look like the object"),
    ],
)
def test_boxes_that_hold_no_object_are_refused(
    scene: np.ndarray, box: tuple[int, int, int, int], says: str
) -> None:
    flat = np.full_like(scene, 128) if says == "look like the object" else scene
    with pytest.raises(DataError, match=says):
        operations.object_mask(flat, box)


@pytest.mark.parametrize("name", ["astronaut", "coffee", "chelsea", "rocket", "camera", "brick"])
def test_writing_is_found_where_there_is_some(name: str) -> None:
    photograph = np.asarray(getattr(skimage.data, name)())
    picture = photograph if photograph.ndim == 3 else np.stack([photograph] * 3, axis=-1)
    assert operations.text_lines(picture) == []
    image = Image.fromarray(picture)
    place = (20, image.height - 60)
    ImageDraw.Draw(image).text(
        place, "STOP AHEAD 25 km", (255, 255, 255), ImageFont.load_default(22), stroke_width=1,
        stroke_fill=(0, 0, 0),
    )  # fmt: skip
    lines = operations.text_lines(np.asarray(image))
    assert any(y < place[1] + 12 < y + height for _, y, _, height in lines)


# the editor


class Grey:
    """An editor that draws a grey picture."""

    name = "grey"
    settings = {"steps": 3}

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        refs = [candidate.source for candidate in candidates]
        return [
            Drawing(Image.new("RGB", (ref.width, ref.height), (seed, 0, 0)))
            for ref, seed in zip(refs, seeds, strict=True)
        ]


def captioned(flipped: Item, new: int) -> Candidate:
    text = (flipped.options or ())[new]
    flip = Flip(item_id=flipped.id, method="m", seed=0, new_answer=new, new_text=text)
    return Candidate(
        flipped, flip, Caption(flip_id=flip.id, captioner="c", prompt="p", text="text")
    )


@pytest.fixture
def candidates(pictures: ImageStore, scene: np.ndarray) -> list[Candidate]:
    ref = pictures.put_image(Image.fromarray(scene), "scene")
    where = item("Where is the disc?", ("left", "right"), 0, "a", (ref,))
    colour = item("What color is the disc?", ("red", "green"), 0, "b", (ref,))
    other = item("What is it made of?", ("wood", "glass"), 0, "c", (ref,))
    return [captioned(each, 1) for each in (where, colour, other)]


def test_what_no_exact_edit_fits_goes_to_the_other_editor(
    candidates: list[Candidate], pictures: ImageStore, scene: np.ndarray
) -> None:
    editor = ExactEditor({"b": [CAT]}, Grey())
    drawings = editor(candidates, [1, 2, 3], pictures)
    mirrored, recoloured, grey = (d.image for d in drawings if isinstance(d, Drawing))
    assert (np.asarray(mirrored) == scene[:, ::-1]).all()
    assert recoloured.getpixel((30, 30))[1] > 100  # type: ignore[index]
    assert grey.getpixel((0, 0)) == (3, 0, 0)
    assert [editor.identity(candidate)[0] for candidate in candidates] == ["exact"] * 2 + ["grey"]
    assert editor.identity(candidates[2]) == ("grey", {"steps": 3})


def test_without_another_editor_the_item_fails_with_a_remedy(
    candidates: list[Candidate], pictures: ImageStore
) -> None:
    mirrored, colour, other = ExactEditor({})(candidates, [1, 2, 3], pictures)
    assert isinstance(mirrored, Drawing)
    for error in (colour, other):
        assert isinstance(error, DataError) and "regions" in str(error)


def test_a_picture_with_writing_is_not_mirrored(
    candidates: list[Candidate], pictures: ImageStore
) -> None:
    page = Image.fromarray(skimage.data.page()).convert("RGB")
    changed = candidates[0].item.model_copy(
        update={"id": "", "images": (pictures.put_image(page, "page"),)}
    )
    task = captioned(Item.model_validate(changed.model_dump()), 1)
    (error,) = ExactEditor({})([task], [0], pictures)
    assert isinstance(error, DataError) and "writing at" in str(error)
    (drawing,) = ExactEditor({}, mirror_text=True)([task], [0], pictures)
    assert isinstance(drawing, Drawing)


def test_a_changed_box_changes_its_own_edit_only(
    candidates: list[Candidate], pictures: ImageStore
) -> None:
    def ids(**regions: list[Region]) -> list[str]:
        stage = EditStage(ExactEditor(regions, Grey()), pictures)
        return [stage.id_of(candidate) for candidate in candidates]

    before, after = ids(b=[CAT]), ids(b=[replace(CAT, box=(11, 11, 38, 38))])
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]
    assert after[2] == EditStage(Grey(), pictures).id_of(candidates[2])
    (edit, *_) = EditStage(ExactEditor({"b": [CAT]}, Grey()), pictures)(candidates[1:])
    assert isinstance(edit, Edit) and edit.extra["exact"]["operation"] == "recolour"
    assert 0 < edit.extra["exact"]["changed_share"] < 0.2


def test_new_answers_are_drawn_from_those_that_an_edit_shows(tmp_path: Path) -> None:
    options = ("left", "right", "on top", "below")
    items = [item("Where is the cat?", options, 0, str(n)) for n in range(40)]
    unfit = item("What is it?", ("wood", "glass"), 0, "unfit")
    spec = ExactEditorSpec()
    reachable = spec.reachable_answers([*items, unfit])
    flips = FlipStage(reachable=reachable)([*items, unfit])
    assert {flip.new_text for flip in flips if isinstance(flip, Flip)} == {"right"}
    assert isinstance(flips[-1], DataError) and "no exact edit" in str(flips[-1])
    free = FlipStage().id_of(items[0]), FlipStage(reachable=reachable).id_of(items[0])
    assert free[0] != free[1]  # another draw, so another flip
    letters = matched_letters([*items, unfit], 0, reachable)
    assert set(letters.values()) <= {1, None}
    with_other = ExactEditorSpec.model_validate({"otherwise": "shapes"})
    assert unfit.id not in with_other.reachable_answers([*items, unfit])


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("name,x,y,width,height\n,1,2,3,4\n", "name is missing"),
        ("name,x,y,width,height\na,1,2,three,4\n", "must be numbers of pixels"),
        ("name,x,y,width\na,1,2,3\n", "must be numbers of pixels"),
        ("name,x,y,width,height\na,1,2,inf,4\n", "must be numbers of pixels"),
    ],
)
def test_rows_without_a_box_are_named(tmp_path: Path, rows: str, says: str) -> None:
    path = tmp_path / "regions.csv"
    path.write_text(rows)
    with pytest.raises(DataError, match=f"line 2.*{says}"):
        read_regions(path)


def test_regions_are_read_by_item(tmp_path: Path) -> None:
    path = tmp_path / "regions.csv"
    path.write_text("name,x,y,width,height,label\na,1,2,30,40,cat\na,5.6,6,30,40,\nb,0,0,9,9,x\n")
    assert read_regions(path) == {
        "a": [Region((1, 2, 30, 40), "cat"), Region((6, 6, 30, 40))],
        "b": [Region((0, 0, 9, 9), "x")],
    }
    assert exact_edits(item("Where is it?", ("left", "right"), 0)) == {1: ExactEdit("mirror")}
