"""Image swap: answers that stay the same with other items' pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import ImageRef, Item
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    Settings,
    against_clean,
    mcnemar_score,
)
from ...scoring.unchanged import NOT_CLOSED, closed_items, unchanged

ABOUT = About(
    name="image_swap",
    title="Image swap",
    paper="Sadanandan and Behzadan, arXiv 2603.20985, image swap",
    variant="rule label_swap",
    deviates_from_paper="compared with a clean model's answers, where the paper shows the share"
    " by quadrant; the other pictures are those of other items of the benchmark, drawn from a seed;"
    " options by letter as well as yes and no",
    rules={"label_swap": True},
    default_rule="label_swap",
    needs=frozenset({"choose or generate"}),
    direction="answers stay the same with other pictures more often than the clean model's",
    rule_titles={"label_swap": "label swaps"},
    catches=("letters", "answer texts"),
    must_not_catch=("image-caption",),
    on_request="it asks each question on five other pictures: name it with --detectors",
    evidence="unpublished",
    caveat="another picture may have the same right answer, and a text prior keeps answers too",
)


@dataclass
class ImageSwap(ComparingDetector):
    """Share of swapped pictures with the same answer as on the item's own - the clean model's.

    Parameters
    ----------
    n_swaps : int
        Other pictures for each item.

    References
    ----------
    Sadanandan and Behzadan, arXiv 2603.20985. Differs from the paper as described in ``about``.
    """

    n_swaps: int = 5
    settings: Settings = field(default_factory=Settings)
    about: About = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return every closed question on its own and on other items' pictures."""
        pool = sorted(
            {item.images for item in benchmark.originals if item.images},
            key=lambda images: [ref.sha256 for ref in images],
        )
        queries = []
        for item in closed_items(benchmark):
            swapped = self._others(item, pool)
            if len(swapped) == self.n_swaps:
                original = prompt_settings.closed_probe(item, "original")
                others = [
                    prompt_settings.closed_probe(item, f"swapped {number}", images=images)
                    for number, images in enumerate(swapped, 1)
                ]
                queries.append((item, unchanged(original, others)))
        left_out = f"{NOT_CLOSED}, or fewer than {self.n_swaps} other items have as many pictures"
        return [
            against_clean(
                queries,
                "unchanged",
                (partial(mcnemar_score, rule="label_swap"),),
                left_out,
                n_trials=self.n_swaps,
            )
        ]

    def _others(
        self, item: Item, pool: Sequence[tuple[ImageRef, ...]]
    ) -> list[tuple[ImageRef, ...]]:
        """Return other items' pictures, as many as the item has, drawn from (seed, item id)."""
        own = {ref.sha256 for ref in item.images}
        others = [
            images
            for images in pool
            if len(images) == len(item.images) and own.isdisjoint(ref.sha256 for ref in images)
        ]
        rng = generator(self.settings.seed, item.id, "image-swap")
        return [others[i] for i in rng.permutation(len(others))[: self.n_swaps]]
