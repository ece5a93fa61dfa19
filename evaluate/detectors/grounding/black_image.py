"""Black image: answers that stay the same when the picture is black."""

from __future__ import annotations

from flipbench.core.paired import PairedBenchmark
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    against_clean,
    mcnemar_score,
)
from ...scoring.unchanged import NOT_CLOSED, black_probes, closed_items, unchanged

ABOUT = About(
    name="black_image",
    title="Black image",
    paper="Sadanandan and Behzadan, arXiv 2603.20985, null image",
    variant="rule mcnemar",
    deviates_from_paper="compared with a clean model's answers, where the paper shows the share"
    " among dangerous items; the black picture has the size of the original instead of 224 x 224;"
    " options by letter as well as yes and no",
    rules={"mcnemar": True},
    needs=frozenset({"choose or generate"}),
    direction="more answers than the clean model's stay the same when the picture is black",
    catches=("letters", "answer texts"),
    must_not_catch=("image-caption",),
    on_request="it is about image reliance, not contamination alone: name it with --detectors",
    evidence="unpublished",
    caveat="black pictures are far from all that models are trained on, and a text prior keeps"
    " answers too",
)


class BlackImage(ComparingDetector):
    """Share of items with the same answer on a black picture - the clean model's share."""

    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return every closed question on its own and on a black picture."""
        black = black_probes(benchmark, prompt_settings)
        queries = [
            (item, unchanged(prompt_settings.closed_probe(item, "original"), black(item)))
            for item in closed_items(benchmark)
        ]
        return [against_clean(queries, "unchanged", (mcnemar_score,), NOT_CLOSED)]
