"""Order trend: answers that become less likely along the file (not a memory of its order)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Probe, ReferenceResult, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol import rules
from ...protocol.detector import About, Answers, cached_per_benchmark
from ...scoring.conditions import Settings
from ...scoring.likelihood import (
    answer_probe,
    dropped_warning,
    log_likelihood,
    mean_log_prob,
    no_likelihood_warning,
)
from ...scoring.scores import make_score, no_reference_warning
from ...statistics.resampling import Array, permutation_p

PAPER_ALPHA = 0.01
MIN_ITEMS = 4
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
    " uses the mean per token, permutes within categories, and gives no verdict without a reference"
    " model or if that model shows the same trend; the answer is the option letter",
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


@dataclass(frozen=True)
class OrderTrend:
    """Spearman's rho between position and value, and permutation p-values.

    ``p_falls`` is one-sided for a low rho, ``p_two_sided`` for its magnitude, ``p_lag1`` one-sided
    for a high serial correlation ``lag1`` of the ranks of neighbours.
    """

    rho: float
    p_falls: float
    p_two_sided: float
    lag1: float
    p_lag1: float
    n: int
    n_permutations: int


def order_trend_test(
    values: ArrayLike,
    rng: np.random.Generator,
    *,
    strata: Sequence[str] | None = None,
    n_permutations: int = 9_999,
) -> OrderTrend:
    """Test for a trend of ``values`` along their order.

    Parameters
    ----------
    values : array_like, shape (N,)
        Ties get average ranks; if all values are equal, rho is 0.
    strata : sequence of str, shape (N,), optional
        Values are permuted within strata only.
    n_permutations : int
        If there are no more permutations than that, all are enumerated and p is exact.

    Raises
    ------
    ValueError
        If there are fewer than 4 values, or one is not finite.

    Examples
    --------
    >>> trend = order_trend_test([-2, -1, -4, -3], np.random.default_rng(0))
    >>> round(trend.rho, 3), round(trend.p_falls, 5)
    (-0.6, 0.20833)
    """
    scores = np.asarray(values, dtype=float)
    n = len(scores)
    if n < MIN_ITEMS or not np.isfinite(scores).all():
        raise ValueError(f"a trend needs at least {MIN_ITEMS} finite values, got {n}")
    stratum = np.zeros(n, int) if strata is None else np.unique(strata, return_inverse=True)[1]
    by_stratum = np.argsort(stratum, kind="stable")
    cuts = np.flatnonzero(np.diff(stratum[by_stratum])) + 1
    position = np.arange(n) - (n - 1) / 2
    ranks = stats.rankdata(scores) - (n + 1) / 2
    norm = math.sqrt(float(position @ position) * float(ranks @ ranks)) or 1.0
    log_orders = sum(math.lgamma(size + 1) for size in np.diff([0, *cuts, n]).tolist())
    exact = log_orders <= math.log(n_permutations) + 1e-9
    orders = _every_order if exact else _random_orders
    to_file_order = np.argsort(by_stratum)
    null = [
        (float(position @ x), float(x[:-1] @ x[1:]))
        for shuffled in orders(ranks[by_stratum], cuts, rng, n_permutations)
        for x in [shuffled if strata is None else shuffled[to_file_order]]
    ]
    null_rho, null_lag1 = (np.array(column) / norm for column in zip(*null, strict=True))
    rho, lag1 = float(position @ ranks) / norm, float(ranks[:-1] @ ranks[1:]) / norm

    def p(observed: float, null_values: Array) -> float:
        if exact:
            return float((null_values >= observed - 1e-12).mean())
        return permutation_p(observed, null_values, "greater")

    return OrderTrend(
        rho=rho,
        p_falls=p(-rho, -null_rho),
        p_two_sided=p(abs(rho), np.abs(null_rho)),
        lag1=lag1,
        p_lag1=p(lag1, null_lag1),
        n=n,
        n_permutations=len(null),
    )


def _random_orders(
    ranks: Array, cuts: NDArray[np.int64], rng: np.random.Generator, n: int
) -> Iterator[Array]:
    """Yield the same array, shuffled in place, which is faster than `permuted` on copies."""
    x = ranks.copy()
    parts = np.split(x, cuts)
    for _ in range(n):
        for part in parts:
            rng.shuffle(part)
        yield x


def _every_order(
    ranks: Array, cuts: NDArray[np.int64], _rng: np.random.Generator, _n: int
) -> Iterator[Array]:
    parts = [itertools.permutations(part) for part in np.split(ranks, cuts)]
    for chosen in itertools.product(*parts):
        yield np.array([value for part in chosen for value in part])


@dataclass
class OrderTrendDetector:
    """Rho = Spearman correlation of position in the file and likelihood of the right answer.

    It detects files that begin with the easy (or short) answers. A model that remembers all items
    equally well shows no trend, and one that has seen nothing may show one. It is included because
    it is used as a test of contamination; prefer `shared_likelihood`.

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066. Differs from the paper as described in ``about``.
    """

    settings: Settings = field(default_factory=Settings)
    about: About = ABOUT

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
        values = {
            item.id: value
            for item, probe in zip(
                benchmark.originals, self.probes(benchmark, prompt_settings), strict=True
            )
            if (value := measure(answers, probe)) is not None
        }
        if len(values) < MIN_ITEMS:
            return None, values
        categories = [item.category for item in benchmark.originals if item.id in values]
        rng = generator(self.settings.seed, answers.model, f"order-trend-{rule}")
        test = order_trend_test(
            list(values.values()),
            rng,
            strata=None if rule == "paper" or len(set(categories)) < 2 else categories,
            n_permutations=self.settings.n_permutations,
        )
        return test, values

    def _score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        rule: str,
        reference: Answers | None,
    ) -> Score:
        n_all = len(benchmark.pairs)
        missing = no_likelihood_warning(
            self.about, answers, self.probes(benchmark, prompt_settings)
        )
        test, values = self._trend(benchmark, prompt_settings, answers, rule)
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
            n=len(values),
            n_dropped=n_all - len(values),
            per_item=values,
        )
        if missing:
            return score(verdict="not_applicable", warnings=[missing])
        warnings = [*dropped_warning(n_all - len(values), n_all)]
        if test is None:
            warnings.append(f"only {len(values)} items have a likelihood; a trend needs 4")
            return score(verdict="inconclusive", warnings=warnings)
        verdict = rules.significant(test.p_falls, self.settings.alpha)
        other = self._trend(benchmark, prompt_settings, reference, rule)[0] if reference else None
        result: ReferenceResult | None = None
        lacks_reference = rule == "controlled" and reference is None
        reason = "no reference" if lacks_reference else ""
        if rule == "paper":
            verdict = "contaminated" if test.p_falls < PAPER_ALPHA else "not_detected"
        elif reference is None:
            verdict = "inconclusive"
            warnings.append(no_reference_warning(rule, answers) + NO_REFERENCE)
        elif other is None:
            verdict = "inconclusive"
            warnings.append("the reference model has too few likelihoods for a trend")
        else:
            result = ReferenceResult(
                model=reference.model, statistic=other.rho, p_value=other.p_falls, n=other.n
            )
            if verdict == "contaminated" and other.p_falls <= self.settings.alpha:
                verdict = "inconclusive"
                reason = "the reference shows the trend too"
                warnings.append(
                    "false alarm suspected: the reference model shows the same trend"
                    f" (rho {other.rho:.3f}, p {other.p_falls:.4f}), so it is in the file"
                )
        return score(
            verdict=verdict,
            reason=reason,
            statistic=test.rho,
            p_value=test.p_falls,
            reference=result,
            lacks_reference=lacks_reference,
            details={
                "p_two_sided": test.p_two_sided,
                "lag1": test.lag1,
                "p_lag1": test.p_lag1,
                "n_permutations": test.n_permutations,
            },
            warnings=warnings,
        )
