"""Training pictures: scenes that are not in the benchmark, as tensors, with their edges."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from PIL import Image

from flipbench.core.errors import need
from flipbench.shapes.benchmark import shapes_vqa_scenes
from flipbench.shapes.questions import KINDS, QuestionFamily, draw_family
from flipbench.shapes.render import render
from flipbench.shapes.scene import COLORS, SHAPES, Scene, draw_background, draw_cells, draw_things

CANNY = (100, 200)  # the thresholds of the reference, which the editor uses


@cache
def benchmark_hashes() -> frozenset[str]:
    """Return the content hashes of all scenes of ``shapes-vqa``."""
    return frozenset(scene.content_hash() for scene in shapes_vqa_scenes())


def is_new(scenes: tuple[Scene, ...]) -> bool:
    """Return whether none of the scenes is in the benchmark."""
    return benchmark_hashes().isdisjoint(scene.content_hash() for scene in scenes)


def new_family(rng: np.random.Generator, kind: str | None = None) -> QuestionFamily:
    """Draw a family of a kind (by default a random one), no member of which is in the benchmark."""
    while True:
        family = draw_family(rng, kind or KINDS[rng.integers(len(KINDS))])
        if is_new(family.scenes):
            return family


def few_things(rng: np.random.Generator, n_things: int) -> Scene:
    """Draw a scene of ``n_things`` things that is not in the benchmark."""
    while True:
        things = draw_things(rng, draw_cells(rng, n_things), SHAPES, COLORS)
        scene = Scene.of(things, draw_background(rng))
        if is_new((scene,)):
            return scene


def edges(picture: Image.Image) -> np.ndarray:
    """Return Canny edges as an RGB picture, shape (height, width, 3) of uint8."""
    canny = need("cv2", "diffusion").Canny(np.asarray(picture), *CANNY)
    return np.repeat(canny[..., None], 3, axis=2)


def as_tensor(pictures: list[np.ndarray]) -> torch.Tensor:
    """Return pictures (height, width, 3) of uint8 as a batch (n, 3, height, width) in [-1, 1]."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1


def pixels_of(scene: Scene) -> np.ndarray:
    """Return a rendered scene, shape (224, 224, 3) of uint8."""
    return np.asarray(render(scene))
