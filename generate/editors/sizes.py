"""Sizes: an editor runs at a size its pipeline supports and returns the source's exact size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from flipbench.core.errors import DataError
from flipbench.core.records import JsonDict, Value


@dataclass(frozen=True)
class Fit:
    """How an image is fitted: its size (width, height), scaled, and with padding, to run at."""

    source_size: tuple[int, int]
    scaled_size: tuple[int, int]
    run_size: tuple[int, int]

    @property
    def enlarged(self) -> int:
        """The factor of enlargement, where it is a whole number."""
        return self.scaled_size[0] // self.source_size[0]

    def to_json(self) -> JsonDict:
        """Return the sizes as stored with an edit."""
        return {
            "source": list(self.source_size),
            "run": list(self.run_size),
            "enlarged": self.enlarged,
        }


class SizeRule(Value):
    """Selects the size an editor runs at.

    1. An image whose short edge is below ``min_edge`` is enlarged (Lanczos) by the smallest
       sufficient integer factor, or refused if ``small`` is ``refuse``.
    2. The right and bottom edges are replicated until both sides are multiples of the pipeline's
       factor; nothing is distorted or cropped.
    3. An image with more than ``max_pixels`` pixels after that is refused.

    The result is cropped and reduced (Lanczos) accordingly, so it has exactly the source's size
    and stays aligned with it.

    Parameters
    ----------
    min_edge : int
        In pixels. Diffusion models produce noise far below the sizes they were trained on.
    max_pixels : int
        Limit on the run size, after enlarging and padding.
    small : {'enlarge', 'refuse'}
        How to treat images below ``min_edge``.
    """

    min_edge: int = Field(default=256, ge=1)
    max_pixels: int = Field(default=2048 * 2048, ge=1)
    small: Literal["enlarge", "refuse"] = "enlarge"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_pixels < self.min_edge**2:
            raise ValueError(
                f"max_pixels {self.max_pixels} must be at least min_edge squared ({self.min_edge}²)"
            )
        return self

    def plan(self, width: int, height: int, factor: int, subject: str) -> Fit:
        """Return how to fit an image of this size.

        >>> SizeRule(min_edge=64).plan(65, 47, 16, "x").run_size
        (144, 96)

        Raises
        ------
        DataError
            If the image is too small or too large for this rule; ``subject`` names it.
        """
        short = min(width, height)
        enlarged = max(1, math.ceil(self.min_edge / short))
        if enlarged > 1 and self.small == "refuse":
            raise DataError(
                f"{subject}: the image is {width} x {height} pixels, and images with an edge below"
                f" {self.min_edge} are refused; lower min_edge or set small to 'enlarge'"
            )
        run = (_round_up(width * enlarged, factor), _round_up(height * enlarged, factor))
        if run[0] * run[1] > self.max_pixels:
            remedy = f"lower min_edge (enlarged {enlarged} times)" if enlarged > 1 else "shrink it"
            raise DataError(
                f"{subject}: the image of {width} x {height} pixels would be edited at {run[0]} x"
                f" {run[1]}, over the limit of {self.max_pixels:,} pixels; raise max_pixels, or"
                f" {remedy}"
            )
        return Fit((width, height), (width * enlarged, height * enlarged), run)


def fit(image: Image.Image, plan: Fit) -> Image.Image:
    """Return ``image`` (RGB) scaled and padded to ``plan.run_size``."""
    if image.size != plan.scaled_size:
        image = image.resize(plan.scaled_size, Image.Resampling.LANCZOS)
    return _pad(image, plan.run_size)


def fit_mask(mask: Image.Image, plan: Fit) -> Image.Image:
    """Return a mask (L, 0 or 255) at ``plan.run_size``, still binary."""
    return _pad(mask.resize(plan.scaled_size, Image.Resampling.NEAREST), plan.run_size)


def restore(drawing: Image.Image, plan: Fit) -> Image.Image:
    """Return an image drawn at ``plan.run_size``, restored to exactly the source's size.

    Raises
    ------
    DataError
        If the pipeline drew a different size than requested.
    """
    if drawing.size != plan.run_size:
        raise DataError(
            f"the pipeline drew {drawing.size[0]} x {drawing.size[1]} pixels instead of"
            f" {plan.run_size[0]} x {plan.run_size[1]}; it cannot preserve the source's size"
        )
    drawing = drawing.convert("RGB").crop((0, 0, *plan.scaled_size))
    if drawing.size != plan.source_size:
        drawing = drawing.resize(plan.source_size, Image.Resampling.LANCZOS)
    return drawing


def _round_up(side: int, factor: int) -> int:
    return -(-side // factor) * factor


def _pad(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return the image at ``size`` (width, height), its right and bottom edge replicated."""
    n_right, n_below = size[0] - image.width, size[1] - image.height
    pixels = np.asarray(image)
    sides = ((0, n_below), (0, n_right), (0, 0))[: pixels.ndim]
    return Image.fromarray(np.pad(pixels, sides, mode="edge"))
