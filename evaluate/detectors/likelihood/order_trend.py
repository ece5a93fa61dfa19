"""Order trend: answers that become less likely along the file (not a memory of its order)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Probe, ReferenceResult, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol import rules
from ...protocol.detector import About, Answers, cached_per_benchmark
from ...protocol.rules import Verdict
from ...scoring.conditions import Settings
from ...scoring.likelihood import (
    answer_probe,
    dropped_warning,
    log_likelihood,
    mean_log_prob,
    no_likelihood_warning,
)
from ...scoring.scores import cluster_of, make_score, no_reference_warning
from ...statistics.order_trend import MIN_ITEMS, OrderTrend, cluster_values, order_trend_test

PAPER_ALPHA = 0.01
NO_REFERENCE = (
    "; a file may begin with its easy or short answers, a trend that any model shows, so a trend"
    " alone is no evidence"
)

ABOUT = About(
    name="order_trend",
    title="Order trend",
    paper="Xu, Wu, Ryu, Medical-VLM contamination audit, arXiv 2606.10066, sections 4.4, 4.7 and"
    " 4.10, where it is called exchangeability",
    variant="rules paper (sum of token log-probabilities, p < 0.01), controlled (default)",
    deviates_from_paper="it does not test exchangeability, so it is not called that; 'controlled'"
    " uses the mean per token, permutes within categories (whole images, by their mean rank within"
    " categories, where items share them), and gives no verdict without a reference model or if"
    " that model shows the same trend; the answer is the option letter",
    rules={"paper": False, "controlled": True},
    default_rule="controlled",
    needs=frozenset({"token_logprobs"}),
    direction="the likelihood of the right answer decreases along the file",
    catches=("whole texts",),
    must_not_catch=("image-caption",),
    levels={"paper": PAPER_ALPHA},
    evidence="published, contested",
    caveat="any file sorted by type, length or difficulty shows it, and so does a model that cannot"
    " have seen the benchmark, in the paper itself",
)


@dataclass
class OrderTrendDetector:
    """Rho = Spearman correlation of position in the file and likelihood of the right answer.

    It detects files that begin with the easy (or short) answers. A model that remembers all items
    equally well shows no trend, and one that has seen nothing may show one. It is included because
    it is used as a test of contamination; prefer `shared_likelihood`.
    """

    settings: Settings = Settings()
    about = ABOUT

    @cached_per_benchmark
    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return the right answer to each original item, to be scored."""
        return [answer_probe(item, prompt_settings, "original") for item in benchmark.originals]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules paper and controlled."""
        return [
            self._score(benchmark, prompt_settings, answers, "paper", None),
            self._score(benchmark, prompt_settings, answers, "controlled", reference),
        ]

    def _trend(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        rule: str,
    ) -> tuple[OrderTrend | None, dict[str, float]]:
        measure = log_likelihood if rule == "paper" else mean_log_prob
        probes = self.probes(benchmark, prompt_settings)
        values = {
            item.id: value
            for item, probe in zip(benchmark.originals, probes, strict=True)
            if (value := measure(answers, probe)) is not None
        }
        items = [item for item in benchmark.originals if item.id in values]
        clusters = [cluster_of(item) for item in items]
        log_probs, strata = np.array(list(values.values())), None
        n_independent = len(items)
        if rule != "paper":
            categories = [item.category for item in items]
            strata = categories if len(set(categories)) > 1 else None
            n_independent = len(set(clusters))
        if n_independent < MIN_ITEMS:
            return None, values
        if n_independent < len(items):
            log_probs, strata = cluster_values(log_probs, clusters, strata=strata), None
        rng = generator(self.settings.seed, answers.model, f"order-trend-{rule}")
        n_permutations = self.settings.n_permutations
        trend = order_trend_test(log_probs, rng, strata=strata, n_permutations=n_permutations)
        return trend, values

    def _score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        rule: str,
        reference: Answers | None,
    ) -> Score:
        n_all = len(benchmark.pairs)
        refusal = no_likelihood_warning(
            self.about, answers, self.probes(benchmark, prompt_settings)
        )
        trend, values = self._trend(benchmark, prompt_settings, answers, rule)
        n = len(values)
        score = partial(
            make_score,
            self.about.name,
            benchmark,
            answers,
            rule,
            self.settings,
            reference_answers=reference,
            direction="falls",
            unit="correlation",
            n=n,
            n_dropped=n_all - n,
            per_item=values,
        )
        if refusal:
            return score(verdict="not_applicable", warnings=[refusal])
        warnings = [*dropped_warning(n_all - n, n_all)]
        n_clusters = len({cluster_of(i) for i in benchmark.originals if i.id in values})
        if n_clusters < n:
            independent = "takes the items as independent, which they are not"
            if rule != "paper":
                independent = "treats each image or group, not each item, as independent"
            warnings.append(
                f"{n} items share {n_clusters} images or groups: the test {independent}"
            )
        if trend is None:
            warnings.append(
                f"only {n} items, of {n_clusters} images or groups, have a likelihood; a trend"
                f" needs {MIN_ITEMS}"
            )
            return score(verdict="inconclusive", warnings=warnings)
        verdict: Verdict = "inconclusive"
        lacks_reference, reason = False, ""
        result: ReferenceResult | None = None
        if rule == "paper":
            verdict = "contaminated" if trend.p_falls < PAPER_ALPHA else "not_detected"
        elif reference is None:
            lacks_reference, reason = True, "no reference"
            warnings.append(no_reference_warning(rule, answers) + NO_REFERENCE)
        elif (clean := self._trend(benchmark, prompt_settings, reference, rule)[0]) is None:
            warnings.append("the reference model has too few likelihoods for a trend")
        else:
            verdict = rules.significant(trend.p_falls, self.settings.alpha)
            result = ReferenceResult(
                model=reference.model, statistic=clean.rho, p_value=clean.p_falls, n=clean.n
            )
            if verdict == "contaminated" and clean.p_falls <= self.settings.alpha:
                verdict, reason = "inconclusive", "the reference shows the trend too"
                warnings.append(
                    "false alarm suspected: the reference model shows the same trend"
                    f" (rho {clean.rho:.3f}, p {clean.p_falls:.4f}), so it is in the file"
                )
        return score(
            verdict=verdict,
            reason=reason,
            statistic=trend.rho,
            p_value=trend.p_falls,
            reference=result,
            lacks_reference=lacks_reference,
            details={
                "p_two_sided": trend.p_two_sided,
                "lag1": trend.lag1,
                "p_lag1": trend.p_lag1,
                "n_permutations": trend.n_permutations,
            },
            warnings=warnings,
        )
