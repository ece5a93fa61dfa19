"""None of the others: the accuracy drop when "None of the other answers" is the right option."""

from __future__ import annotations

import re

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    relative_score,
    two_conditions,
)
from ...scoring.conditions import choice_pair, multiple_choice_items
from .number_labels import if_reference_can

NONE = "None of the other answers"

ABOUT = About(
    name="none_of_the_others",
    title="None of the others",
    paper="Salido et al., None of the Others, arXiv 2502.12896",
    variant="rule relative",
    deviates_from_paper="the paper compares models by their drop and tests none; here the drop is"
    " compared with the clean model's; items with fewer than three options, or one that refers to"
    " others (all, none, both, cannot be determined), are left out",
    rules={"relative": True},
    needs=frozenset({"choose or generate"}),
    direction="accuracy drops more than a clean model's when the right option is replaced by"
    f" {NONE!r}",
    catches=("answer texts", "whole texts"),
    must_not_catch=("letters", "image-caption"),
    evidence="published",
    caveat="every model drops, by half in the paper; sees memorised texts: the right letter stays,"
    " so a model that memorised letters drops less than a clean one",
)
_REFERS = re.compile(
    r"\b(?:none|all|both|neither|either|others?|cannot|can't|can not|unknown|unclear|unsure"
    r"|not (?:be|given|visible|sure|possible|enough|applicable|determined|shown))\b",
    re.IGNORECASE,
)


class NoneOfTheOthers(ComparingDetector):
    """Gap = accuracy with "None of the other answers" in the right slot - accuracy as released.

    A model that recognises the memorised text does not find it; one that reasons rejects every
    other option, which is harder for any model.
    """

    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each item that has an option to replace, as released and with it replaced."""
        query_pairs = [
            choice_pair(prompt_settings, item, "none-of-the-others", options=options)
            for item in multiple_choice_items(benchmark)
            if (options := with_none(item))
        ]
        left_out = "they are free-form, have fewer than three options, or one that refers to others"
        names = ("original", "none of the others")
        return [two_conditions(query_pairs, names, (if_reference_can(relative_score),), left_out)]


def with_none(item: Item) -> tuple[str, ...]:
    """Return the options with the right one replaced; empty if they cannot be asked this way."""
    options = item.options or ()
    if item.answer is None or len(options) < 3 or any(map(_REFERS.search, options)):
        return ()
    return (*options[: item.answer], NONE, *options[item.answer + 1 :])
