"""Questions about scenes, and *families*: one scene per option, alike but for the answer.

A family is what makes pairs exchangeable. Options and scenes are drawn first, without saying
which of them is the original; a coin says it afterwards. So a model that has seen neither member
finds both equally hard, and its expected gap is exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flipbench.shapes.scene import (
    COLORS,
    GRID,
    SHAPES,
    Cell,
    Scene,
    Thing,
    draw_background,
    draw_cells,
    draw_things,
)

KINDS = ("color", "shape", "number", "place", "relation")
NUMBERS = ("0", "1", "2", "3", "4")
PLACES = ("top left", "top right", "bottom left", "bottom right")
SIDES = (("left", "right"), ("above", "below"))
_PLURAL = {shape: shape + ("es" if shape.endswith("s") else "s") for shape in SHAPES}

# The first phrasing is the benchmark's; the others are its paraphrases.
PHRASINGS: dict[str, tuple[str, str, str]] = {
    "color": (
        "What color is the {a}?",
        "Which color does the {a} have?",
        "Name the color of the {a}.",
    ),
    "shape": (
        "What shape is the {a} object?",
        "Which shape does the {a} object have?",
        "Name the shape of the {a} object.",
    ),
    "number": (
        "How many {a} are there?",
        "What is the number of {a}?",
        "Count the {a}.",
    ),
    "place": (
        "Where is the {a}?",
        "Which part of the picture holds the {a}?",
        "Name the place of the {a}.",
    ),
    "relation": (
        "Is the {a} {x} or {y} of the {b}?",
        "On which side of the {b} is the {a}?",
        "Name the side of the {b} that has the {a}.",
    ),
}
_VERTICAL = "Is the {a} {x} or {y} the {b}?"


@dataclass(frozen=True)
class Question:
    """A question: its kind, the shape or colour asked about, and for a relation the other shape."""

    kind: str
    about: str
    other: str = ""
    vertical: bool = False

    def text(self, phrasing: int = 0) -> str:
        """Return the wording; ``phrasing`` 0 is the benchmark's, 1 and 2 are paraphrases."""
        x, y = SIDES[self.vertical]
        template = PHRASINGS[self.kind][phrasing]
        if self.kind == "relation" and self.vertical and phrasing == 0:
            template = _VERTICAL
        about = self.about
        if self.kind == "number":
            about = _PLURAL.get(about, f"{about} objects")
        return template.format(a=about, b=self.other, x=x, y=y)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return self.__dict__.copy()


