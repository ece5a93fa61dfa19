"""Read a scene off the pixels of any picture: each cell's best-fitting sprite, or *unreadable*.

The oracle for pictures that a diffusion model drew, of which no scene is recorded. How often it
reads rendered scenes right, also blurred and noisy, is in docs/shapes.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from flipbench.shapes.questions import Question, answer
from flipbench.shapes.render import SIZE, sprite
from flipbench.shapes.scene import COLORS, GRID, SHAPES, Cell, Scene, Thing

_CELL = SIZE // GRID
_REACH = 4  # pixels that a thing may lie off its cell's centre; rendered ones lie up to 3 off
_SMOOTHING = 1.5  # pixels, against noise
_EMPTY = 9.0  # grey levels (root mean square) by which an empty cell may differ from the backdrop
_EXPLAINED = 0.6  # share of a cell's contrast to the backdrop that its sprite must explain
_CONTENTS = tuple((shape, color) for shape in SHAPES for color in COLORS)


@dataclass(frozen=True)
class Reading:
    """The things in a picture, and the cells that hold neither a known thing nor nothing."""

    things: tuple[Thing, ...]
    unreadable: tuple[Cell, ...] = ()

    @property
    def scene(self) -> Scene | None:
        """The scene (with background 0), or None if a cell is unreadable."""
        return None if self.unreadable else Scene.of(list(self.things), 0)

    def answer(self, question: Question) -> str | None:
        """Return the unique answer, or None if there is none or a cell is unreadable."""
        return answer(self.scene, question) if self.scene else None


def read_picture(picture: Image.Image) -> Reading:
    """Read the things off a picture of a scene.

    The backdrop is a plane fitted to each colour channel. In each cell, every sprite is tried at
    every position within 4 pixels of the cell's centre, and the one with the smallest squared error
    is what the cell holds. The cell is unreadable if that sprite explains less than 60 % of the
    cell's squared contrast to the backdrop.

    Parameters
    ----------
    picture : Image
        Of any size; it is scaled to 224 x 224 pixels.
    """
    pixels = _smoothed(picture)
    backdrop = _plane(pixels)
    contrast = np.pad(pixels - backdrop, ((_REACH, _REACH), (_REACH, _REACH), (0, 0)))
    things, unreadable = [], []
    for row in range(GRID):
        for column in range(GRID):
            y, x = row * _CELL, column * _CELL
            cell = contrast[
                y : y + _CELL + 2 * _REACH,
                x : x + _CELL + 2 * _REACH,
            ]
            middle = backdrop[y + _CELL // 2, x + _CELL // 2]
            content = _fit(cell, middle)
            if content is None:
                unreadable.append((row, column))
            elif content:
                shape, color, shift = content
                things.append(Thing((row, column), shape, color, shift))
    return Reading(tuple(things), tuple(unreadable))


def fit_backdrop(picture: Image.Image) -> np.ndarray:
    """Return the plane fitted to a picture's backdrop, in grey levels, shape (224, 224, 3)."""
    return _plane(_smoothed(picture))


def _smoothed(picture: Image.Image) -> np.ndarray:
    """Return the picture at 224 x 224 pixels, smoothed against noise, shape (224, 224, 3)."""
    if picture.size != (SIZE, SIZE):
        picture = picture.resize((SIZE, SIZE), Image.Resampling.LANCZOS)
    smooth = picture.convert("RGB").filter(ImageFilter.GaussianBlur(_SMOOTHING))
    return np.asarray(smooth, np.float32)


def _fit(cell: np.ndarray, backdrop: np.ndarray) -> tuple[Any, ...] | None:
    """Return shape, colour and shift of the thing in a cell; () if it is empty, None if unreadable.

    ``cell`` is a contrast to the backdrop, shape (64, 64, 3); ``backdrop`` is its colour, (3,).
    """
    inner = cell[_REACH:-_REACH, _REACH:-_REACH]
    if np.sqrt((inner**2).mean()) < _EMPTY:
        return ()
    windows = np.lib.stride_tricks.sliding_window_view(cell, (_CELL, _CELL), (0, 1))
    views = windows[..., ::2, ::2].reshape(len(windows) ** 2, -1)  # (81, 3 * 28 * 28)
    opacities, colors = _templates()
    sprites = (colors - backdrop[:, None, None] * opacities).reshape(len(colors), -1)
    errors = (
        (views**2).sum(1)[:, None] - 2 * views @ sprites.T + (sprites**2).sum(1)[None]
    )  # (81, 48)
    place, kind = np.unravel_index(errors.argmin(), errors.shape)
    if errors[place, kind] > (1 - _EXPLAINED) * (views[place] ** 2).sum():
        return None
    shift_y, shift_x = (int(i) - _REACH for i in divmod(int(place), len(windows)))
    shift = (round(100 * shift_x / _CELL), round(100 * shift_y / _CELL))
    return (*_CONTENTS[kind], shift)


@cache
def _templates() -> tuple[np.ndarray, np.ndarray]:
    """Return smoothed opacities (48, 1, 28, 28) and colours times opacity (48, 3, 28, 28)."""
    opacities, colors = [], []
    for shape, color in _CONTENTS:
        rgba = np.asarray(sprite(shape, color, _CELL), np.float32)
        opacity = rgba[..., 3:] / 255
        layers = np.concatenate([opacity * 255, rgba[..., :3] * opacity], axis=2)
        smooth = [
            np.asarray(
                Image.fromarray(layer).filter(ImageFilter.GaussianBlur(_SMOOTHING)), np.float32
            )
            for layer in layers.round().astype(np.uint8).transpose(2, 0, 1)
        ]
        opacities.append(np.stack(smooth[:1])[:, ::2, ::2] / 255)
        colors.append(np.stack(smooth[1:])[:, ::2, ::2])
    return np.stack(opacities), np.stack(colors)


def _plane(pixels: np.ndarray, n_rounds: int = 4) -> np.ndarray:
    """Return the plane that fits most of the pixels in each channel, shape of ``pixels``."""
    height, width, _ = pixels.shape
    y, x = np.mgrid[0:height, 0:width].reshape(2, -1) / height - 0.5
    places = np.stack([np.ones_like(x), x, y], axis=1).astype(np.float32)
    flat = pixels.reshape(-1, 3)
    plane = np.broadcast_to(np.median(flat, axis=0), flat.shape)
    for reach in np.linspace(48, 16, n_rounds):
        near = np.abs(flat - plane).max(axis=1) < reach
        if near.sum() < 0.05 * len(flat):
            break
        solution, *_ = np.linalg.lstsq(places[near], flat[near], rcond=None)
        plane = places @ solution
    return plane.reshape(pixels.shape).astype(np.float32)
