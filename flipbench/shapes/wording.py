"""Captions of scenes: writing and reading them."""

from __future__ import annotations

import re

from flipbench.shapes.scene import COLORS, GRID, SHAPES, Scene, Thing

DESCRIBE = "Describe the picture."
_THING = re.compile(r"\ban? (\w+) (\w+) in row (\d) column (\d)")


def describe(scene: Scene) -> str:
    """Return a dense caption: every thing with its colour, shape, row and column.

    >>> describe(Scene.of([Thing((0, 3), "star", "orange")], background=1))
    'A picture of 1 objects: an orange star in row 1 column 4.'
    """
    things = ", ".join(
        f"{'an' if t.color == 'orange' else 'a'} {t.color} {t.shape}"
        f" in row {t.cell[0] + 1} column {t.cell[1] + 1}"
        for t in scene.things
    )
    return f"A picture of {len(scene.things)} objects: {things}."


def read_description(text: str, original: Scene) -> Scene:
    """Return the scene that a caption describes, with the composition of ``original``.

    The background is that of ``original``, and so is the exact position of every thing whose cell
    is occupied there: this is what Canny edges preserve in real images.

    Raises
    ------
    ValueError
        If the caption mentions no thing, an unknown colour, shape or cell, or a cell twice.
    """
    things = []
    for color, shape, row, column in _THING.findall(text):
        cell = (int(row) - 1, int(column) - 1)
        if color not in COLORS or shape not in SHAPES or not all(0 <= i < GRID for i in cell):
            raise ValueError(f"no such thing: {color} {shape} in row {row} column {column}")
        alike = (t for t in original.things if (t.shape, t.color) == (shape, color))
        counterpart = original.at(cell) or next(alike, None)
        things.append(Thing(cell, shape, color, counterpart.shift if counterpart else (0, 0)))
    if not things:
        raise ValueError(f"the caption mentions nothing to draw: {text[:80]!r}")
    return Scene.of(things, original.background)
