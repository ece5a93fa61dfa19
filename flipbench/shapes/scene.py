"""The embedded world's scene graph: coloured shapes on a 4 x 4 grid."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

GRID = 4
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
Cell = tuple[int, int]


@dataclass(frozen=True, order=True)
class Thing:
    """One coloured shape in one cell; ``shift`` moves it off the cell's centre, in percent."""

    cell: Cell
    shape: str
    color: str
    shift: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Scene:
    """Things sorted by cell, on a background drawn from the seed ``background``."""

    things: tuple[Thing, ...]
    background: int

    @classmethod
    def of(cls, things: list[Thing], background: int) -> Scene:
        """Return a scene of unsorted things; two in one cell are an error."""
        cells = [thing.cell for thing in things]
        if len(set(cells)) != len(cells):
            raise ValueError(f"two things share a cell: {sorted(cells)}")
        return cls(tuple(sorted(things)), background)

    def at(self, cell: Cell) -> Thing | None:
        """Return the thing in ``cell``, or None."""
        return next((thing for thing in self.things if thing.cell == cell), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, the input of ``Scene.from_json``."""
        things = [[*t.cell, t.shape, t.color, *t.shift] for t in self.things]
        return {"background": self.background, "things": things}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Scene:
        """Read what ``to_json`` wrote."""
        things = [Thing((r, c), s, k, (dx, dy)) for r, c, s, k, dx, dy in data["things"]]
        return cls.of(things, data["background"])

    def content_hash(self) -> str:
        """Return a hash of the things and their cells, without shifts and background."""
        content = [[*t.cell, t.shape, t.color] for t in self.things]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def draw_things(
    rng: np.random.Generator, cells: list[Cell], shapes: tuple[str, ...], colors: tuple[str, ...]
) -> list[Thing]:
    """Draw one thing for each cell, uniformly from ``shapes`` and ``colors``."""
    return [
        Thing(
            cell,
            shapes[rng.integers(len(shapes))],
            colors[rng.integers(len(colors))],
            (int(rng.integers(-6, 7)), int(rng.integers(-6, 7))),
        )
        for cell in cells
    ]


def draw_cells(
    rng: np.random.Generator, n_cells: int, among: list[Cell] | None = None
) -> list[Cell]:
    """Draw ``n_cells`` distinct cells of the grid, or of ``among``."""
    pool = among if among is not None else [(r, c) for r in range(GRID) for c in range(GRID)]
    return [pool[i] for i in rng.permutation(len(pool))[:n_cells]]


def draw_background(rng: np.random.Generator) -> int:
    """Draw a background's seed."""
    return int(rng.integers(2**31))
