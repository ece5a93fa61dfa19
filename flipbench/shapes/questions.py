"""Questions about scenes, and *families*: one scene per option, identical but for the answer.

There are two levels. *Standard*: five kinds of question, four to eight things. *Hard*: counting
among four numbers, relations, and the colour of a thing's neighbour, each among ten to thirteen
things.

Families make pairs exchangeable. Options and scenes are drawn first, and only then which of them
is the original, so both are equally hard for a model that has seen neither, and its expected gap is
exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

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

Level = Literal["standard", "hard"]
KINDS = ("color", "shape", "number", "place", "relation")
KINDS_OF: dict[Level, tuple[str, ...]] = {
    "standard": KINDS,
    "hard": ("number", "relation", "neighbor"),
}
NUMBERS = ("0", "1", "2", "3", "4")
PLACES = ("top left", "top right", "bottom left", "bottom right")
SIDES = (("left", "right"), ("above", "below"))
BESIDE = ("right of", "below")
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
    "neighbor": (
        "What color is the object directly {beside} the {a}?",
        "Which color does the object directly {beside} the {a} have?",
        "Name the color of the object directly {beside} the {a}.",
    ),
}
_VERTICAL = "Is the {a} {x} or {y} the {b}?"


@dataclass(frozen=True)
class Question:
    """A question: its kind, the shape or colour asked about, and for a relation the other shape.

    ``vertical``: a relation is above or below; a neighbour is the one below, not to the right.
    """

    kind: str
    about: str
    other: str = ""
    vertical: bool = False

    def text(self, phrasing: int = 0) -> str:
        """Return the question's text; ``phrasing`` 0 is the benchmark's, 1 and 2 paraphrases."""
        x, y = SIDES[self.vertical]
        template = PHRASINGS[self.kind][phrasing]
        if self.kind == "relation" and self.vertical and phrasing == 0:
            template = _VERTICAL
        about = self.about
        if self.kind == "number":
            about = _PLURAL.get(about, f"{about} objects")
        return template.format(a=about, b=self.other, x=x, y=y, beside=BESIDE[self.vertical])


@dataclass(frozen=True)
class QuestionFamily:
    """A question, its options, and for each option the scene in which it is the answer."""

    question: Question
    options: tuple[str, ...]
    scenes: tuple[Scene, ...]

    def __post_init__(self) -> None:
        """Check that each option is the answer in its scene."""
        for option, scene in zip(self.options, self.scenes, strict=True):
            if answer(scene, self.question) != option:
                raise ValueError(f"the answer to {self.question} is not {option!r} in {scene}")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, the input of ``QuestionFamily.from_json``."""
        return {
            "question": asdict(self.question),
            "options": list(self.options),
            "scenes": [scene.to_json() for scene in self.scenes],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> QuestionFamily:
        """Read what ``to_json`` wrote."""
        scenes = tuple(Scene.from_json(scene) for scene in data["scenes"])
        return cls(Question(**data["question"]), tuple(data["options"]), scenes)


def answer(scene: Scene, question: Question) -> str | None:
    """Return the unique answer, or None if the question has none in this scene."""
    attribute = "shape" if question.about in SHAPES else "color"
    subjects = [t for t in scene.things if getattr(t, attribute) == question.about]
    if question.kind == "number":
        return str(len(subjects)) if len(subjects) < len(NUMBERS) else None
    if len(subjects) != 1:
        return None
    thing = subjects[0]
    if question.kind == "color":
        return thing.color
    if question.kind == "shape":
        return thing.shape
    if question.kind == "place":
        return place_of(thing.cell)
    if question.kind == "neighbor":
        beside = scene.at(_beside(thing.cell, question.vertical))
        return beside.color if beside else None
    partners = [t for t in scene.things if t.shape == question.other]
    axis = 0 if question.vertical else 1
    if len(partners) != 1 or partners[0].cell[axis] == thing.cell[axis]:
        return None
    return SIDES[question.vertical][int(thing.cell[axis] > partners[0].cell[axis])]


def place_of(cell: Cell) -> str:
    """Return the quadrant of a cell.

    >>> place_of((0, 3))
    'top right'
    """
    return PLACES[2 * (cell[0] >= GRID // 2) + (cell[1] >= GRID // 2)]


def draw_family(rng: np.random.Generator, kind: str, level: Level = "standard") -> QuestionFamily:
    """Draw a family of ``kind``, one of the level's, with its options in random order."""
    return _DRAW[level][kind](rng)


def draw_sharing(rng: np.random.Generator, n_families: int) -> list[QuestionFamily]:
    """Draw one scene and ask for the colours of some of its things, each of a unique shape.

    The scene is the first member of each family.
    """
    about = _pick(rng, SHAPES, n_families)
    cells = draw_cells(rng, n_families + int(rng.integers(4)))
    subjects = [
        draw_things(rng, [cell], (shape,), COLORS)[0]
        for cell, shape in zip(cells, about, strict=False)
    ]
    bystanders = draw_things(rng, cells[n_families:], _without(SHAPES, *about), COLORS)
    background = draw_background(rng)
    families = []
    for thing in subjects:
        distractors = _pick(rng, _without(COLORS, thing.color), int(rng.integers(2, 4)))
        companions = [bystander for bystander in (*subjects, *bystanders) if bystander is not thing]
        options = (thing.color, *distractors)
        members = [Scene.of([replace(thing, color=o), *companions], background) for o in options]
        families.append(QuestionFamily(Question("color", thing.shape), options, tuple(members)))
    return families


def _beside(cell: Cell, vertical: bool) -> Cell:
    """Return the cell below (or to the right of) a cell."""
    return (cell[0] + 1, cell[1]) if vertical else (cell[0], cell[1] + 1)


def _n_things(rng: np.random.Generator, least: int, crowded: bool) -> int:
    return int(rng.integers(10, 14) if crowded else rng.integers(least, 9))


def _pick(rng: np.random.Generator, pool: tuple[str, ...], n_picks: int) -> tuple[str, ...]:
    return tuple(pool[i] for i in rng.permutation(len(pool))[:n_picks])


def _without(pool: tuple[str, ...], *excluded: str) -> tuple[str, ...]:
    return tuple(value for value in pool if value not in excluded)


def _attribute(rng: np.random.Generator, kind: str) -> QuestionFamily:
    """Draw one thing of a unique shape, in each colour (or of a unique colour, in each shape)."""
    key_values, values = (SHAPES, COLORS) if kind == "color" else (COLORS, SHAPES)
    about = key_values[rng.integers(len(key_values))]
    options = _pick(rng, values, int(rng.integers(3, 5)))
    subject, *bystanders = _things_without(rng, draw_cells(rng, int(rng.integers(4, 9))), about)
    target, background = _with_attribute(subject, about), draw_background(rng)
    members = [Scene.of([_with_attribute(target, o), *bystanders], background) for o in options]
    return QuestionFamily(Question(kind, about), options, tuple(members))


def _number(rng: np.random.Generator, crowded: bool = False) -> QuestionFamily:
    """Draw four things, of which the first n are counted and the others differ."""
    pool = SHAPES if rng.integers(2) else COLORS
    about = pool[rng.integers(len(pool))]
    things = _things_without(rng, draw_cells(rng, _n_things(rng, 5, crowded)), about)
    options = _pick(rng, NUMBERS, 4 if crowded else int(rng.integers(3, 5)))
    background = draw_background(rng)
    members = []
    for n in map(int, options):
        subjects = [_with_attribute(thing, about) for thing in things[:n]]
        members.append(Scene.of([*subjects, *things[n:]], background))
    return QuestionFamily(Question("number", about), options, tuple(members))


def _things_without(rng: np.random.Generator, cells: list[Cell], attribute: str) -> list[Thing]:
    """Draw one thing for each cell, none of them with the given shape or colour."""
    shapes, colors = _without(SHAPES, attribute), _without(COLORS, attribute)
    return draw_things(rng, cells, shapes, colors)


def _with_attribute(thing: Thing, attribute: str) -> Thing:
    """Return the thing with another shape or colour."""
    if attribute in SHAPES:
        return replace(thing, shape=attribute)
    return replace(thing, color=attribute)


def _place(rng: np.random.Generator) -> QuestionFamily:
    """Draw one thing of a unique shape, in a free cell of each quadrant."""
    about = SHAPES[rng.integers(len(SHAPES))]
    options = _pick(rng, PLACES, int(rng.integers(3, 5)))
    homes = [
        draw_cells(rng, 1, [(r, c) for r in range(4) for c in range(4) if place_of((r, c)) == o])[0]
        for o in options
    ]
    free = [(r, c) for r in range(GRID) for c in range(GRID) if (r, c) not in homes]
    cells = draw_cells(rng, int(rng.integers(3, 8)), free)
    bystanders = draw_things(rng, cells, _without(SHAPES, about), COLORS)
    (target,) = draw_things(rng, [homes[0]], (about,), COLORS)
    background = draw_background(rng)
    members = tuple(
        Scene.of([replace(target, cell=home), *bystanders], background) for home in homes
    )
    return QuestionFamily(Question("place", about), options, members)


def _relation(rng: np.random.Generator, crowded: bool = False) -> QuestionFamily:
    """Draw two things of unique shapes, and swap their cells."""
    about, partner = _pick(rng, SHAPES, 2)
    vertical = bool(rng.integers(2))
    axis = 0 if vertical else 1
    while True:
        first_cell, second_cell, *free_cells = draw_cells(rng, _n_things(rng, 4, crowded))
        if first_cell[axis] != second_cell[axis]:
            break
    if first_cell[axis] > second_cell[axis]:
        first_cell, second_cell = second_cell, first_cell
    bystanders = draw_things(rng, free_cells, _without(SHAPES, about, partner), COLORS)
    a = draw_things(rng, [first_cell], (about,), COLORS)[0]
    b = draw_things(rng, [second_cell], (partner,), COLORS)[0]
    background = draw_background(rng)
    swapped = [
        replace(a, cell=second_cell, shift=b.shift),
        replace(b, cell=first_cell, shift=a.shift),
    ]
    lower = Scene.of([a, b, *bystanders], background)
    higher = Scene.of([*swapped, *bystanders], background)
    options, members = SIDES[vertical], (lower, higher)
    if rng.integers(2):
        options, members = options[::-1], members[::-1]
    return QuestionFamily(Question("relation", about, partner, vertical), tuple(options), members)


def _neighbor(rng: np.random.Generator) -> QuestionFamily:
    """Draw a thing of a unique shape, and the thing below or right of it in each colour."""
    about, vertical = SHAPES[rng.integers(len(SHAPES))], bool(rng.integers(2))
    cells = [(r, c) for r in range(GRID) for c in range(GRID)]
    (home,) = draw_cells(rng, 1, [c for c in cells if _beside(c, vertical) in cells])
    neighbor_cell = _beside(home, vertical)
    free = [cell for cell in cells if cell not in (home, neighbor_cell)]
    free_cells = draw_cells(rng, _n_things(rng, 10, crowded=True) - 2, free)
    (thing,) = draw_things(rng, [home], (about,), COLORS)
    neighbor, *bystanders = draw_things(
        rng, [neighbor_cell, *free_cells], _without(SHAPES, about), COLORS
    )
    options, background = _pick(rng, COLORS, 4), draw_background(rng)
    members = [
        Scene.of([thing, replace(neighbor, color=option), *bystanders], background)
        for option in options
    ]
    question = Question("neighbor", about, vertical=vertical)
    return QuestionFamily(question, options, tuple(members))


_DRAW: dict[Level, dict[str, Callable[[np.random.Generator], QuestionFamily]]] = {
    "standard": {
        "color": partial(_attribute, kind="color"),
        "shape": partial(_attribute, kind="shape"),
        "number": _number,
        "place": _place,
        "relation": _relation,
    },
    "hard": {
        "number": partial(_number, crowded=True),
        "relation": partial(_relation, crowded=True),
        "neighbor": _neighbor,
    },
}


def fresh_scene(rng: np.random.Generator) -> Scene:
    """Draw a scene at random, for training."""
    cells = draw_cells(rng, int(rng.integers(4, 10)))
    return Scene.of(draw_things(rng, cells, SHAPES, COLORS), draw_background(rng))


def questions_on(scene: Scene) -> list[Question]:
    """List every question that has an answer in ``scene``."""
    questions = [Question("number", about) for about in COLORS + SHAPES]
    questions += [Question("shape", color) for color in COLORS]
    for shape in SHAPES:
        questions += [Question("color", shape), Question("place", shape)]
        questions += [
            Question("relation", shape, partner, vertical)
            for partner in SHAPES
            if partner != shape
            for vertical in (False, True)
        ]
    return [question for question in questions if answer(scene, question) is not None]
