"""Number labels: the accuracy drop when options are labelled 1, 2, 3 instead of A, B, C."""

from __future__ import annotations

import re

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Score
from flipbench.prompting.prompts import NUMBERS, PromptSettings

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Comparison,
    Contrast,
    Rule,
    relative_score,
    two_conditions,
)
from ...scoring.conditions import choice_pair, multiple_choice_items
from ...statistics.counts import poisson_binomial_p

ABOUT = About(
    name="number_labels",
    title="Number labels",
    paper="unpublished as a detector; Li et al., PertEval, arXiv 2405.19740, relabels options among"
    " other changes that keep the knowledge asked for",
    variant="rule relative",
    deviates_from_paper="numbers instead of shifted letters, and the drop is compared with the"
    " clean model's; items with more than nine options, or a number among them, are left out",
    rules={"relative": True},
    needs=frozenset({"choose or generate"}),
    direction="accuracy drops more than a clean model's when options are labelled with numbers",
    catches=("letters",),
    must_not_catch=("question only", "image-caption"),
    evidence="unpublished",
    caveat="sees memorised letters only; any training on letters, on whatever questions, can"
    " unlearn numbers, so compare with clean fine-tunes",
)
_NUMBER = re.compile(r"\W*\d[\d.,]*\W*")


class NumberLabels(ComparingDetector):
    """Gap = accuracy with options labelled 1, 2, 3 - accuracy with A, B, C.

    Options, order and question stay as they are, so a model that looked the answer up in the image
    needs the right option's number; one that memorised a letter has nothing to say.
    """

    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each item whose options can be numbered, with letters and with numbers."""
        query_pairs = [
            choice_pair(prompt_settings, item, "numbers", labels=NUMBERS)
            for item in multiple_choice_items(benchmark)
            if can_be_numbered(item)
        ]
        left_out = "they are free-form, have more than nine options, or a number among them"
        names = ("letters", "numbers")
        return [two_conditions(query_pairs, names, (if_reference_can(relative_score),), left_out)]


def can_be_numbered(item: Item) -> bool:
    """Return whether a number in a reply can only be a label."""
    options = item.options or ()
    return len(options) <= len(NUMBERS) and not any(map(_NUMBER.fullmatch, options))


def if_reference_can(rule: Rule) -> Rule:
    """Return a rule that gives no verdict if the clean model guesses in the second condition.

    Its drop is then that of its first condition to chance, and any model that is better there, for
    whatever reason, drops further.
    """

    def decide(comparison: Comparison) -> Score:
        score = rule(comparison)
        if comparison.reference is None or score.verdict in ("inconclusive", "not_applicable"):
            return score
        condition = comparison.reference[1]
        outcomes = [
            (bool(outcome), 1 / len(item.options or "?"))
            for item, outcome in zip(comparison.items, condition.outcomes, strict=True)
            if outcome is not None
        ]
        k, chances = sum(is_right for is_right, _ in outcomes), [chance for _, chance in outcomes]
        if poisson_binomial_p(k, chances) <= comparison.settings.alpha:
            return score
        warning = (
            f"the clean model is right in {k} of {len(outcomes)} items under {condition.name!r},"
            f" not above chance ({sum(chances):.0f}), so the drops cannot be compared; use a"
            " detector whose questions the clean model can answer"
        )
        warnings = (*score.warnings, warning)
        return score.model_copy(update={"verdict": "inconclusive", "warnings": warnings})

    return decide
