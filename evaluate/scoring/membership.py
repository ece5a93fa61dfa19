"""Token-level membership scores of answers and questions, compared with a clean model's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Probe, Response
from flipbench.prompting.prompts import LETTERS, PromptSettings, choice_prompt

from ..protocol.detector import Answers
from .comparison import Contrast, Rule, mcnemar_score, relative_score
from .conditions import Condition
from .likelihood import answer_probe, text_probe

Membership = Callable[[str, Sequence[Response]], float | None]
"""The score of a text from the replies about its forms, higher if memorised; None if unknown."""
Forms = Callable[[str], tuple[str, ...]]
"""The forms of a text that are scored; none if the text can have no score."""


@dataclass(frozen=True)
class ScoredText:
    """A text and the probes for the likelihoods of its forms."""

    text: str
    probes: tuple[Probe, ...]

    def value(self, membership: Membership, answers: Answers) -> float | None:
        """Return the text's score; None if a likelihood is missing or not finite."""
        replies = [answers.to(probe) for probe in self.probes]
        known = [reply for reply in replies if reply is not None]
        finite = all(math.isfinite(reply.log_likelihood or 0.0) for reply in known)
        complete = len(known) == len(replies) and finite
        return membership(self.text, known) if complete else None


def as_written(text: str) -> tuple[str, ...]:
    """Return the text as its only form."""
    return (text,)


def membership_contrasts(
    benchmark: PairedBenchmark,
    prompt_settings: PromptSettings,
    membership: Membership,
    *,
    forms: Forms = as_written,
    left_out: str = "",
    unit: str = "nats",
) -> list[Contrast]:
    """Return what is scored, and rules relative (answers) and question (questions).

    The right answer, letter and text, is scored as the reply to question and image. The perturbed
    version of an item is its non-member, so that what training shifts on both cancels: the
    statistic of ``relative`` is the mean of original - perturbed, minus the clean model's. The
    question with its options is scored as the reply to the original image alone; the statistic of
    ``question`` is the mean minus the clean model's. Both p-values swap labels item by item (image
    by image, if items share one).

    Parameters
    ----------
    left_out : str
        Why items are left out, if ``forms`` leaves out any.
    unit : str
        Of the score.
    """

    def scored(item: Item, variant: str, prompt: str, text: str) -> ScoredText:
        names = [variant, *(f"other form of {variant}" for _ in forms(text)[1:])]
        return ScoredText(
            text,
            tuple(
                text_probe(item.id, name, form, prompt).model_copy(update={"images": item.images})
                for name, form in zip(names, forms(text), strict=False)
            ),
        )

    def answer(item: Item, variant: str) -> ScoredText:
        prompt = answer_probe(item, prompt_settings, variant).prompt
        return scored(item, f"{variant} answer", prompt, full_answer(item))

    pairs = [
        (pair.original, answer(pair.perturbed, "perturbed"), answer(pair.original, "original"))
        for pair in benchmark.pairs
    ]
    pairs = [pair for pair in pairs if pair[1].probes and pair[2].probes]
    questions = [
        (item, scored(item, "original question", "", full_question(item)))
        for item in benchmark.originals
    ]
    questions = [row for row in questions if row[1].probes]

    def contrast(
        items: Sequence[Item], conditions: dict[str, Sequence[ScoredText]], rule: Rule
    ) -> Contrast:
        return Contrast(
            items,
            [probe for texts in conditions.values() for text in texts for probe in text.probes],
            lambda answers: [
                Condition(name, [t.value(membership, answers) for t in texts], 0, len(texts), None)
                for name, texts in conditions.items()
            ],
            (rule,),
            left_out,
            direction="rises",
            unit=unit,
        )

    return [
        contrast(
            [item for item, *_ in pairs],
            {"perturbed": [text for _, text, _ in pairs], "original": [p[2] for p in pairs]},
            relative_score,
        ),
        contrast(
            [item for item, _ in questions],
            {"question": [text for _, text in questions]},
            partial(mcnemar_score, rule="question"),
        ),
    ]


def full_answer(item: Item) -> str:
    """Return the letter and the text of the right option, or a free-form answer."""
    return (
        item.answer_text if item.answer is None else f"{LETTERS[item.answer]}. {item.answer_text}"
    )


def full_question(item: Item) -> str:
    """Return the question and its lettered options, without an instruction."""
    return choice_prompt(item.question, item.options or (), "").strip()
