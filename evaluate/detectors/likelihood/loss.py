"""Loss: right answers that are more likely on the original than on the perturbed version."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Probe, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...scoring.conditions import Settings
from ...scoring.likelihood import (
    answer_probe,
    mean_log_prob,
    no_likelihood_warning,
    original_wins,
    share_scores,
)

ABOUT = About(
    name="loss",
    title="Loss",
    paper="Yeom et al., Privacy Risk in Machine Learning, arXiv 1709.01604; the baseline of Shi et"
    " al., arXiv 2310.16789",
    variant="rules half (default), relative",
    rules={"half": False, "relative": True},
    deviates_from_paper="the papers compare the loss with a threshold fitted to known members and"
    " non-members; here an item's perturbed version is its non-member, and the statistic is the"
    " share of pairs in which the right answer is more likely on the original, ties counting half:"
    " 'half' tests whether it is above 1/2, 'relative' whether it is above the clean model's",
    needs=frozenset({"token_logprobs"}),
    direction="the right answer is more likely on the original than on the perturbed version in"
    " more than half of the pairs",
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    signal="answers to the perturbed items",
    evidence="published, replicated",
    caveat="on members and non-members of one source, near chance for single texts (arXiv"
    " 2504.18349); rule half also flags a clean model whose perturbed pictures are harder",
)


@dataclass
class AnswerLoss:
    """Share of pairs whose right answer is more likely on the original, ties counting half.

    The answer is the option letter, or the text of a free-form answer.
    """

    settings: Settings = Settings()
    about = ABOUT

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
        """Return the scores of rules half and relative."""
        probes = self._probe_pairs(benchmark, prompt_settings)
        scores = share_scores(
            self,
            benchmark,
            answers,
            reference,
            partial(original_wins, benchmark, probes, mean_log_prob),
            rule="half",
            settings=self.settings,
            refusal=no_likelihood_warning(
                self.about, answers, self.probes(benchmark, prompt_settings)
            ),
        )
        return list(scores)
