"""Image masking: accuracy that survives when parts of the picture are masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flipbench.core.derived_images import DerivedImages
from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Count, ImageRef, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Comparison,
    Contrast,
    relative_score,
    two_conditions,
)
from ...scoring.conditions import choice_pair

N_CELLS = 16
GREY = 128

ABOUT = About(
    name="image_masking",
    title="Image masking",
    paper="named in Park et al., arXiv 2511.03774, table 1, without definition or numbers, after"
    " Song et al. (MM-Detect), arXiv 2411.03823, which has no test of that name",
    variant="rule relative",
    deviates_from_paper="the definition is our own: grey patches on a 16 x 16 grid, drawn from a"
    " seed, over a quarter, half and three quarters of each picture; half is the fraction compared",
    rules={"relative": True},
    needs=frozenset({"choose or generate"}),
    direction="accuracy drops less than a clean model's when half of the picture is grey",
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    evidence="unpublished",
    caveat="a model that hardly uses the picture drops little as well",
)


def mask(picture: Image.Image, fraction: float, order: NDArray[np.int64]) -> Image.Image:
    """Return an RGB picture with grey over the first patches of ``order``.

    Parameters
    ----------
    fraction : float
        Share of the patches covered, in [0, 1].
    order : array of int, shape (N_CELLS * N_CELLS,)
        Patch numbers, counted row by row, in the order they are covered: a larger fraction covers
        all patches of a smaller one.
    """
    pixels = np.asarray(picture.convert("RGB")).copy()  # (H, W, 3), uint8
    rows = np.linspace(0, pixels.shape[0], N_CELLS + 1).astype(int)
    columns = np.linspace(0, pixels.shape[1], N_CELLS + 1).astype(int)
    for patch in order[: round(fraction * N_CELLS**2)]:
        row, column = divmod(int(patch), N_CELLS)
        pixels[rows[row] : rows[row + 1], columns[column] : columns[column + 1]] = GREY
    return Image.fromarray(pixels)


@dataclass
class ImageMasking(ComparingDetector):
    """Gap = accuracy with a fraction ``compared`` of the picture masked - with the whole picture.

    The sign is opposite to that of other detectors: memory makes the picture less important, so a
    contaminated model drops *less* than the clean one. ``accuracies`` has one entry per fraction.

    Raises
    ------
    ValueError
        If ``compared`` is not among ``fractions``, or a fraction not in (0, 1].
    """

    fractions: tuple[float, ...] = (0.25, 0.5, 0.75)
    compared: float = 0.5
    about = ABOUT

    def __post_init__(self) -> None:
        """Refuse impossible fractions."""
        if self.compared not in self.fractions or not all(0 < f <= 1 for f in self.fractions):
            raise ValueError(
                f"image masking: fractions must be in (0, 1] and include {self.compared}, the one"
                f" compared, not {self.fractions}"
            )

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each item's question on the whole picture and masked, for every fraction."""
        contrasts = [self._contrast(benchmark, prompt_settings, f) for f in self.fractions]
        rule = partial(_relative, contrasts)
        at = self.fractions.index(self.compared)
        contrasts[at] = replace(contrasts[at], rules=(rule,))
        return contrasts

    def _contrast(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings, fraction: float
    ) -> Contrast:
        """Return the contrast of the whole picture and a fraction of it, without a rule."""
        name = f"masked {100 * fraction:g} %"
        derived = DerivedImages(
            benchmark.images,
            f"masked-{N_CELLS}-{fraction:g}-seed{self.settings.seed}",
            lambda ref, picture: mask(picture, fraction, self._order(ref)),
        )
        query_pairs = [
            choice_pair(
                prompt_settings, item, name, images=[derived.of(i) or i for i in item.images]
            )
            for item in benchmark.originals
            if item.options is not None and item.images
        ]
        left_out = "they are free-form or have no picture"
        return two_conditions(query_pairs, ("original", name), (), left_out, direction="rises")

    def _order(self, ref: ImageRef) -> NDArray[np.int64]:
        return generator(self.settings.seed, ref.sha256, "image-masking").permutation(N_CELLS**2)


def _relative(fractions: Sequence[Contrast], comparison: Comparison) -> Score:
    """Return the score of rule relative, with the accuracy at every fraction."""
    score = relative_score(comparison)
    accuracies = dict(score.accuracies)
    for contrast in fractions:
        masked = contrast.read(comparison.answers)[1]
        outcomes = [outcome for outcome in masked.outcomes if outcome is not None]
        accuracies.setdefault(masked.name, Count(k=int(sum(outcomes)), n=len(outcomes)))
    return score.model_copy(update={"accuracies": accuracies})
