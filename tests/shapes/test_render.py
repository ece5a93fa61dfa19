from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipbench.shapes.questions import KINDS, draw_family, fresh_scene
from flipbench.shapes.render import SIZE, render
from flipbench.shapes.scene import COLORS, GRID, SHAPES, Scene, Thing

CELL = SIZE // GRID


def pixels(scene: Scene, size: int = SIZE) -> np.ndarray:
    """Return the picture, shape (size, size, 3)."""
    return np.asarray(render(scene, size)).astype(int)


def box(thing: Thing) -> tuple[slice, slice]:
    """Return the pixels a thing and its shadow may touch: its cell, moved by its shift."""
    top, left = (
        CELL * i + round(CELL * s / 100)
        for i, s in zip(thing.cell, reversed(thing.shift), strict=True)
    )
    return slice(max(0, top), top + CELL), slice(max(0, left), left + CELL)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_the_same_scene_renders_to_the_same_bytes(seed: int) -> None:
    scene = fresh_scene(np.random.default_rng(seed))
    again = Scene.from_json(scene.to_json())
    assert render(scene).tobytes() == render(again).tobytes()
    assert render(scene).size == (SIZE, SIZE) and render(scene).mode == "RGB"


def test_rendering_does_not_change_an_earlier_image() -> None:
    scene = fresh_scene(np.random.default_rng(1))
    first = render(scene)
    before = first.tobytes()
    render(Scene(scene.things[1:], scene.background))
    assert first.tobytes() == before


@pytest.mark.parametrize("kind", KINDS)
def test_members_differ_only_in_the_changed_cells(kind: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        family = draw_family(rng, kind)
        first = family.scenes[0]
        for second in family.scenes[1:]:
            changed = (pixels(first) != pixels(second)).any(2)
            allowed = np.zeros((SIZE, SIZE), bool)
            for thing in set(first.things) ^ set(second.things):
                allowed[box(thing)] = True
                assert changed[box(thing)].sum() > 50, "a change that nobody could see"
            assert not (changed & ~allowed).any()


def test_every_colour_and_shape_looks_different() -> None:
    empty = pixels(Scene((), 3))
    looks = {}
    for shape in SHAPES:
        for color in COLORS:
            picture = pixels(Scene.of([Thing((1, 1), shape, color)], 3))
            inside = picture[CELL : 2 * CELL, CELL : 2 * CELL]
            assert (picture != empty).any(2).sum() > 200
            looks[shape, color] = inside
    names = list(looks)
    for i, a in enumerate(names):
        for b in names[:i]:
            n_different = (np.abs(looks[a] - looks[b]).max(2) > 30).sum()
            assert n_different > 80, (a, b, n_different)


def test_a_shift_moves_a_thing_by_at_most_three_pixels() -> None:
    for dx, dy in ((6, 0), (0, -6), (-6, 6)):
        here = pixels(Scene.of([Thing((1, 2), "star", "red")], 3)) - pixels(Scene((), 3))
        there = pixels(Scene.of([Thing((1, 2), "star", "red", (dx, dy))], 3)) - pixels(Scene((), 3))
        centre = [np.argwhere(np.abs(d).sum(2) > 60).mean(0) for d in (here, there)]
        moved = centre[1] - centre[0]
        assert moved == pytest.approx([CELL * dy / 100, CELL * dx / 100], abs=0.7)


def test_backgrounds_differ_by_seed_and_never_hide_a_thing() -> None:
    backdrops = [pixels(Scene((), seed)) for seed in range(20)]
    assert len({b.tobytes() for b in backdrops}) == 20
    assert all(b.min() > 110 and b.max() < 245 for b in backdrops)  # between black and white


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 112, 448])
def test_every_multiple_of_the_grid_renders(size: int) -> None:
    scene = fresh_scene(np.random.default_rng(0))
    assert render(scene, size).size == (size, size)


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="no such shape: 'blob'"):
        render(Scene.of([Thing((0, 0), "blob", "red")], 0))
