"""What the likelihood detectors share: texts, probes, log-likelihoods, and shares of items."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import (
    ImageRef,
    Item,
    JsonDict,
    Probe,
    ReferenceResult,
    Response,
    Score,
)
from flipbench.prompting.prompts import (
    LETTERS,
    PromptSettings,
    choice_prompt,
    open_prompt,
    whole_text,
)

from ..protocol import rules
from ..protocol.detector import About, Answers, Detector
from ..protocol.rules import Verdict
from ..statistics.intervals import mean_interval
from ..statistics.resampling import label_swap_p
from .conditions import Settings, cluster_of, dropped_note
from .scores import make_score, no_reference_warning


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
    for pair, both_probes in zip(benchmark.pairs, probes, strict=True):
        original, perturbed = (membership(answers, probe) for probe in both_probes)
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


def share_scores(
    detector: Detector,
    benchmark: PairedBenchmark,
    answers: Answers,
    reference: Answers | None,
    read: Callable[[Answers], Mapping[str, float]],
    *,
    rule: str,
    relative_rule: str = "relative",
    settings: Settings,
    refusal: str = "",
    n_left_out: int = 0,
    notes: Sequence[str] = (),
    details: JsonDict | None = None,
) -> tuple[Score, Score]:
    """Return the scores of ``rule`` (mean above 1/2) and ``relative_rule`` (above the reference's).

    Parameters
    ----------
    read : callable
        Returns the values of a model's answers, in [0, 1], by id of the original items that have
        one.
    refusal : str
        What the model lacks; if not empty, both rules are not applicable.
    n_left_out : int
        Items without a value although they were answered; ``notes`` are warnings that say why.

    Notes
    -----
    Both p-values swap signs item by item (image by image, if items share one): of value - 1/2, and
    of value - the reference's value on the items that have both.
    """
    n_pairs = len(benchmark.pairs)

    def score(
        rule: str, excess: Mapping[str, float], offset: float, refusal: str, **fields: Any
    ) -> Score:
        """Return the score of "the mean is above 0"; ``offset`` is added to what it shows."""
        items = [item for item in benchmark.originals if item.id in excess]
        fields |= {"direction": "rises", "n_dropped": n_pairs - len(items)}
        subject = (detector.about.name, benchmark, answers, rule, settings)
        if refusal:
            return make_score(*subject, verdict="not_applicable", warnings=[refusal], **fields)
        numbers = np.array([excess[item.id] for item in items])
        rng = generator(settings.seed, answers.model, f"{detector.about.name} {rule}")
        clusters = [cluster_of(item) for item in items]
        too_few = rules.too_few_warning(len(set(clusters)), settings.alpha)
        verdict: Verdict = "inconclusive"
        if items:
            interval = mean_interval(
                numbers.tolist(),
                rng,
                clusters=clusters,
                n_bootstrap=settings.n_bootstrap,
                reach=offset or 1.0,
            )
            p_value = label_swap_p(
                -numbers, rng, clusters=clusters, n_permutations=settings.n_permutations
            )
            fields |= {"statistic": float(numbers.mean()) + offset, "p_value": p_value}
            if interval is not None:
                bounds = {"low": interval.low + offset, "high": interval.high + offset}
                fields["interval"] = interval.model_copy(update=bounds)
            if too_few is None:
                verdict = rules.significant(p_value, settings.alpha)
        return make_score(
            *subject,
            verdict=verdict,
            n=len(items),
            details={"total": float(numbers.sum()) + offset * len(items), **(details or {})},
            per_item={i: value + offset for i, value in excess.items()},
            warnings=[
                *notes,
                *dropped_warning(n_pairs - len(items) - n_left_out, n_pairs),
                *([too_few] if too_few else []),
            ],
            **fields,
        )

    values, clean = read(answers), read(reference) if reference else {}
    ids = [item.id for item in benchmark.originals if item.id in values]
    absolute = score(rule, {i: values[i] - 0.5 for i in ids}, 0.5, refusal)
    result = None
    if shared := [i for i in ids if i in clean]:
        mean = sum(clean[i] for i in shared) / len(shared)
        result = ReferenceResult(
            model=reference.model if reference else "", statistic=mean, n=len(shared)
        )
    lacks_reference = not refusal and reference is None
    relative = score(
        relative_rule,
        {i: values[i] - clean[i] for i in shared},
        0.0,
        no_reference_warning(relative_rule, answers) if lacks_reference else refusal,
        reference_answers=reference,
        reference=result,
        lacks_reference=lacks_reference,
    )
    return absolute, relative
