"""BGR shuffling: whether accuracy falls when red and blue change places in the picture."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import ImageRef, Item, Probe, Score
from flipbench.imaging.derived import DerivedImages
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...scoring.comparison import (
    Settings,
    compare,
    mcnemar_score,
    relative_score,
)
from ...scoring.conditions import QueryPair, choice

ABOUT = About(
    name="bgr_shuffling",
    title="BGR shuffling",
    paper="Lu et al., Clean Evaluations on Contaminated Visual Language Models, arXiv 2410.07030;"
    " as a detector: Park et al., arXiv 2511.03774, table 1 (no numbers)",
    variant="rules relative (default), mcnemar",
    deviates_from_paper="the paper evaluates on such images to mitigate contamination and gives no"
    " rule; here the fall is compared with the clean model's, or tested for itself; items whose"
    " text speaks of colour, and pictures without colour, are left out",
    default_rule="relative",
    needs=frozenset({"choose or generate"}),
    direction="accuracy falls further than a clean model's when red and blue are exchanged",
    needs_clean_model=True,
    practical=False,
)

COLOR_WORDS = frozenset(
    {"color", "colour", "hue", "shade", "tint", "red", "orange", "yellow", "green", "blue"}
    | {"purple", "violet", "pink", "brown", "black", "white", "gray", "grey", "cyan", "magenta"}
    | {"beige", "gold", "golden", "silver", "turquoise", "teal", "maroon", "navy", "crimson"}
    | {"scarlet", "indigo", "lavender", "tan", "khaki", "olive", "blond", "blonde", "brunette"}
    | {"multicolored", "multicoloured", "colorful", "colourful", "rainbow"}
)
_COLOR = re.compile(
    rf"\b(?:{'|'.join(sorted(COLOR_WORDS))})(?:s|ed|d|d?ish|er|est|ing)?\b", re.IGNORECASE
)


def speaks_of_color(item: Item) -> bool:
    """Return whether question, options, answer or category name a colour or ask for one."""
    texts = [item.question, item.answer_text, item.category.replace("_", " ")]
    return any(_COLOR.search(text) for text in (*texts, *(item.options or ())))


def exchange_red_and_blue(picture: Image.Image) -> Image.Image | None:
    """Return an RGB picture with its channels as B, G, R; None where nothing would change."""
    pixels = np.asarray(picture.convert("RGB"))  # (H, W, 3), uint8
    if np.array_equal(pixels[..., 0], pixels[..., 2]):
        return None
    return Image.fromarray(np.ascontiguousarray(pixels[..., ::-1]))


@dataclass
class BgrShuffling:
    """Gap = accuracy on pictures with red and blue exchanged - accuracy on the same items.

    What the picture shows stays the same, so a model that knows the scene coarsely keeps its
    answer; where colour carries meaning (histology, charts) clean models fall too.

    References
    ----------
    Lu et al., arXiv 2410.07030.
    Differs from the paper in that it is a detector, with tests, and in what is left out.
    """

    settings: Settings = field(default_factory=Settings)
    about: About = ABOUT

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return each item's question on its own and on the exchanged picture.

        The pictures are made into the benchmark's store, each once.
        """
        return [
            probe
            for query_pair in self._asked(benchmark, prompt_settings)
            for probe in query_pair.probes
        ]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules relative and mcnemar."""
        comparison = compare(
            self,
            benchmark,
            self._asked(benchmark, prompt_settings),
            ("original", "bgr"),
            answers,
            reference,
            "free-form, without a picture in colour, or about colour",
        )
        return [relative_score(comparison), mcnemar_score(comparison)]

    @cached_per_benchmark
    def _asked(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings
    ) -> list[QueryPair]:
        derived = DerivedImages(
            benchmark.images, "bgr", lambda _, picture: exchange_red_and_blue(picture)
        )
        asked = []
        for item in benchmark.originals:
            if item.options is None or not item.images or speaks_of_color(item):
                continue
            images = [derived.of(ref) or ref for ref in item.images]
            if images != list(item.images):
                asked.append(_twice(item, images, prompt_settings))
        return asked


def _twice(item: Item, images: list[ImageRef], prompt_settings: PromptSettings) -> QueryPair:
    return QueryPair(
        item,
        choice(prompt_settings, item, "original"),
        choice(prompt_settings, item, "bgr", images=images),
    )
