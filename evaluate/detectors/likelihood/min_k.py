"""Min-K%, Min-K%++ and loss: original answers that look more like members than perturbed ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Probe, Response, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...scoring.conditions import Settings
from ...scoring.likelihood import answer_probe, log_likelihood, mean_log_prob, no_likelihood_warning
from ...scoring.shares import share_scores

FRACTION = 0.2
_FLOOR = 1e-6

ABOUT = About(
    name="min_k",
    title="Min-K %",
    paper="Shi et al., Detecting Pretraining Data (Min-K%), arXiv 2310.16789; Zhang et al.,"
    " Min-K%++, arXiv 2404.02936",
    variant="rules loss, min_k, min_k_plus_plus, relative (default; of min_k_plus_plus)",
    deviates_from_paper="the papers score texts and rank members against known non-members; here"
    " the right answer is scored, given image and question, and an item's perturbed version is its"
    " non-member: the statistic is the share of pairs in which the original scores higher, ties"
    " counting half; at least one token counts (ceiling, not floor, of the fraction); deviations"
    " below 1e-6 are set to 1e-6",
    default_rule="relative",
    needs=frozenset({"token_logprobs"}),
    direction="the right answer scores higher on the original than on the perturbed version in more"
    " than half of the pairs",
    rule_titles={"min_k": "Min-K %", "min_k_plus_plus": "Min-K %++"},
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
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

    A perturbed version that is harder to see also scores lower, for any model: prefer ``relative``
    if there is a clean model. The statistic describes the set; no single item is called a member.

    References
    ----------
    Shi et al., arXiv 2310.16789; Zhang et al., arXiv 2404.02936. Differs from the papers as
    described in ``about``.
    """

    fraction: float = FRACTION
    settings: Settings = field(default_factory=Settings)
    about: About = ABOUT

    def __post_init__(self) -> None:
        """Refuse an impossible share."""
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction {self.fraction}: a share of the tokens must be in (0, 1]")

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return the right answers to the original and the perturbed items, to be scored."""
        return [probe for pair in self._probe_pairs(benchmark, prompt_settings) for probe in pair]

    @cached_per_benchmark
    def _probe_pairs(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings
    ) -> list[tuple[Probe, Probe]]:
        return [
            (
                answer_probe(pair.original, prompt_settings, "original"),
                answer_probe(pair.perturbed, prompt_settings, "perturbed"),
            )
            for pair in benchmark.pairs
        ]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules loss, min_k, min_k_plus_plus and relative."""
        missing = no_likelihood_warning(
            self.about, answers, self.probes(benchmark, prompt_settings)
        )
        scores: list[Score] = []
        probes = self._probe_pairs(benchmark, prompt_settings)
        for rule, membership in self._memberships().items():
            read = partial(_wins, benchmark, probes, membership)
            absolute, relative = share_scores(
                self,
                benchmark,
                answers,
                reference,
                read,
                rule=rule,
                settings=self.settings,
                missing=missing or ("" if read(answers) else _no_statistics_warning(answers)),
                details={"fraction": self.fraction},
            )
            scores.append(absolute)
        return [*scores, relative]

    def _memberships(self) -> dict[str, _Membership]:
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

        return {"loss": mean_log_prob, "min_k": lowest, "min_k_plus_plus": lowest_z}


_Membership = Callable[[Answers, Probe], float | None]


def _with_tokens(answers: Answers, probe: Probe) -> Response | None:
    reply = answers.to(probe)
    if reply is None or log_likelihood(answers, probe) is None or not reply.token_log_probs:
        return None
    return reply


def _wins(
    benchmark: PairedBenchmark,
    probes: Sequence[tuple[Probe, Probe]],
    membership: _Membership,
    answers: Answers,
) -> dict[str, float]:
    """Return by original item 1 if it scores above its perturbed version, 1/2 if equal, else 0."""
    wins = {}
    for pair, both in zip(benchmark.pairs, probes, strict=True):
        original, perturbed = (membership(answers, probe) for probe in both)
        if original is not None and perturbed is not None:
            wins[pair.original.id] = (float(np.sign(original - perturbed)) + 1) / 2
    return wins


def _no_statistics_warning(answers: Answers) -> str:
    return (
        f"{answers.model} provides no log-probability by token, or not their mean and deviation"
        " over its vocabulary; a local checkpoint does"
    )
