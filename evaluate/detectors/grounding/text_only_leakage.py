"""Multi-modal leakage: better answers without the image than a clean model gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, JsonDict, Probe, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers
from ...scoring.comparison import (
    Condition,
    Settings,
    compare_with_model,
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
    default_rule="mcnemar",
    needs=frozenset({"choose or generate", "text_only"}),
    direction="text-only accuracy rises above the clean model's",
    needs_clean_model=True,
    practical=False,
)

_REFUSAL = re.compile(
    r"\b(?:cannot|can't|can not|unable to|not able to|no image|without (?:an|the) image|sorry)\b",
    re.IGNORECASE,
)


def multimodal_gain(with_image: float, without_image: float) -> float:
    """Return the multi-modal gain (MG): accuracy with the image - accuracy without it.

    >>> round(multimodal_gain(0.521, 0.227), 3)
    0.294
    """
    return with_image - without_image


def multimodal_leakage(without_image: float, text_model: float) -> float:
    """Return the leakage (ML): accuracy without the image - the language model's, at least 0.

    >>> round(multimodal_leakage(0.227, 0.203), 3), multimodal_leakage(0.18, 0.20)
    (0.024, 0.0)
    """
    return max(0.0, without_image - text_model)


@dataclass
class TextOnlyLeakage:
    """Leak = text-only accuracy - the clean model's text-only accuracy on the same items.

    ``details`` contains the mean chance level (1/k by item), the multi-modal gain, and the number
    of replies that decline to answer without an image.

    References
    ----------
    Chen et al., arXiv 2403.20330, metrics MG and ML; Park et al., arXiv 2511.03774, tables 2 and
    13.
    Differs from the paper in that the leak is not clipped at 0 (a fine-tuned model may lose
    text-only ability, which should be visible), and in rule 'mcnemar'.
    """

    settings: Settings = field(default_factory=Settings)
    about: About = ABOUT

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return every multiple-choice question without its image, and with it for the gain."""
        return probes_of(
            query
            for item in multiple_choice_items(benchmark)
            for query in (
                _text_only(item, prompt_settings),
                choice(prompt_settings, item, "original"),
            )
        )

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules paper and mcnemar."""
        items = multiple_choice_items(benchmark)
        queries = [(item, _text_only(item, prompt_settings)) for item in items]
        comparison = compare_with_model(
            self,
            benchmark,
            queries,
            "text-only",
            answers,
            reference,
            details={
                "chance": sum(1 / len(i.options or "?") for i in items) / (len(items) or 1),
                "n_refused": _n_refused(queries, answers),
                "multimodal_gain": _gain(queries, prompt_settings, answers),
            },
        )
        return [
            threshold_score(comparison, "paper", uses_reference=True),
            mcnemar_score(comparison, uses_reference=True),
        ]


def _text_only(item: Item, prompt_settings: PromptSettings) -> Query:
    return choice(prompt_settings, item, "text-only", images=())


def _n_refused(queries: Sequence[tuple[Item, Query]], answers: Answers) -> int:
    replies = [answers.to(probe) for probe in probes_of(query for _, query in queries)]
    return sum(r is not None and r.choice < 0 and bool(_REFUSAL.search(r.text)) for r in replies)


def _gain(
    queries: Sequence[tuple[Item, Query]], prompt_settings: PromptSettings, answers: Answers
) -> JsonDict | None:
    """Return MG with its counts on the items answered both ways, or None without any."""
    seen = [choice(prompt_settings, item, "original") for item, _ in queries]
    with_image = Condition.read("", answers, seen).outcomes
    without_image = Condition.read("", answers, [query for _, query in queries]).outcomes
    both = [pair for pair in zip(with_image, without_image, strict=True) if None not in pair]
    if not both:
        return None
    n = len(both)
    k_with, k_without = (int(sum(o or 0 for o in side)) for side in zip(*both, strict=True))
    return {
        "gain": multimodal_gain(k_with / n, k_without / n),
        "with_image": {"k": k_with, "n": n},
        "without_image": {"k": k_without, "n": n},
    }
