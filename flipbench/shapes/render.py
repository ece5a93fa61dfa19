"""Draw a scene: flat shapes with a thin edge and a soft shadow on a pastel gradient."""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from flipbench.shapes.scene import GRID, Scene

SIZE = 224  # pixels; a cell is 56 pixels square
_OVERSAMPLE = 4
_RGB = {
    "red": (222, 51, 54),
    "orange": (245, 135, 31),
    "yellow": (250, 216, 50),
    "green": (38, 158, 75),
    "blue": (41, 98, 217),
    "purple": (142, 60, 186),
    "white": (252, 252, 252),
    "black": (34, 34, 40),
}
_EDGE = (38, 38, 46, 210)


def render(scene: Scene, size: int = SIZE) -> Image.Image:
    """Return the scene as an RGB image of ``size`` x ``size`` pixels, deterministically."""
    image = _backdrop(scene.background, size).copy()
    cell = size // GRID
    for thing in scene.things:
        row, column = thing.cell
        dx, dy = (round(cell * s / 100) for s in thing.shift)
        thing_sprite = sprite(thing.shape, thing.color, cell)
        image.paste(thing_sprite, (column * cell + dx, row * cell + dy), thing_sprite)
    return image


@lru_cache(maxsize=512)
def _backdrop(seed: int, size: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    hue = rng.uniform(0, 2 * math.pi)
    tint = 20 * np.array([math.cos(hue + a) for a in (0, 2.1, 4.2)])
    base = rng.uniform(165, 205) + tint
    slope = rng.uniform(-22, 22, 2)
    place = np.arange(size) / size - 0.5
    light = slope[0] * place + slope[1] * place[:, None]
    channels = [np.rint(level + light).astype(np.uint8) for level in base]  # from 123 to 247
    return Image.merge("RGB", [Image.fromarray(channel) for channel in channels])


@cache
def sprite(shape: str, color: str, cell: int) -> Image.Image:
    """Return an RGBA sprite with its shadow, one cell large."""
    n = cell * _OVERSAMPLE
    mask = Image.new("L", (n, n))
    _outline(ImageDraw.Draw(mask), shape, n)
    grown = mask.filter(ImageFilter.MaxFilter(2 * (n // 56) + 1))
    shadow = Image.new("L", (n, n))
    shadow.paste(grown, (n // 40, n // 28))
    shadow = shadow.filter(ImageFilter.GaussianBlur(n / 45)).point(lambda v: v * 0.38)
    sprite = Image.new("RGBA", (n, n), (20, 20, 30, 0))
    sprite.putalpha(shadow)
    sprite.paste(_EDGE[:3] + (255,), (0, 0), grown)
    sprite.paste(_RGB[color] + (255,), (0, 0), mask)
    return sprite.resize((cell, cell), Image.Resampling.LANCZOS)


def _outline(draw: ImageDraw.ImageDraw, shape: str, n: int) -> None:
    low, high, middle = 0.13 * n, 0.87 * n, n / 2
    if shape == "circle":
        draw.ellipse((low, low, high, high), fill=255)
    elif shape == "square":
        draw.rectangle((low * 1.25, low * 1.25, n - low * 1.25, n - low * 1.25), fill=255)
    elif shape == "triangle":
        draw.polygon([(middle, low), (high, high * 0.97), (low, high * 0.97)], fill=255)
    elif shape == "cross":
        arm = 0.13 * n
        draw.rectangle((middle - arm, low, middle + arm, high), fill=255)
        draw.rectangle((low, middle - arm, high, middle + arm), fill=255)
    elif shape == "star":
        draw.polygon(_star(middle, (high - low) / 2 * 1.06), fill=255)
    elif shape == "ring":
        draw.ellipse((low, low, high, high), fill=255)
        hole = 0.19 * n
        draw.ellipse((low + hole, low + hole, high - hole, high - hole), fill=0)
    else:
        raise ValueError(f"no such shape: {shape!r}")


def _star(middle: float, radius: float) -> list[tuple[float, float]]:
    points = []
    for corner in range(10):
        r = radius if corner % 2 == 0 else radius * 0.45
        angle = -math.pi / 2 + corner * math.pi / 5
        points.append((middle + r * math.cos(angle), middle + r * math.sin(angle)))
    return points
