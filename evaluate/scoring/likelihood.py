"""What the detectors that go by likelihood share: texts, probes, readings and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Count, Interval, Item, JsonDict, Probe, ReferenceResult, Score
from flipbench.prompting.prompts import LETTERS, PromptSettings, choice_prompt, open_prompt

from ..protocol.detector import About, Answers
from ..protocol.rules import Direction, Verdict
from .conditions import Settings


def item_text(item: Item) -> str:
    r"""Return an item as one text: question, options, right answer."""
    if item.options is None or item.answer is None:
        return f"{item.question}\nAnswer: {item.answer_text}"
    return choice_prompt(
        item.question, item.options, f"Answer: {LETTERS[item.answer]}. {item.answer_text}"
    )


def text_probe(label: str, variant: str, text: str) -> Probe:
    """Return the probe for the likelihood of a bare text, as a reply to nothing."""
    return Probe(
        item_id=label, variant=variant, prompt="", ask="score", continuation=text, max_new_tokens=0
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
    ``context`` stands before the question. With ``ask="embed"`` the model's state is asked for.
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
    """Return a probe's log-likelihood in nats; None where there is none that can be compared."""
    response = answers.to(probe)
    value = None if response is None else response.log_likelihood
    return value if value is not None and math.isfinite(value) else None


def mean_log_prob(answers: Answers, probe: Probe) -> float | None:
    """Return a probe's mean log-probability by token, in nats, or None."""
    response, value = answers.to(probe), log_likelihood(answers, probe)
    if response is None or value is None or not response.n_tokens:
        return None
    return value / response.n_tokens


def lacking(about: About, answers: Answers, probes: Sequence[Probe]) -> str:
    """Return what a model lacks, in words, where no probe has a likelihood; else an empty text."""
    replies = [reply for probe in probes if (reply := answers.to(probe)) is not None]
    if not probes or any(reply.log_likelihood is not None for reply in replies):
        return ""
    needs = f"{about.name} needs log-probabilities of given tokens (token_logprobs)"
    if replies:
        return f"{needs}, which {answers.model} does not give; a local checkpoint does"
    return (
        f"{needs}, and {answers.model} has answered none of {len(probes)} such probes; if it can"
        " give them, run the same command again"
    )


def make_score(
    about: About,
    benchmark: PairedBenchmark,
    answers: Answers,
    rule: str,
    *,
    verdict: Verdict,
    direction: Direction,
    settings: Settings,
    statistic: float | None = None,
    unit: str = "fraction",
    interval: Interval | None = None,
    p_value: float | None = None,
    n: int = 0,
    n_dropped: int = 0,
    reference: Answers | None = None,
    reason: str = "",
    accuracies: Mapping[str, Count] | None = None,
    reference_result: ReferenceResult | None = None,
    details: JsonDict | None = None,
    per_item: dict[str, float] | None = None,
    warnings: Sequence[str] = (),
) -> Score:
    """Return a score with what all of them state: direction, level, seed, own reference."""
    said = list(warnings)
    if reference is not None and reference.fingerprint == answers.fingerprint:
        said.append("the model is its own reference: this says nothing about false alarms")
    return Score(
        detector=about.name,
        rule=rule,
        model=answers.model,
        model_fingerprint=answers.fingerprint,
        benchmark=benchmark.name,
        benchmark_id=benchmark.id,
        reference_fingerprint="" if reference is None else reference.fingerprint,
        statistic=statistic,
        direction=direction,
        unit=unit,
        interval=interval,
        p_value=p_value,
        alpha=settings.alpha,
        verdict=verdict,
        reason=reason,
        n=n,
        n_dropped=n_dropped,
        accuracies=dict(accuracies or {}),
        reference=reference_result,
        details={"seed": settings.seed, **(details or {})},
        per_item=per_item or {},
        warnings=tuple(said),
    )


def lacks_reference(rule: str, answers: Answers) -> str:
    """Return what to say where a rule needs a clean model and there is none."""
    return (
        f"rule {rule!r} compares with a clean model and none was given for {answers.model}: put the"
        " model it was trained from (dose 0) into the grid, or pass its answers as reference"
    )


def dropped_warning(n_dropped: int, n: int) -> tuple[str, ...]:
    """Return the warning that items are left out, if any are."""
    if not n_dropped:
        return ()
    return (
        f"{n_dropped} of {n} items are dropped: a likelihood is missing or not finite; run the same"
        " command again to ask anew",
    )