@dataclass(frozen=True)
class Family:
    """A question, its options, and for each option the scene in which it alone is right."""

    question: Question
    options: tuple[str, ...]
    scenes: tuple[Scene, ...]

    def __post_init__(self) -> None:
        """Check that every member makes its own option right."""
        for option, scene in zip(self.options, self.scenes, strict=True):
            if answer(scene, self.question) != option:
                raise ValueError(f"{self.question} is not {option!r} in {scene}")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; ``Family.from_json`` undoes it exactly."""
        return {
            "question": self.question.to_json(),
            "options": list(self.options),
            "scenes": [scene.to_json() for scene in self.scenes],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Family:
        """Read what ``to_json`` wrote."""
        scenes = tuple(Scene.from_json(scene) for scene in data["scenes"])
        return cls(Question(**data["question"]), tuple(data["options"]), scenes)


def answer(scene: Scene, question: Question) -> str | None:
    """Return the one true answer, or None where the question has none in this scene."""
    if question.kind == "number":
        attribute = "shape" if question.about in SHAPES else "color"
        n_found = sum(getattr(t, attribute) == question.about for t in scene.things)
        return str(n_found) if n_found < len(NUMBERS) else None
    attribute = "color" if question.kind == "shape" else "shape"
    found = [t for t in scene.things if getattr(t, attribute) == question.about]
    if len(found) != 1:
        return None
    thing = found[0]
    if question.kind == "color":
        return thing.color
    if question.kind == "shape":
        return thing.shape
    if question.kind == "place":
        return place_of(thing.cell)
    others = [t for t in scene.things if t.shape == question.other]
    axis = 0 if question.vertical else 1
    if len(others) != 1 or others[0].cell[axis] == thing.cell[axis]:
        return None
    return SIDES[question.vertical][int(thing.cell[axis] > others[0].cell[axis])]


def place_of(cell: Cell) -> str:
    """Return the quarter of the picture a cell lies in.

    >>> place_of((0, 3))
    'top right'
    """
    return PLACES[2 * (cell[0] >= GRID // 2) + (cell[1] >= GRID // 2)]


def draw_family(rng: np.random.Generator, kind: str) -> Family:
    """Draw a family of ``kind``; the order of its options is random too."""
    return _DRAW[kind](rng)


def _pick(rng: np.random.Generator, pool: tuple[str, ...], n_picks: int) -> tuple[str, ...]:
    return tuple(pool[i] for i in rng.permutation(len(pool))[:n_picks])


def _without(pool: tuple[str, ...], *gone: str) -> tuple[str, ...]:
    return tuple(value for value in pool if value not in gone)


def _attribute(rng: np.random.Generator, kind: str) -> Family:
    """One thing, unique by shape, takes each colour (or unique by colour, each shape)."""
    by_shape = kind == "color"
    known, asked = (SHAPES, COLORS) if by_shape else (COLORS, SHAPES)
    about = known[rng.integers(len(known))]
    options = _pick(rng, asked, int(rng.integers(3, 5)))
    cells = draw_cells(rng, int(rng.integers(4, 9)))
    rest = _without(known, about)
    things = (
        draw_things(rng, cells, rest, COLORS) if by_shape else draw_things(rng, cells, SHAPES, rest)
    )
    target, others = things[0], things[1:]
    background = draw_background(rng)
    members = []
    for option in options:
        shape, color = (about, option) if by_shape else (option, about)
        members.append(Scene.of([replace(target, shape=shape, color=color), *others], background))
    return Family(Question(kind, about), options, tuple(members))


def _number(rng: np.random.Generator) -> Family:
    """The first n of four things are what is counted; the rest of the four are something else."""
    by_shape = bool(rng.integers(2))
    pool = SHAPES if by_shape else COLORS
    about = pool[rng.integers(len(pool))]
    rest = _without(pool, about)
    cells = draw_cells(rng, int(rng.integers(5, 9)))
    things = (
        draw_things(rng, cells, rest, COLORS) if by_shape else draw_things(rng, cells, SHAPES, rest)
    )
    options = _pick(rng, NUMBERS, int(rng.integers(3, 5)))
    background = draw_background(rng)
    members = []
    for option in options:
        n = int(option)
        members.append(Scene.of([_painted(t, about) for t in things[:n]] + things[n:], background))
    return Family(Question("number", about), options, tuple(members))


def _painted(thing: Thing, about: str) -> Thing:
    """Return the thing with ``about`` as its shape or colour, whichever it is."""
    if about in SHAPES:
        return replace(thing, shape=about)
    return replace(thing, color=about)


def _place(rng: np.random.Generator) -> Family:
    """One thing, unique by shape, moves to a free cell of each quarter."""
    about = SHAPES[rng.integers(len(SHAPES))]
    options = _pick(rng, PLACES, int(rng.integers(3, 5)))
    homes = [
        draw_cells(rng, 1, [(r, c) for r in range(4) for c in range(4) if place_of((r, c)) == o])[0]
        for o in options
    ]
    free = [(r, c) for r in range(GRID) for c in range(GRID) if (r, c) not in homes]
    cells = draw_cells(rng, int(rng.integers(3, 8)), free)
    others = draw_things(rng, cells, _without(SHAPES, about), COLORS)
    (target,) = draw_things(rng, [homes[0]], (about,), COLORS)
    background = draw_background(rng)
    members = tuple(Scene.of([replace(target, cell=home), *others], background) for home in homes)
    return Family(Question("place", about), options, members)


def _relation(rng: np.random.Generator) -> Family:
    """Two things, each unique by shape, change places."""
    about, other = _pick(rng, SHAPES, 2)
    vertical = bool(rng.integers(2))
    axis = 0 if vertical else 1
    while True:
        first, second, *rest = draw_cells(rng, int(rng.integers(4, 9)))
        if first[axis] != second[axis]:
            break
    if first[axis] > second[axis]:
        first, second = second, first
    others = draw_things(rng, rest, _without(SHAPES, about, other), COLORS)
    a = draw_things(rng, [first], (about,), COLORS)[0]
    b = draw_things(rng, [second], (other,), COLORS)[0]
    background = draw_background(rng)
    swapped = [replace(a, cell=second, shift=b.shift), replace(b, cell=first, shift=a.shift)]
    lower = Scene.of([a, b, *others], background)
    higher = Scene.of([*swapped, *others], background)
    options, members = SIDES[vertical], (lower, higher)
    if rng.integers(2):
        options, members = options[::-1], members[::-1]
    return Family(Question("relation", about, other, vertical), tuple(options), members)


_DRAW = {
    "color": lambda rng: _attribute(rng, "color"),
    "shape": lambda rng: _attribute(rng, "shape"),
    "number": _number,
    "place": _place,
    "relation": _relation,
}


def fresh_scene(rng: np.random.Generator) -> Scene:
    """Draw a scene at random, for training."""
    cells = draw_cells(rng, int(rng.integers(4, 10)))
    return Scene.of(draw_things(rng, cells, SHAPES, COLORS), draw_background(rng))


def questions_on(scene: Scene) -> list[Question]:
    """List every question that has an answer in ``scene``."""
    found = [Question("number", about) for about in COLORS + SHAPES]
    found += [Question("shape", color) for color in COLORS]
    for shape in SHAPES:
        found += [Question("color", shape), Question("place", shape)]
        found += [
            Question("relation", shape, other, vertical)
            for other in SHAPES
            if other != shape
            for vertical in (False, True)
        ]
    return [question for question in found if answer(scene, question) is not None]


def thing_name(thing: Thing) -> str:
    """Return ``"red star"``."""
    return f"{thing.color} {thing.shape}"
