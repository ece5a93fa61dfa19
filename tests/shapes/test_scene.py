from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipbench.shapes.scene import COLORS, GRID, SHAPES, Scene, Thing, draw_cells, draw_things

CELLS = [(row, column) for row in range(GRID) for column in range(GRID)]
THINGS = st.builds(
    Thing,
    st.sampled_from(CELLS),
    st.sampled_from(SHAPES),
    st.sampled_from(COLORS),
    st.tuples(st.integers(-6, 6), st.integers(-6, 6)),
)
SCENES = st.builds(
    Scene.of,
    st.lists(THINGS, min_size=1, max_size=16, unique_by=lambda thing: thing.cell),
    st.integers(0, 2**31 - 1),
)


@given(SCENES)
def test_a_scene_survives_json(scene: Scene) -> None:
    assert Scene.from_json(json.loads(json.dumps(scene.to_json()))) == scene


@given(SCENES, st.randoms())
def test_the_order_of_things_does_not_matter(scene: Scene, rng: Random) -> None:
    shuffled = list(scene.things)
    rng.shuffle(shuffled)
    assert Scene.of(shuffled, scene.background) == scene


@given(SCENES)
def test_at_finds_exactly_the_things_of_a_scene(scene: Scene) -> None:
    assert tuple(thing for cell in CELLS if (thing := scene.at(cell))) == scene.things


def test_two_things_in_one_cell_are_refused() -> None:
    star, ring = Thing((1, 2), "star", "red"), Thing((1, 2), "ring", "blue")
    with pytest.raises(ValueError, match="share a cell"):
        Scene.of([star, ring], 0)


def test_the_content_hash_covers_what_a_viewer_sees() -> None:
    star = Thing((0, 0), "star", "red")
    scene = Scene.of([star], 1)
    assert scene.content_hash() == Scene.of([star], 2).content_hash()
    shifted = replace(star, shift=(3, 3))
    assert scene.content_hash() == Scene.of([shifted], 1).content_hash()
    for other in (
        Thing((0, 0), "ring", "red"),
        replace(star, color="blue"),
        replace(star, cell=(0, 1)),
    ):
        assert scene.content_hash() != Scene.of([other], 1).content_hash()


def test_draws_are_uniform_over_what_is_allowed() -> None:
    rng = np.random.default_rng(0)
    drawn = draw_things(rng, [(0, 0)] * 3000, SHAPES[:3], COLORS[2:4])
    assert {thing.shape for thing in drawn} == set(SHAPES[:3])
    assert {thing.color for thing in drawn} == set(COLORS[2:4])
    counts = [sum(thing.shape == shape for thing in drawn) for shape in SHAPES[:3]]
    assert min(counts) > 900
    cells = [tuple(draw_cells(rng, 4)) for _ in range(500)]
    assert all(len(set(row)) == 4 for row in cells)
    assert {cell for row in cells for cell in row} == set(CELLS)
    assert set(draw_cells(rng, 2, [(0, 0), (3, 3)])) == {(0, 0), (3, 3)}
