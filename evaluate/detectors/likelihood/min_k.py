"""Min-K% and Min-K%++: texts that look more like members with the original image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Probe, Response, Score
from flipbench.prompting.prompts import PromptSettings, choice_prompt, open_prompt

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...scoring.conditions import Settings
from ...scoring.likelihood import (
    NO_TOKENS,
    Membership,
    lacks_tokens,
    log_likelihood,
    no_likelihood_warning,
    original_wins,
    question_text,
    share_scores,
    text_probe,
)
from ...scoring.membership import full_answer

FRACTION = 0.2
MIN_TOKENS = 8
"""Of shorter texts, a fifth is one token or two: the score would be little more than the loss."""
INSTRUCTION = "Answer with the option letter and the text of the option."
_FLOOR = 1e-6
Scored = Literal["question", "answer"]

QUESTIONS = About(
    name="min_k",
    title="Min-K %",
    paper="Shi et al., Detecting Pretraining Data (Min-K%), arXiv 2310.16789; Zhang et al.,"
    " Min-K%++, arXiv 2404.02936",
    variant="question and options as a text about the image; rules min_k, min_k_plus_plus"
    " (default), both against the clean model",
    rules={"min_k": True, "min_k_plus_plus": True},
    default_rule="min_k_plus_plus",
    deviates_from_paper="the papers rank texts and give no threshold; here the text with the"
    " perturbed image is the non-member: the statistic is the share of pairs in which the original"
    " scores higher, ties counting half, minus the clean model's share; the text is a reply in the"
    " model's chat format; texts of fewer than 8 tokens are left out, since Min-K % of one token is"
    " the loss; at least one token counts (ceiling, not floor, of the fraction); deviations below"
    " 1e-6 are set to 1e-6",
    needs=frozenset({"token_logprobs"}),
    direction="the text scores higher with the original image than with the perturbed one in more"
    " pairs than for the clean model",
    rule_titles={"min_k": "Min-K %, vs clean", "min_k_plus_plus": "Min-K %++, vs clean"},
    catches=("whole texts", "question only"),
    must_not_catch=("letters", "image-caption"),
    evidence="published, replicated",
    caveat="on members and non-members of one source, near chance for single texts (arXiv"
    " 2504.18349), so no item is called a member; the length of texts and a model's calibration"
    " move it too",
)
ANSWERS = replace(
    QUESTIONS,
    name="min_k_answer",
    title="Min-K %, answers",
    variant="right answers, letter and text, given question and image; rules min_k,"
    " min_k_plus_plus (default), both against the clean model",
    direction="the right answer scores higher on the original than on the perturbed version in more"
    " pairs than for the clean model",
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    caveat=f"{QUESTIONS.caveat}; of a short answer, it is little more than the loss",
)


def min_k(log_probs: Sequence[float], fraction: float = FRACTION) -> float:
    """Return the mean of the lowest ``fraction`` of T values, at least one of them.

    >>> min_k([-1.0, -5.0, -3.0, -0.5, -0.1, -0.2, -0.3])
    -4.0
    """
    if not log_probs or not 0 < fraction <= 1:
        raise ValueError(f"needs values and a fraction in (0, 1], got {len(log_probs)}, {fraction}")
    n = max(1, math.ceil(round(fraction * len(log_probs), 9)))
    return float(np.sort(np.asarray(log_probs, dtype=float))[:n].mean())


def min_k_plus_plus(
    log_probs: Sequence[float],
    means: Sequence[float],
    deviations: Sequence[float],
    fraction: float = FRACTION,
) -> float:
    """Return `min_k` of (log_prob - mean) / deviation, dimensionless; all have shape (T,).

    >>> p = [0.7, 0.2, 0.1]
    >>> round(min_k_plus_plus([math.log(x) for x in p], [-0.80182] * 3, [0.70313] * 3), 4)
    -2.1344
    """
    z = [
        (value - mean) / max(deviation, _FLOOR)
        for value, mean, deviation in zip(log_probs, means, deviations, strict=True)
    ]
    return min_k(z, fraction)


@dataclass
class MinK:
    """Share of pairs whose original scores higher than its perturbed version, ties counting half.

    A question is written for its original picture and an edit may be harder to see, so the share is
    above 1/2 for clean models, too: both rules compare with a clean model.

    Parameters
    ----------
    fraction : float
        Share of the tokens, the least likely ones, that the score averages over.
    """

    fraction: float = FRACTION
    settings: Settings = Settings()
    scored: ClassVar[Scored] = "question"
    about = QUESTIONS

    def __post_init__(self) -> None:
        """Refuse an impossible share."""
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction {self.fraction}: a share of the tokens must be in (0, 1]")

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return the texts with the original and with the perturbed images, to be scored."""
        return [probe for pair in self._probe_pairs(benchmark) for probe in pair]

    @cached_per_benchmark
    def _probe_pairs(self, benchmark: PairedBenchmark) -> list[tuple[Probe, Probe]]:
        return [
            (self._probe(pair.original, "original"), self._probe(pair.perturbed, "perturbed"))
            for pair in benchmark.pairs
        ]

    def _probe(self, item: Item, version: str) -> Probe:
        text, prompt = full_answer(item), open_prompt(item.question)
        if self.scored == "question":
            text, prompt = question_text(item), ""
        elif item.options is not None:
            prompt = choice_prompt(item.question, item.options, INSTRUCTION)
        return text_probe(item.id, f"{version} text", text, prompt, item.images)

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules min_k and min_k_plus_plus."""
        pairs = self._probe_pairs(benchmark)
        refusal = no_likelihood_warning(
            self.about, answers, self.probes(benchmark, prompt_settings)
        )
        left_out = _left_out([tuple(map(answers.to, pair)) for pair in pairs])
        notes = [
            f"{n} of {len(pairs)} items are left out: {reason}"
            for reason, n in left_out.items()
            if n
        ]
        scores: list[Score] = []
        for rule, membership in self._memberships().items():
            wins = partial(original_wins, benchmark, pairs, membership)
            unreadable = "" if wins(answers) else "; ".join(notes or [_no_statistics(answers)])
            _, relative = share_scores(
                self,
                benchmark,
                answers,
                reference,
                wins,
                rule="half",
                relative_rule=rule,
                settings=self.settings,
                refusal=refusal or unreadable,
                n_left_out=sum(left_out.values()),
                notes=notes,
                details={"fraction": self.fraction},
            )
            scores.append(relative)
        return scores

    def _memberships(self) -> dict[str, Membership]:
        def lowest(answers: Answers, probe: Probe) -> float | None:
            reply = _with_tokens(answers, probe)
            return None if reply is None else min_k(reply.token_log_probs, self.fraction)

        def lowest_z(answers: Answers, probe: Probe) -> float | None:
            reply = _with_tokens(answers, probe)
            if reply is None or not reply.token_means:
                return None
            return min_k_plus_plus(
                reply.token_log_probs, reply.token_means, reply.token_deviations, self.fraction
            )

        return {"min_k": lowest, "min_k_plus_plus": lowest_z}


class MinKAnswers(MinK):
    """`MinK` of the right answers, as letter and text."""

    scored: ClassVar[Scored] = "answer"
    about = ANSWERS


def _with_tokens(answers: Answers, probe: Probe) -> Response | None:
    reply = answers.to(probe)
    if reply is None or log_likelihood(answers, probe) is None:
        return None
    return reply if len(reply.token_log_probs) >= MIN_TOKENS else None


def _left_out(pairs: Sequence[Sequence[Response | None]]) -> dict[str, int]:
    """Return how many pairs of replies can have no score, by the reason why."""

    def is_short(reply: Response | None) -> bool:
        return reply is not None and 0 < (reply.n_tokens or 0) < MIN_TOKENS

    short = [any(map(is_short, replies)) for replies in pairs]
    bare = [any(map(lacks_tokens, replies)) for replies in pairs]
    too_short = f"their text has fewer than {MIN_TOKENS} tokens; detector loss scores such answers"
    return {
        too_short: sum(short),
        NO_TOKENS: sum(b and not s for s, b in zip(short, bare, strict=True)),
    }


def _no_statistics(answers: Answers) -> str:
    return (
        f"{answers.model} provides no log-probability by token, or not their mean and deviation"
        " over its vocabulary; a local checkpoint does"
    )
