"""What goes wrong with edits in life, planted in the embedded world, where the truth is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from flipbench.shapes.questions import Family, Question, answer
from flipbench.shapes.scene import GRID, SHAPES, Scene, Thing


def spoil(
    scene: Scene, original: Scene, family: Family, right: str, rng: np.random.Generator
) -> tuple[str, Scene]:
    """Return the name of a fault, and ``scene`` with it: ``right`` is no longer its answer.

    The fault is one of `FAULTS`, each that is possible with the same probability: two options
    leave no third to be drawn, of no things none can be missing, and a number is never ambiguous.
    """
    possible = {}
    for name, draw in FAULTS.items():
        wrong = [s for s in draw(scene, original, family) if answer(s, family.question) != right]
        if wrong:
            possible[name] = wrong
    name = list(possible)[rng.integers(len(possible))]
    return name, possible[name][rng.integers(len(possible[name]))]


def _unchanged(scene: Scene, original: Scene, family: Family) -> list[Scene]:
    return [original]


def _another_answer(scene: Scene, original: Scene, family: Family) -> list[Scene]:
    """Return the family's other scenes; in the original the old answer would still be true."""
    return [member for member in family.scenes if member != original]


def _object_missing(scene: Scene, original: Scene, family: Family) -> list[Scene]:
    """Return the scene without one of the things that the question names."""
    question = family.question
    named = [t for t in scene.things if _is_named(t, question) or t.shape == question.other]
    return [Scene.of([t for t in scene.things if t != gone], scene.background) for gone in named]


def _ambiguous(scene: Scene, original: Scene, family: Family) -> list[Scene]:
    """Return the scene with a second thing that fits the question and has another answer to it."""
    question, right = family.question, answer(scene, family.question)
    asked = next((t for t in scene.things if _is_named(t, question)), None)
    if asked is None or question.kind == "number":
        return []
    looks = [asked]
    if question.kind == "color":
        looks = [replace(asked, color=option) for option in family.options]
    elif question.kind == "shape":
        looks = [replace(asked, shape=option) for option in family.options]
    rest = [t for t in scene.things if t != asked]
    cells = [(r, c) for r in range(GRID) for c in range(GRID) if scene.at((r, c)) is None]
    twins = [replace(look, cell=cell) for look in looks for cell in cells]
    instead = [answer(Scene.of([twin, *rest], scene.background), question) for twin in twins]
    return [
        Scene.of([*scene.things, twin], scene.background)
        for twin, other in zip(twins, instead, strict=True)
        if other not in (None, right)
    ]


def _is_named(thing: Thing, question: Question) -> bool:
    return question.about == (thing.shape if question.about in SHAPES else thing.color)


FAULTS: dict[str, Callable[[Scene, Scene, Family], list[Scene]]] = {
    "unchanged": _unchanged,
    "another answer": _another_answer,
    "object missing": _object_missing,
    "ambiguous": _ambiguous,
}
