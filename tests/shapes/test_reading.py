from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from flipbench.shapes.questions import KINDS, QuestionFamily, draw_family
from flipbench.shapes.reading import Reading, fit_backdrop, read_picture
from flipbench.shapes.render import SIZE, render
from flipbench.shapes.scene import COLORS, SHAPES, Scene, Thing


def blurred(picture: Image.Image) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(2))


def noisy(picture: Image.Image) -> Image.Image:
    noise = np.random.default_rng(0).normal(0, 25, (SIZE, SIZE, 3))
    return Image.fromarray((np.asarray(picture) + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def families() -> list[QuestionFamily]:
    rng = np.random.default_rng(8)
    return [draw_family(rng, kind) for kind in KINDS for _ in range(2)]


def held(things: tuple[Thing, ...]) -> list[tuple[tuple[int, int], str, str]]:
    return sorted((thing.cell, thing.shape, thing.color) for thing in things)


@pytest.mark.parametrize(
    "change",
    [
        lambda picture: picture,
        blurred,
        noisy,
        lambda picture: noisy(blurred(picture)),
        lambda picture: picture.resize((448, 448), Image.Resampling.BICUBIC),
    ],
    ids=["clean", "blurred", "noisy", "both", "larger"],
)
def test_rendered_scenes_are_read_right(
    families: list[QuestionFamily], change: Callable[[Image.Image], Image.Image]
) -> None:
    for family in families:
        scene, option = family.scenes[0], family.options[0]
        reading = read_picture(change(render(scene)))
        assert held(reading.things) == held(scene.things)
        assert reading.unreadable == ()
        assert reading.answer(family.question) == option
        for read, thing in zip(reading.things, scene.things, strict=True):
            assert np.abs(np.subtract(read.shift, thing.shift)).max() <= 2  # a pixel


@pytest.mark.parametrize("change", [lambda picture: picture, blurred, noisy])
def test_the_backdrop_is_found_behind_the_things(
    families: list[QuestionFamily], change: Callable[[Image.Image], Image.Image]
) -> None:
    for scene in (family.scenes[0] for family in families):
        empty = np.asarray(render(Scene.of([], scene.background)), np.float32)
        fitted = fit_backdrop(change(render(scene)))
        assert fitted.shape == empty.shape
        assert np.abs(fitted - empty).mean() < 2


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_read_in_every_color_on_any_backdrop(shape: str) -> None:
    cells = [(row, column) for row in range(4) for column in range(4)][::2]
    for background in range(3):
        things = [Thing(c, shape, k) for c, k in zip(cells, COLORS, strict=True)]
        scene = Scene.of(things, background)
        assert held(read_picture(render(scene)).things) == held(scene.things)


def test_a_cell_that_fits_nothing_is_unreadable_and_gives_no_answer(
    families: list[QuestionFamily],
) -> None:
    family = families[0]
    picture = render(family.scenes[0])
    free = next((r, c) for r in range(4) for c in range(4) if not family.scenes[0].at((r, c)))
    left, top = free[1] * 56, free[0] * 56
    pen = ImageDraw.Draw(picture)
    for x in range(left + 6, left + 50, 12):  # stripes
        pen.rectangle((x, top + 6, x + 5, top + 50), fill=(220, 40, 160))
    reading = read_picture(picture)
    assert reading.unreadable == (free,)
    assert reading.scene is None
    assert reading.answer(family.question) is None
    assert held(reading.things) == held(family.scenes[0].things)


def test_an_empty_picture_holds_nothing() -> None:
    assert read_picture(Image.new("RGB", (SIZE, SIZE), (180, 190, 170))) == Reading(())


def test_noise_is_not_taken_for_a_scene() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (14, 14, 3), np.uint8)
    noise = Image.fromarray(pixels).resize((SIZE, SIZE), Image.Resampling.NEAREST)
    assert len(read_picture(noise).unreadable) >= 12
