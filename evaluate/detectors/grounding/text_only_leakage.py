"""Multi-modal leakage: whether a model answers better without the image than a clean one."""

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
from ...scoring.conditions import Query, askable, choice

ABOUT = About(
    name="text_only_leakage",
    title="Multi-modal leakage",
    paper="Chen et al., Are We on the Right Way for Evaluating LVLMs? (MMStar), arXiv 2403.20330,"
    " metrics MG and ML; as a detector: Park et al., arXiv 2511.03774, tables 2 and 13",
    variant="rules paper (above the clean model at all), mcnemar (default)",
    deviates_from_paper="the base language model is replaced by the clean model, as in 2511.03774,"
    " and the difference is not clipped at 0; 'mcnemar' pairs the two models' answers by item",
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
    """Return what the image is worth: accuracy with it - accuracy without it (MG).

    >>> round(multimodal_gain(0.521, 0.227), 3)
    0.294
    """
    return with_image - without_image


def multimodal_leakage(without_image: float, text_model: float) -> float:
    """Return how far accuracy without the image exceeds the language model's, at least 0 (ML).

    >>> round(multimodal_leakage(0.227, 0.203), 3), multimodal_leakage(0.18, 0.20)
    (0.024, 0.0)
    """
    return max(0.0, without_image - text_model)


@dataclass
class TextOnlyLeakage:
    """Leak = text-only accuracy - the clean model's text-only accuracy on the same items.

    ``details`` holds the mean chance level (1/k by item), the multi-modal gain, and the replies
    that name no option because the model declines to answer without an image.

    References
    ----------
    Chen et al., arXiv 2403.20330, metrics MG and ML; Park et al., arXiv 2511.03774, tables 2 and
    13.
    Differs from the paper in that the leak is not clipped at 0 (a fine-tuned model may lose
    text-only ability, which should be seen), and in rule 'mcnemar'.
    """

    settings: Settings = field(default_factory=Settings)
    about: About = ABOUT

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return every multiple-choice question without its image, and with it for the gain."""
        items = askable(benchmark)
        return [
            probe
            for item in items
            for probe in (
                *_text_only(item, prompt_settings).probes,
                prompt_settings.probe(item, "original"),
            )
        ]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules paper and mcnemar."""
        asked = [(item, _text_only(item, prompt_settings)) for item in askable(benchmark)]
        items = [item for item, _ in asked]
        comparison = compare_with_model(
            self,
            benchmark,
            asked,
            "text-only",
            answers,
            reference,
            details={
                "chance": sum(1 / len(i.options or "?") for i in items) / (len(items) or 1),
                "n_refused": _n_refused(asked, answers),
                "multimodal_gain": _gain(asked, prompt_settings, answers),
            },
        )
        return [
            threshold_score(comparison, "paper", uses_reference=True),
            mcnemar_score(comparison, uses_reference=True),
        ]


def _text_only(item: Item, prompt_settings: PromptSettings) -> Query:
    return choice(prompt_settings, item, "text-only", images=())


def _n_refused(asked: Sequence[tuple[Item, Query]], answers: Answers) -> int:
    replies = [answers.to(probe) for _, query in asked for probe in query.probes]
    return sum(r is not None and r.choice < 0 and bool(_REFUSAL.search(r.text)) for r in replies)


def _gain(
    asked: Sequence[tuple[Item, Query]], prompt_settings: PromptSettings, answers: Answers
) -> JsonDict | None:
    """Return MG with its counts on the items answered both ways, or None without any."""
    shown = [choice(prompt_settings, item, "original") for item, _ in asked]
    with_image, without = (
        Condition.read("", answers, queries).outcomes
        for queries in (shown, [query for _, query in asked])
    )
    both = [
        (seen, blind)
        for seen, blind in zip(with_image, without, strict=True)
        if seen is not None and blind is not None
    ]
    if not both:
        return None
    n, k_seen, k_blind = len(both), int(sum(s for s, _ in both)), int(sum(b for _, b in both))
    return {
        "gain": multimodal_gain(k_seen / n, k_blind / n),
        "with_image": {"k": k_seen, "n": n},
        "without_image": {"k": k_blind, "n": n},
    }
