"""BGR shuffling: the accuracy drop when red and blue are swapped in the picture."""

from __future__ import annotations

import re

import numpy as np
from PIL import Image

from flipbench.core.derived_images import DerivedImages
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    mcnemar_score,
    relative_score,
    two_conditions,
)
from ...scoring.conditions import choice_pair, multiple_choice_items

ABOUT = About(
    name="bgr_shuffling",
    title="BGR shuffling",
    paper="Lu et al., Clean Evaluations on Contaminated Visual Language Models, arXiv 2410.07030;"
    " as a detector: Park et al., arXiv 2511.03774, table 1 (no numbers)",
    variant="rules relative (default), mcnemar",
    deviates_from_paper="the paper evaluates on such images to mitigate contamination and gives no"
    " decision rule; here the drop is compared with the clean model's, or tested on its own; items"
    " whose text mentions colour, and pictures without colour, are left out",
    rules={"relative": True, "mcnemar": False},
    needs=frozenset({"choose or generate"}),
    direction="accuracy drops more than a clean model's when red and blue are swapped",
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    evidence="published",
    caveat="no numbers as a detector are published; where colour has meaning, as in charts and"
    " tissue, clean models drop too",
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


def mentions_color(item: Item) -> bool:
    """Return whether question, options, answer or category mention a colour."""
    texts = [item.question, item.answer_text, item.category.replace("_", " ")]
    return any(_COLOR.search(text) for text in (*texts, *(item.options or ())))


def swap_red_and_blue(picture: Image.Image) -> Image.Image | None:
    """Return an RGB picture with its channels in the order B, G, R; None if nothing changes."""
    pixels = np.asarray(picture.convert("RGB"))  # (H, W, 3), uint8
    if np.array_equal(pixels[..., 0], pixels[..., 2]):
        return None
    return Image.fromarray(np.ascontiguousarray(pixels[..., ::-1]))


class BgrShuffling(ComparingDetector):
    """Gap = accuracy on pictures with red and blue swapped - accuracy on the same items.

    Shapes and layout stay the same, so a model that recognises the scene keeps its answer.
    """

    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each item's question on its own and on the swapped picture."""
        derived = DerivedImages(
            benchmark.images, "bgr", lambda _, picture: swap_red_and_blue(picture)
        )
        query_pairs = []
        for item in multiple_choice_items(benchmark):
            images = [] if mentions_color(item) else [derived.of(i) or i for i in item.images]
            if images and images != list(item.images):
                query_pairs.append(choice_pair(prompt_settings, item, "bgr", images=images))
        left_out = "they are free-form, have no picture in colour, or mention colour"
        rules = (relative_score, mcnemar_score)
        return [two_conditions(query_pairs, ("original", "bgr"), rules, left_out)]
