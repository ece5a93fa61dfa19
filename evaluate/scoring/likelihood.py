"""What the likelihood detectors share: texts, probes and log-likelihoods."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import ImageRef, Item, Probe, Response
from flipbench.prompting.prompts import (
    LETTERS,
    PromptSettings,
    choice_prompt,
    open_prompt,
    whole_text,
)

from ..protocol.detector import About, Answers
from .conditions import dropped_note


def item_text(item: Item) -> str:
    """Return an item as one text: question, options, right answer."""
    return whole_text(item.question, item.options, item.answer, item.answer_text)


def question_text(item: Item) -> str:
    """Return an item's question and options as one text."""
    return choice_prompt(item.question, item.options or (), "").rstrip("\n")


def text_probe(
    label: str, variant: str, text: str, prompt: str = "", images: Sequence[ImageRef] = ()
) -> Probe:
    """Return the probe for the likelihood of a text, as a reply to a prompt and images."""
    return Probe(
        item_id=label,
        variant=variant,
        images=tuple(images),
        prompt=prompt,
        ask="score",
        continuation=text,
        max_new_tokens=0,
    )


def answer_probe(
    item: Item,
    prompt_settings: PromptSettings,
    variant: str,
    context: str = "",
    ask: Literal["score", "embed"] = "score",
) -> Probe:
    """Return the probe for the likelihood of the right answer as a reply to the question.

    The answer is the letter that the prompt asks for, or the text of a free-form answer.
    ``context`` precedes the question. ``ask="embed"`` requests the model's hidden state instead.
    """
    if item.options is None or item.answer is None:
        prompt, reply = open_prompt(item.question), item.answer_text
    else:
        prompt = choice_prompt(item.question, item.options, prompt_settings.instruction)
        reply = LETTERS[item.answer]
    return Probe(
        item_id=item.id,
        variant=variant,
        images=item.images,
        prompt=f"{context}\n\n{prompt}" if context else prompt,
        ask=ask,
        continuation=reply,
        max_new_tokens=0,
    )


def log_likelihood(answers: Answers, probe: Probe) -> float | None:
    """Return a probe's log-likelihood in nats; None if it is missing or not finite."""
    response = answers.to(probe)
    value = None if response is None else response.log_likelihood
    return value if value is not None and math.isfinite(value) else None


def mean_log_prob(answers: Answers, probe: Probe) -> float | None:
    """Return a probe's mean log-probability per token, in nats, or None."""
    response, value = answers.to(probe), log_likelihood(answers, probe)
    if response is None or value is None or not response.n_tokens:
        return None
    return value / response.n_tokens


NO_TOKENS = (
    "their statistics by token are not stored, as for long texts without images; detector"
    " reference_ratio needs only their likelihood"
)


def lacks_tokens(reply: Response | None) -> bool:
    """Return whether a text was scored as a whole, without the statistics of its tokens."""
    return reply is not None and bool(reply.n_tokens) and not reply.token_log_probs


Membership = Callable[[Answers, Probe], float | None]
"""How much a scored text looks like a member of the training set; None without an answer."""


def original_wins(
    benchmark: PairedBenchmark,
    probes: Sequence[tuple[Probe, Probe]],
    membership: Membership,
    answers: Answers,
) -> Mapping[str, float]:
    """Return by original item 1 if it scores above its perturbed version, 1/2 if equal, else 0."""
    wins = {}
    for pair, both in zip(benchmark.pairs, probes, strict=True):
        original, perturbed = (membership(answers, probe) for probe in both)
        if original is not None and perturbed is not None:
            wins[pair.original.id] = ((original > perturbed) - (original < perturbed) + 1) / 2
    return wins


def no_likelihood_warning(about: About, answers: Answers, probes: Sequence[Probe]) -> str:
    """Return why no probe has a likelihood; empty if any has one."""
    replies = [reply for probe in probes if (reply := answers.to(probe)) is not None]
    if not probes or any(reply.log_likelihood is not None for reply in replies):
        return ""
    needs = f"{about.name} needs log-probabilities of given tokens (token_logprobs)"
    if replies:
        return f"{needs}, which {answers.model} does not provide; a local checkpoint does"
    return (
        f"{needs}, and {answers.model} has answered none of {len(probes)} such probes; if it"
        " provides them, run the same command again"
    )


def dropped_warning(n_dropped: int, n: int) -> tuple[str, ...]:
    """Return a note on how many of ``n`` items lack a likelihood, if any do."""
    return dropped_note(n_dropped, n, "a likelihood is missing or not finite")
