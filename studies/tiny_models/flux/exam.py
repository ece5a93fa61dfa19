"""Edits of held-out families, judged by their pixels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from flipbench.shapes.questions import KINDS, QuestionFamily
from flipbench.shapes.reading import Reading, read_picture
from flipbench.shapes.render import SIZE, render
from flipbench.shapes.scene import GRID, Scene
from flipbench.shapes.wording import describe
from studies.tiny_models.flux.pictures import edges, new_family
from studies.tiny_models.flux.text_encoder import MAX_TOKENS


@dataclass(frozen=True)
class Exercise:
    """A family, its original member, and the member that is to be drawn."""

    family: QuestionFamily
    original: int
    wanted: int

    @classmethod
    def draw(cls, rng: np.random.Generator, kind: str) -> Exercise:
        """Draw a family that is not in the benchmark, and two of its members."""
        family = new_family(rng, kind)
        original, target = rng.permutation(len(family.scenes))[:2]
        return cls(family, int(original), int(target))


@dataclass(frozen=True)
class Exam:
    """Exercises of all kinds."""

    exercises: tuple[Exercise, ...]

    @classmethod
    def draw(cls, rng: np.random.Generator, n_each: int) -> Exam:
        """Draw ``n_each`` exercises of every kind."""
        return cls(tuple(Exercise.draw(rng, kind) for kind in KINDS * n_each))

    @property
    def hashes(self) -> set[str]:
        """The content hashes of all scenes in the exam."""
        return {s.content_hash() for e in self.exercises for s in e.family.scenes}

    def grade(self, pipeline: Any, *, steps: int = 8, weight: float = 0.8) -> dict[str, Any]:
        """Return counts "k/n": edits with the new answer, by kind, and cells drawn as wanted.

        "cells as before" are those that are alike in both members, "cells changed" the others.
        """
        pictures = draw_edits(pipeline, self.exercises, steps=steps, weight=weight)
        return grades(self.exercises, [read_picture(picture) for picture in pictures])


@torch.inference_mode()
def draw_edits(
    pipeline: Any,
    exercises: tuple[Exercise, ...],
    *,
    steps: int = 8,
    weight: float = 0.8,
    batch_size: int = 15,
    seed: int = 0,
) -> list[Image.Image]:
    """Return an edit for each exercise, without true guidance."""
    pipeline.set_progress_bar_config(disable=True)
    pictures: list[Image.Image] = []
    for start in range(0, len(exercises), batch_size):
        batch = exercises[start : start + batch_size]
        originals = [render(e.family.scenes[e.original]) for e in batch]
        with torch.autocast("cpu", torch.bfloat16):
            result = pipeline(
                prompt=[describe(e.family.scenes[e.wanted]) for e in batch],
                control_image=[Image.fromarray(edges(picture)) for picture in originals],
                controlnet_conditioning_scale=weight,
                num_inference_steps=steps,
                max_sequence_length=MAX_TOKENS,
                width=SIZE,
                height=SIZE,
                generator=[
                    torch.Generator().manual_seed(seed + start + i) for i in range(len(batch))
                ],
            )
        pictures += result.images
    return pictures


def grades(exercises: tuple[Exercise, ...], readings: list[Reading]) -> dict[str, Any]:
    """Return what `Exam.grade` does, from what was read off the edits."""
    n_right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for exercise, reading in zip(exercises, readings, strict=True):
        family = exercise.family
        scene, target = family.scenes[exercise.original], family.scenes[exercise.wanted]
        answer = reading.answer(family.question)
        outcomes = [
            (family.question.kind, answer == family.options[exercise.wanted]),
            ("all", answer == family.options[exercise.wanted]),
            ("old answer", answer == family.options[exercise.original]),
        ]
        for row in range(GRID):
            for column in range(GRID):
                cell = (row, column)
                is_unchanged = _held(scene, cell) == _held(target, cell)
                thing = next((t for t in reading.things if t.cell == cell), None)
                contents = (thing.shape, thing.color) if thing else None
                as_wanted = cell not in reading.unreadable and contents == _held(target, cell)
                outcomes.append(("cells as before" if is_unchanged else "cells changed", as_wanted))
                outcomes.append(("cells unreadable", cell in reading.unreadable))
        for name, outcome in outcomes:
            n_right[name] += outcome
            total[name] += 1
    return {name: f"{n_right[name]}/{total[name]}" for name in total}


def _held(scene: Scene, cell: tuple[int, int]) -> tuple[str, str] | None:
    thing = scene.at(cell)
    return (thing.shape, thing.color) if thing else None
