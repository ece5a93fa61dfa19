"""Semantic perturbation: the accuracy drop when picture and answer change together."""

from __future__ import annotations

from dataclasses import dataclass, field

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Probe, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...scoring.comparison import Settings, compare, mcnemar_score, relative_score, threshold_score
from ...scoring.conditions import QueryPair, choice, probes_of

ABOUT = About(
    name="perturbation_gap",
    title="Perturbation gap",
    paper="Park et al., Contamination Detection for VLMs Using Multi-Modal Semantic Perturbation,"
    " arXiv 2511.03774, tables 1, 2 and 13",
    variant="rules sign (paper), mcnemar (default), relative",
    deviates_from_paper="the paper calls every negative gap contamination; the default rule is an"
    " exact one-sided McNemar test on the same items, and 'relative' compares with a clean model in"
    " case the variant is harder by construction; pairs that were found, not made, get a verdict"
    " from 'relative' only",
    default_rule="mcnemar",
    needs=frozenset({"choose or generate"}),
    direction="accuracy drops from the original to the perturbed items",
    needs_clean_model=False,
    practical=True,
)


@dataclass
class PerturbationGap:
    """Gap = accuracy on perturbed items - accuracy on the same items in their original version.

    ``suspects`` counts the items answered right on the original and wrong on the perturbed
    version: ``rate`` = b/n, ``share`` = b/(n11 + b), the share of right answers lost.

    References
    ----------
    Park et al., arXiv 2511.03774, tables 2 and 13 (sign rule).
    Differs from the paper in its default rule, in comparing only items answered in both versions,
    and in refusing a verdict if replies are unreadable or items too few. In pairs that were found
    (`PairedBenchmark.exchangeable` is False) either version may be harder, so the rules without a
    reference model report the gap and its interval but no verdict.
    """

    settings: Settings = field(default_factory=Settings)
    about: About = ABOUT

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return the original and the perturbed question of every multiple-choice pair."""
        return probes_of(self._query_pairs(benchmark, prompt_settings))

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules sign, mcnemar and relative."""
        comparison = compare(
            self,
            benchmark,
            self._query_pairs(benchmark, prompt_settings),
            ("original", "perturbed"),
            answers,
            reference,
            "they are free-form and have no options",
        )
        absolute = [threshold_score(comparison, "sign"), mcnemar_score(comparison)]
        if benchmark.exchangeable is False:
            absolute = [without_verdict(score) for score in absolute]
        return [_with_suspects(score) for score in (*absolute, relative_score(comparison))]

    @cached_per_benchmark
    def _query_pairs(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings
    ) -> list[QueryPair]:
        return [
            QueryPair(
                pair.original,
                choice(prompt_settings, pair.original, "original"),
                choice(prompt_settings, pair.perturbed, "perturbed"),
            )
            for pair in benchmark.pairs
            if pair.original.options is not None
        ]


def _with_suspects(score: Score) -> Score:
    assert score.paired is not None  # choices are either right or wrong
    return score.model_copy(update={"suspects": score.paired.suspects()})


def without_verdict(score: Score) -> Score:
    """Return "not_applicable" for a rule that assumes the two versions to be equally hard."""
    warning = (
        f"rule {score.rule!r} assumes that both versions are equally hard, but the pairs of"
        f" {score.benchmark} were found, not made, so one version may be harder for any model: use"
        " rule 'relative' with a clean reference model"
    )
    changes = {"verdict": "not_applicable", "p_value": None, "warnings": (*score.warnings, warning)}
    return score.model_copy(update=changes)
