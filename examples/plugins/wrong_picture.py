"""A custom detector: whether a model gives an item's answer even with another item's image."""

from __future__ import annotations

from dataclasses import dataclass

from flipbench.core.paired import PairedBenchmark
from flipbench.evaluate.protocol.detector import About
from flipbench.evaluate.scoring.comparison import (
    ComparingDetector,
    Contrast,
    against_clean,
    mcnemar_score,
)
from flipbench.evaluate.scoring.conditions import choice, multiple_choice_items
from flipbench.prompting.prompts import PromptSettings

ABOUT = About(
    name="wrong_picture",
    title="Wrong picture",
    paper="an example, without a paper",
    variant="rule mcnemar (default): the release's answers to wrong pictures, vs a clean model",
    rules={"mcnemar": True},
    default_rule="mcnemar",
    deviates_from_paper="there is none",
    needs=frozenset({"choose or generate"}),
    direction="answers match the release more often than a clean model's, whatever the image",
)


@dataclass
class WrongPicture(ComparingDetector):
    """Gap = share of the release's answers with wrong images - the clean model's share.

    Parameters
    ----------
    step : int
        Offset of the item from which the wrong image is taken.
    """

    step: int = 1
    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return every question that has options, with another item's image."""
        items = multiple_choice_items(benchmark)
        others = items[self.step :] + items[: self.step]
        queries = [
            (item, choice(prompt_settings, item, "wrong picture", images=other.images))
            for item, other in zip(items, others, strict=True)
        ]
        why = "they are free-form and have no options"
        return [against_clean(queries, "wrong picture", (mcnemar_score,), why)]
