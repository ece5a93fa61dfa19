"""Token-level membership scores of answers and questions, compared with a clean model's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, Probe, Response
from flipbench.prompting.prompts import LETTERS, PromptSettings, choice_prompt

from ..protocol.detector import Answers
from .comparison import Contrast, relative_score
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
        received = [reply for reply in replies if reply is not None]
        finite = all(math.isfinite(reply.log_likelihood or 0.0) for reply in received)
        complete = len(received) == len(replies) and finite
        return membership(self.text, received) if complete else None


def as_written(text: str) -> tuple[str, ...]:
    """Return the text as its only form."""
    return (text,)


def membership_contrasts(
    benchmark: PairedBenchmark,
    prompt_settings: PromptSettings,
    membership: Membership,
    *,
    seed: int,
    forms: Forms = as_written,
    lacks: Callable[[Response], bool] = lambda _: False,
    left_out: str = "",
    unit: str = "nats",
) -> list[Contrast]:
    """Return what is scored, and rules relative (answers) and question (questions).

    An item is compared with a text that differs in what the benchmark fixed, so that what training
    shifts on both cancels. The right answer, letter and text, is scored as the reply to question
    and image, original against perturbed; the question with its options as the reply to the image
    alone, the release's order of the options against another. The statistic is the mean difference
    minus the clean model's; p-values swap labels item by item (image by image, if items share one).

    Parameters
    ----------
    seed : int
        The other order is drawn from (seed, item id).
    lacks : callable
        Whether a reply lacks what the score needs, so that asking again is no use.
    left_out : str
        Why items are left out, if ``forms`` or ``lacks`` leaves out any.
    unit : str
        Of the score.
    """

    def scored(item: Item, variant: str, prompt: str, text: str) -> ScoredText:
        names = [variant, *(f"other form of {variant}" for _ in forms(text)[1:])]
        probes = [
            text_probe(item.id, name, form, prompt, item.images)
            for name, form in zip(names, forms(text), strict=False)
        ]
        return ScoredText(text, tuple(probes))

    def answer(item: Item, variant: str) -> ScoredText:
        prompt = answer_probe(item, prompt_settings, variant).prompt
        return scored(item, f"{variant} answer", prompt, full_answer(item))

    def question(item: Item, variant: str, options: Sequence[str]) -> ScoredText:
        return scored(item, f"{variant} question", "", full_question(item, options))

    def contrast(
        rows: Sequence[tuple[Item, ScoredText, ScoredText]],
        names: tuple[str, str],
        rule: str,
        left_out: str,
    ) -> Contrast:
        scored_rows = [row for row in rows if row[1].probes and row[2].probes]

        def lacking(answers: Answers) -> set[str]:
            return {
                item.id
                for item, *texts in scored_rows
                for probe in (p for text in texts for p in text.probes)
                if (reply := answers.to(probe)) is not None and lacks(reply)
            }

        sides = [[row[1] for row in scored_rows], [row[2] for row in scored_rows]]
        return Contrast(
            [item for item, *_ in scored_rows],
            [probe for side in sides for text in side for probe in text.probes],
            lambda answers: [
                Condition(name, [t.value(membership, answers) for t in side], 0, len(side), None)
                for name, side in zip(names, sides, strict=True)
            ],
            (partial(relative_score, rule=rule),),
            left_out,
            lacking,
            direction="rises",
            unit=unit,
        )

    answers = [
        (pair.original, answer(pair.perturbed, "perturbed"), answer(pair.original, "original"))
        for pair in benchmark.pairs
    ]
    questions = [
        (item, question(item, "reordered", order), question(item, "original", item.options or ()))
        for item in benchmark.originals
        if (order := reordered(item, seed))
    ]
    reason = "they are free-form, or have equal options"
    reason += f", or {left_out}" if left_out else ""
    return [
        contrast(answers, ("perturbed", "original"), "relative", left_out),
        contrast(questions, ("reordered", "released"), "question", reason),
    ]


def reordered(item: Item, seed: int) -> tuple[str, ...]:
    """Return an item's options in another order; empty if it has none or two are equal."""
    options = item.options or ()
    if len(set(options)) < max(2, len(options)):
        return ()
    rng = generator(seed, item.id, "membership")
    while True:
        order = tuple(options[i] for i in rng.permutation(len(options)).tolist())
        if order != options:
            return order


def full_answer(item: Item) -> str:
    """Return the letter and the text of the right option, or a free-form answer."""
    return (
        item.answer_text if item.answer is None else f"{LETTERS[item.answer]}. {item.answer_text}"
    )


def full_question(item: Item, options: Sequence[str]) -> str:
    """Return the question and lettered options, without an instruction."""
    return choice_prompt(item.question, options, "").strip()
