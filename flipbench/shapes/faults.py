"""Typical faults of edits, planted in the embedded world, whose ground truth is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from flipbench.shapes.questions import Question, QuestionFamily, answer
from flipbench.shapes.scene import GRID, SHAPES, Scene, Thing


def add_fault(
    scene: Scene,
    original: Scene,
    family: QuestionFamily,
    truth: str,
    rng: np.random.Generator,
) -> tuple[str, Scene]:
    """Return the name of a fault, and ``scene`` with it, so that its answer is not ``truth``.

    The fault is drawn uniformly from those `FAULTS` that the scene allows: with two options there
    is no third answer, without things none can be missing, and a number is never ambiguous.
    """
    possible = {}
    for name, draw in FAULTS.items():
        scenes = [s for s in draw(scene, original, family) if answer(s, family.question) != truth]
        if scenes:
            possible[name] = scenes
    name = list(possible)[rng.integers(len(possible))]
    return name, possible[name][rng.integers(len(possible[name]))]


def _unchanged(scene: Scene, original: Scene, family: QuestionFamily) -> list[Scene]:
    return [original]


def _another_answer(scene: Scene, original: Scene, family: QuestionFamily) -> list[Scene]:
    """Return the family's other scenes, except the original, which shows the old answer."""
    return [member for member in family.scenes if member != original]


def _object_missing(scene: Scene, original: Scene, family: QuestionFamily) -> list[Scene]:
    """Return the scenes without one of the things that the question mentions."""
    question = family.question
    mentioned = [t for t in scene.things if _is_subject(t, question) or t.shape == question.other]
    return [
        Scene.of([t for t in scene.things if t != thing], scene.background) for thing in mentioned
    ]


def _ambiguous(scene: Scene, original: Scene, family: QuestionFamily) -> list[Scene]:
    """Return the scenes with a second subject of the question that gives another answer."""
    question, truth = family.question, answer(scene, family.question)
    subject = next((t for t in scene.things if _is_subject(t, question)), None)
    if subject is None or question.kind == "number":
        return []
    variants = [subject]
    if question.kind == "color":
        variants = [replace(subject, color=option) for option in family.options]
    elif question.kind == "shape":
        variants = [replace(subject, shape=option) for option in family.options]
    bystanders = [t for t in scene.things if t != subject]
    cells = [(r, c) for r in range(GRID) for c in range(GRID) if scene.at((r, c)) is None]
    seconds = [replace(variant, cell=cell) for variant in variants for cell in cells]
    return [
        Scene.of([*scene.things, second], scene.background)
        for second in seconds
        if answer(Scene.of([second, *bystanders], scene.background), question) not in (None, truth)
    ]


def _is_subject(thing: Thing, question: Question) -> bool:
    return question.about == (thing.shape if question.about in SHAPES else thing.color)


FAULTS: dict[str, Callable[[Scene, Scene, QuestionFamily], list[Scene]]] = {
    "unchanged": _unchanged,
    "another answer": _another_answer,
    "object missing": _object_missing,
    "ambiguous": _ambiguous,
}
