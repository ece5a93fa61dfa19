"""Say a scene in words, and read the words back."""

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


def read_description(text: str, like: Scene) -> Scene:
    """Return the scene that a caption tells of, composed as ``like``.

    The background is that of ``like``, and so is the exact position of every thing whose cell
    is taken in ``like`` too: what Canny edges hold fast in a real picture.

    Raises
    ------
    ValueError
        Where the caption names no thing, an unknown colour, shape or cell, or a cell twice.
    """
    found = []
    for color, shape, row, column in _THING.findall(text):
        cell = (int(row) - 1, int(column) - 1)
        if color not in COLORS or shape not in SHAPES or not all(0 <= i < GRID for i in cell):
            raise ValueError(f"no such thing: {color} {shape} in row {row} column {column}")
        before = like.at(cell) or next(
            (t for t in like.things if (t.shape, t.color) == (shape, color)), None
        )
        found.append(Thing(cell, shape, color, before.shift if before else (0, 0)))
    if not found:
        raise ValueError(f"the caption names nothing to draw: {text[:80]!r}")
    return Scene.of(found, like.background)
