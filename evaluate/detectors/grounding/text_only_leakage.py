"""Multi-modal leakage: better answers without the image than a clean model gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import JsonDict
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers
from ...scoring.comparison import (
    ComparingDetector,
    Condition,
    Contrast,
    against_clean,
    mcnemar_score,
    threshold_score,
)
from ...scoring.conditions import Query, choice, multiple_choice_items, probes_of

ABOUT = About(
    name="text_only_leakage",
    title="Multi-modal leakage",
    paper="Chen et al., Are We on the Right Way for Evaluating LVLMs? (MMStar), arXiv 2403.20330,"
    " metrics MG and ML; as a detector: Park et al., arXiv 2511.03774, tables 2 and 13",
    variant="rules paper (any rise above the clean model), mcnemar (default)",
    deviates_from_paper="the clean model replaces the base language model, as in 2511.03774, and"
    " the difference is not clipped at 0; 'mcnemar' pairs the two models' answers by item",
    rules={"paper": True, "mcnemar": True},
    default_rule="mcnemar",
    needs=frozenset({"choose or generate", "text_only"}),
    direction="text-only accuracy rises above the clean model's",
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    levels={"paper": 0.5},
    evidence="published",
    caveat="better language skills raise it too, and training on pictures can lower it: 22 of 24"
    " contaminated VLMs were above the clean one (arXiv 2511.03774)",
)

_REFUSAL = re.compile(
    r"\b(?:cannot|can't|can not|unable to|not able to|no image|without (?:an|the) image|sorry)\b",
    re.IGNORECASE,
)


class TextOnlyLeakage(ComparingDetector):
    """Leak = text-only accuracy - the clean model's text-only accuracy on the same items.

    ``details`` contains the mean chance level (1/k by item), the multi-modal gain, and the number
    of replies that decline to answer without an image.
    """

    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return every multiple-choice question without its image, and with it for the gain."""
        items = multiple_choice_items(benchmark)
        blind = [choice(prompt_settings, item, "text-only", images=()) for item in items]
        seeing = [choice(prompt_settings, item, "original") for item in items]
        chance = sum(1 / len(item.options or "?") for item in items) / (len(items) or 1)
        contrast = against_clean(
            list(zip(items, blind, strict=True)),
            "text-only",
            (partial(threshold_score, rule="paper"), mcnemar_score),
            describe=lambda answers: {
                "chance": chance,
                "n_refused": _n_refused(blind, answers),
                "multimodal_gain": _gain(seeing, blind, answers),
            },
        )
        queries = [query for pair in zip(blind, seeing, strict=True) for query in pair]
        return [replace(contrast, probes=probes_of(queries))]


def _n_refused(queries: Sequence[Query], answers: Answers) -> int:
    replies = [answers.to(probe) for probe in probes_of(queries)]
    return sum(r is not None and r.choice < 0 and bool(_REFUSAL.search(r.text)) for r in replies)


def _gain(seeing: Sequence[Query], blind: Sequence[Query], answers: Answers) -> JsonDict | None:
    """Return MG with its counts on the items answered both ways, or None without any."""
    sides = [Condition.read("", answers, queries).outcomes for queries in (seeing, blind)]
    pairs = [pair for pair in zip(*sides, strict=True) if None not in pair]
    if not pairs:
        return None
    n = len(pairs)
    k_with, k_without = (int(sum(o or 0 for o in side)) for side in zip(*pairs, strict=True))
    return {
        "gain": k_with / n - k_without / n,
        "with_image": {"k": k_with, "n": n},
        "without_image": {"k": k_without, "n": n},
    }
