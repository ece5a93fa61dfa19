"""Image swap: answers that stay the same with other items' pictures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    against_clean,
    mcnemar_score,
)
from ...scoring.unchanged import NOT_CLOSED, closed_items, swapped_probes, unchanged

ABOUT = About(
    name="image_swap",
    title="Image swap",
    paper="Sadanandan and Behzadan, arXiv 2603.20985, image swap",
    variant="rule label_swap",
    deviates_from_paper="compared with a clean model's answers, where the paper shows the share"
    " by quadrant; the other pictures are those of other items of the benchmark, drawn from a seed;"
    " options by letter as well as yes and no",
    rules={"label_swap": True},
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
    """

    n_swaps: int = 5
    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return every closed question on its own and on other items' pictures."""
        swapped = swapped_probes(benchmark, prompt_settings, self.n_swaps, self.settings.seed)
        queries = [
            (item, unchanged(prompt_settings.closed_probe(item, "original"), probes))
            for item in closed_items(benchmark)
            if (probes := swapped(item))
        ]
        rules = (partial(mcnemar_score, rule="label_swap"),)
        left_out = f"{NOT_CLOSED}, or fewer than {self.n_swaps} other items have as many pictures"
        return [against_clean(queries, "unchanged", rules, left_out, self.n_swaps)]
