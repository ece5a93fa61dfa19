"""Zero-CoT probe: a gap that shows without reasoning, and that reasoning may hide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Count, Item, JsonDict, Probe, Score
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About
from ...protocol.rules import MAX_UNPARSED
from ...scoring.comparison import (
    ComparingDetector,
    Condition,
    Contrast,
    if_equally_hard,
    mcnemar_score,
    relative_score,
    two_conditions,
)
from ...scoring.conditions import FREE_FORM, Query, choice, probes_of, version_pairs
from ...scoring.reasoning import (
    MAX_NEW_TOKENS,
    MIN_WORDS,
    is_reasoned,
    reasoned_choice,
    reasoning_probe,
)

MIN_REASONED = 0.5
"""Least share of the replies that reason if asked to, for a model that is said to reason."""

ABOUT = About(
    name="zero_cot",
    title="Zero-CoT probe",
    paper="Lan et al., The Illusion of Reasoning: Exposing Evasive Data Contamination in LLMs via"
    " Zero-CoT Truncation, arXiv 2605.21856",
    variant="rules mcnemar (paper, default), unmasked (the gap without reasoning is larger than"
    " with it), relative",
    deviates_from_paper="the paper truncates a model's reasoning to nothing and appends a request"
    " for the answer; here the letter is asked for at once, as the configuration"
    " asks all choices, so a model that opens a block of thoughts by itself is cut off in it; the"
    " perturbed item is the paper's altered reference item; of its four measures only accuracy; its"
    " contamination confidence is shown but decides nothing; 'unmasked' and 'relative' are ours; a"
    " model is said to reason if at least half of its replies to a request for steps have a"
    " <think> block or ten words before the answer",
    rules={"mcnemar": False, "unmasked": False, "relative": True},
    needs=frozenset({"generate", "choose or generate"}),
    direction="without reasoning, accuracy drops from the original to the perturbed items",
    rule_titles={"unmasked": "more than with reasoning"},
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    on_request="it asks for two long replies about each pair, and few models reason: name it with"
    " --detectors",
    evidence="published",
    caveat="reasoning helps where a picture is hard to read, so perturbed pictures that are harder"
    " widen the gap without reasoning in a clean model too; says nothing about models that do not"
    " reason, and was not run on one that does here",
)


def contamination_confidence(p_value: float) -> float:
    """Return the paper's posterior probability of contamination, in [0.5, 1), at even odds.

    It is that of the largest Bayes factor the p-value allows, 1 / (-e p ln p).

    >>> contamination_confidence(0.5), round(contamination_confidence(0.05), 4)
    (0.5, 0.7107)
    """
    if p_value >= 1 / math.e:
        return 0.5
    return 1 / (1 - math.e * p_value * math.log(p_value)) if p_value > 0 else 1.0


@dataclass
class ZeroCoT(ComparingDetector):
    """Gap = accuracy on perturbed items - on the same original items, without reasoning.

    Rule ``unmasked`` subtracts the gap of the same items with reasoning: it is below 0 if
    reasoning rescues answers that are wrong at once, which hides memorised answers to originals.
    """

    max_new_tokens: int = MAX_NEW_TOKENS
    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return both versions of every multiple-choice pair, asked for the letter and for steps.

        The letter is asked for as in `PerturbationGap`, whose answers are used again.
        """
        query_pairs = version_pairs(benchmark, partial(choice, prompt_settings))
        reasoned_pairs = version_pairs(benchmark, self._reasoning)
        fields: dict[str, Any] = {
            "left_out": FREE_FORM,
            "finish": partial(_finish, probes_of(reasoned_pairs), probes_of(query_pairs)),
        }
        names = ("original", "perturbed")
        at_once = two_conditions(query_pairs, names, (if_equally_hard(mcnemar_score),), **fields)
        stepwise = two_conditions(reasoned_pairs, names, ())

        def gaps(answers: Answers) -> list[Condition]:
            return [
                _gap("gap with reasoning", stepwise.read(answers)),
                _gap("gap without reasoning", at_once.read(answers)),
            ]

        unmasked = Contrast(
            items=at_once.items,
            probes=stepwise.probes,
            read=gaps,
            rules=(partial(mcnemar_score, rule="unmasked"),),
            **fields,
        )
        return [at_once, unmasked, replace(at_once, rules=(relative_score,))]

    def _reasoning(self, item: Item, variant: str) -> Query:
        probe = reasoning_probe(item, f"{variant} reasoning", max_new_tokens=self.max_new_tokens)
        return Query(((probe, lambda reply: reasoned_choice(reply, item)),))


def _gap(name: str, sides: Sequence[Condition]) -> Condition:
    original, perturbed = sides
    gaps = (perturbed.values - original.values).tolist()
    return Condition(
        name,
        [None if math.isnan(gap) else gap for gap in gaps],
        original.n_unparsed + perturbed.n_unparsed,
        original.n_replies + perturbed.n_replies,
        None,
    )


def _count_reasoned(probes: Sequence[Probe], answers: Answers) -> Count:
    """Count the replies that reason, among those that are not empty."""
    replies = [reply for probe in probes if (reply := answers.to(probe)) is not None]
    replies = [reply for reply in replies if reply.text.strip() or reply.choice >= 0]
    return Count(k=sum(map(is_reasoned, replies)), n=len(replies))


def _no_contrast(steps: Count, at_once: Count) -> str:
    """Return why a model cannot be asked with and without reasoning; empty if it can."""
    if steps.k < MIN_REASONED * steps.n:
        return (
            f"{steps.k} of {steps.n} replies to a request for reasoning contain any (a <think>"
            f" block, or {MIN_WORDS} words before the answer): this model does not reason, so its"
            " answers are always without reasoning; use perturbation_gap"
        )
    if at_once.k > MAX_UNPARSED * at_once.n:
        return (
            f"{at_once.k} of {at_once.n} replies to a request for the letter reason all the same:"
            " this model's reasoning cannot be left out here; ask a local checkpoint with 'ask:"
            " choose', or a server that turns reasoning off for every question"
        )
    return ""


def _finish(
    stepwise: Sequence[Probe], letters: Sequence[Probe], score: Score, answers: Answers
) -> Score:
    """Add the paper's confidence; without reasoning, or only with it, nothing can be compared."""
    steps, at_once = (_count_reasoned(probes, answers) for probes in (stepwise, letters))
    details: JsonDict = {
        "reasoned_with_steps": steps.model_dump(),
        "reasoned_at_once": at_once.model_dump(),
        "n_questions": len(stepwise) + len(letters),
    }
    score = score.model_copy(update={"details": score.details | details})
    if score.n and (refusal := _no_contrast(steps, at_once)):
        changes = {
            "verdict": "not_applicable",
            "reason": "reasoning cannot be switched",
            "p_value": None,
            "lacks_reference": False,
            "warnings": (*score.warnings, refusal),
        }
        return score.model_copy(update=changes)
    if score.rule != "mcnemar" or score.p_value is None or score.statistic is None:
        return score
    confidence = contamination_confidence(score.p_value) if score.statistic < 0 else 0.5
    return score.model_copy(
        update={"details": score.details | {"contamination_confidence": confidence}}
    )
