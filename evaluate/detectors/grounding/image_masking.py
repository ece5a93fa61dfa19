"""Image masking: accuracy that survives when parts of the picture are masked."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Count, ImageRef, Item, Probe, Score
from flipbench.imaging.derived import DerivedImages
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...scoring.comparison import Settings, compare, relative_score
from ...scoring.conditions import Condition, Query, QueryPair, choice, probes_of

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
    default_rule="relative",
    needs=frozenset({"choose or generate"}),
    direction="accuracy drops less than a clean model's when half of the picture is grey",
    needs_clean_model=True,
    practical=False,
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
class ImageMasking:
    """Gap = accuracy with a fraction ``compared`` of the picture masked - with the whole picture.

    The sign is opposite to that of other detectors: memory makes the picture less important, so a
    contaminated model drops *less* than the clean one. ``accuracies`` has one entry per fraction.

    Raises
    ------
    ValueError
        If ``compared`` is not among ``fractions``, or a fraction not in (0, 1].

    References
    ----------
    No paper defines it; see ``about.deviates_from_paper``.
    """

    settings: Settings = field(default_factory=Settings)
    fractions: tuple[float, ...] = (0.25, 0.5, 0.75)
    compared: float = 0.5
    about: About = ABOUT

    def __post_init__(self) -> None:
        """Refuse impossible fractions."""
        if self.compared not in self.fractions or not all(0 < f <= 1 for f in self.fractions):
            raise ValueError(
                f"image masking: fractions must be in (0, 1] and include {self.compared}, the one"
                f" compared, not {self.fractions}"
            )

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return each item's question on the whole picture and at every fraction masked.

        Each masked picture is written once, to the benchmark's image store.
        """
        pairs = [self._query_pairs(benchmark, prompt_settings, f) for f in self.fractions]
        return probes_of(pair for of_fraction in pairs for pair in of_fraction)

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the score of rule relative."""
        comparison = compare(
            self,
            benchmark,
            self._query_pairs(benchmark, prompt_settings, self.compared),
            ("original", _name(self.compared)),
            answers,
            reference,
            "they are free-form or have no picture",
            direction="rises",
        )
        score = relative_score(comparison)
        accuracies = dict(score.accuracies)
        for fraction in self.fractions:
            if fraction != self.compared:
                pairs = self._query_pairs(benchmark, prompt_settings, fraction)
                condition = Condition.read("", answers, [pair.second for pair in pairs])
                accuracies[_name(fraction)] = _count(condition)
        return [score.model_copy(update={"accuracies": accuracies})]

    @cached_per_benchmark
    def _query_pairs(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings, fraction: float
    ) -> list[QueryPair]:
        derived = DerivedImages(
            benchmark.images,
            f"masked-{N_CELLS}-{fraction:g}-seed{self.settings.seed}",
            lambda ref, picture: mask(picture, fraction, self._order(ref)),
        )
        return [
            QueryPair(
                item,
                choice(prompt_settings, item, "original"),
                _masked(item, fraction, derived, prompt_settings),
            )
            for item in benchmark.originals
            if item.options is not None and item.images
        ]

    def _order(self, ref: ImageRef) -> NDArray[np.int64]:
        return generator(self.settings.seed, ref.sha256, "image-masking").permutation(N_CELLS**2)


def _masked(
    item: Item, fraction: float, derived: DerivedImages, prompt_settings: PromptSettings
) -> Query:
    images = [derived.of(ref) or ref for ref in item.images]
    return choice(prompt_settings, item, _name(fraction), images=images)


def _name(fraction: float) -> str:
    return f"masked {100 * fraction:g} %"


def _count(condition: Condition) -> Count:
    answered = [outcome for outcome in condition.outcomes if outcome is not None]
    return Count(k=int(sum(answered)), n=len(answered))
