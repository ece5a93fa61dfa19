"""Shared likelihood: a benchmark that is more likely in its release order than shuffled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import (
    Interval,
    Item,
    JsonDict,
    Probe,
    ReferenceResult,
    Score,
    content_id,
)
from flipbench.prompting.prompts import PromptSettings

from ...protocol import rules
from ...protocol.detector import About, Answers, cached_per_benchmark
from ...protocol.rules import Verdict
from ...scoring.conditions import Settings
from ...scoring.likelihood import item_text, log_likelihood, no_likelihood_warning, text_probe
from ...scoring.scores import cluster_of, make_score, no_reference_warning
from ...statistics.resampling import LEVEL, permutation_p

ABOUT = About(
    name="shared_likelihood",
    title="Shared likelihood",
    paper="Oren et al., Proving Test Set Contamination in Black-Box Language Models, arXiv"
    " 2310.17623; against a clean model: Park et al., arXiv 2511.03774, table 12",
    variant="rules sharded (paper), permutation (default), relative (p below the clean model's)",
    deviates_from_paper="questions, options and answers without images, as a reply to an empty"
    " prompt; the standard deviation of the t-test divides by r - 1 (ddof 1) where the paper's"
    " code divides by r (its t and p are in details); fewer orders per shard; the permutation test"
    " permutes within shards, so that both tests share their probes",
    rules={"sharded": False, "permutation": False, "relative": True},
    default_rule="permutation",
    needs=frozenset({"token_logprobs", "text_only"}),
    direction="the release order is more likely than other orders of the same items",
    catches=("whole texts",),
    must_not_catch=("letters", "image-caption"),
    levels={"relative": 0.5},
    evidence="published, contested",
    caveat="p below the clean model's for 11 of 24 contaminated VLMs (arXiv 2511.03774, table 12);"
    " training on shuffled items leaves nothing to see, and a sorted file looks memorised",
)


@dataclass(frozen=True)
class ShardedTest:
    """A one-sided t-test over r shards of canonical - mean shuffled log-likelihood, in nats.

    ``t_ddof0``, larger by sqrt(r / (r - 1)), and ``p_ddof0`` are what the paper's code prints.
    """

    mean: float
    interval: Interval
    t: float
    p_value: float
    t_ddof0: float
    p_ddof0: float
    n_shards: int


def sharded_test(differences: ArrayLike, floor: float = 0.0, level: float = LEVEL) -> ShardedTest:
    """Test whether the mean of ``differences``, shape (r,), is above 0.

    If all are equal, t is infinite (or 0), and p is ``floor`` if they are above 0, else 1.

    >>> test = sharded_test([3, 2, 1])
    >>> round(test.t, 4), round(test.p_value, 5), round(test.t_ddof0, 4), round(test.p_ddof0, 5)
    (3.4641, 0.03709, 4.2426, 0.02566)

    Raises
    ------
    ValueError
        If there are fewer than two shards.
    """
    d = np.asarray(differences, dtype=float)
    r = len(d)
    if r < 2:
        raise ValueError(f"a t-test needs at least 2 shards, got {r}")
    mean = float(d.mean())
    if np.ptp(d) == 0:
        p = floor if mean > 0 else 1.0
        t = math.copysign(math.inf, mean) if mean else 0.0
        return ShardedTest(mean, Interval(low=mean, high=mean, level=level), t, p, t, p, r)
    test = scipy.stats.ttest_1samp(d, 0.0, alternative="greater")
    interval = scipy.stats.ttest_1samp(d, 0.0).confidence_interval(level)
    t_ddof0 = float(test.statistic) * math.sqrt(r / (r - 1))
    return ShardedTest(
        mean=mean,
        interval=Interval(low=float(interval.low), high=float(interval.high), level=level),
        t=float(test.statistic),
        p_value=float(test.pvalue),
        t_ddof0=t_ddof0,
        p_ddof0=float(scipy.stats.t.sf(t_ddof0, r - 1)),
        n_shards=r,
    )


def shard_permutation_p(
    shards: Sequence[ArrayLike], rng: np.random.Generator, n_permutations: int = 9_999
) -> float:
    """Return the one-sided p-value of a high sum of the shards' canonical log-likelihoods.

    Parameters
    ----------
    shards : sequence of array_like
        For each shard, the log-likelihoods of the canonical order and then of random orders. Under
        the null hypothesis each is equally likely to be the canonical one, independently by shard;
        so combinations of measured orders are drawn, and no further queries are needed.
    """
    values = [np.asarray(shard, dtype=float) for shard in shards]
    observed = float(sum(shard[0] for shard in values))
    null = np.zeros(n_permutations)
    for shard in values:
        null += shard[rng.integers(len(shard), size=n_permutations)]
    return permutation_p(observed, null, "greater")


@dataclass
class SharedLikelihood:
    """Difference = log-likelihood of a shard in release order - its mean over random orders.

    It detects only contamination with items in release order within one context, such as a dump of
    the file.

    Parameters
    ----------
    n_shards : int
        Contiguous shards; fewer if a shard would have fewer than four items.
    n_orders : int
        Random orders per shard (the paper's code: 250).
    """

    n_shards: int = 50
    n_orders: int = 20
    settings: Settings = Settings()
    about = ABOUT

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return each shard in release order and in random orders."""
        return [probe for orders in self._orders(benchmark) for probe in orders]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules sharded, permutation and relative."""
        likelihoods = self._measure(benchmark, answers)
        reference_likelihoods = None if reference is None else self._measure(benchmark, reference)
        return [
            self._score(benchmark, "sharded", likelihoods),
            self._score(benchmark, "permutation", likelihoods),
            self._score(benchmark, "relative", likelihoods, reference_likelihoods),
        ]

    @cached_per_benchmark
    def _orders(self, benchmark: PairedBenchmark) -> list[list[Probe]]:
        """Return the probes of each shard, release order first."""
        probes = []
        for number, items in enumerate(shards_of(benchmark.originals, self.n_shards)):
            shard_id = content_id([item.id for item in items])
            label = f"{items[0].id} and {len(items) - 1} after it (shard {number})"
            orders = [np.arange(len(items))] + [
                generator(self.settings.seed, shard_id, f"order-{j}").permutation(len(items))
                for j in range(1, self.n_orders + 1)
            ]
            texts = ["\n\n".join(item_text(items[i]) for i in order) for order in orders]
            probes.append([text_probe(label, f"order-{j}", text) for j, text in enumerate(texts)])
        return probes

    def _measure(self, benchmark: PairedBenchmark, answers: Answers) -> _Likelihoods:
        orders = self._orders(benchmark)
        refusal = no_likelihood_warning(
            self.about, answers, [probe for shard in orders for probe in shard]
        )
        shards, n_items = [], 0
        for probes, items in zip(
            orders, shards_of(benchmark.originals, self.n_shards), strict=True
        ):
            values = [log_likelihood(answers, probe) for probe in probes]
            shuffled = [value for value in values[1:] if value is not None]
            if values[0] is not None and shuffled:
                shards.append(np.array([values[0], *shuffled]))
                n_items += len(items)
        if len(shards) < 2:
            return _Likelihoods(answers, shards, n_items, None, 1.0, refusal)
        differences = [float(shard[0] - shard[1:].mean()) for shard in shards]
        rng = generator(self.settings.seed, answers.model, "shared-likelihood")
        p = shard_permutation_p(shards, rng, self.settings.n_permutations)
        test = sharded_test(differences, 1 / (self.n_orders + 1))
        return _Likelihoods(answers, shards, n_items, test, p, refusal)

    def _score(
        self,
        benchmark: PairedBenchmark,
        rule: str,
        likelihoods: _Likelihoods,
        clean: _Likelihoods | None = None,
    ) -> Score:
        n_dropped = len(benchmark.pairs) - likelihoods.n_items
        score = partial(
            make_score,
            self.about.name,
            benchmark,
            likelihoods.answers,
            rule,
            self.settings,
            reference_answers=clean.answers if clean else None,
            direction="rises",
            unit="nats per shard",
            n=likelihoods.n_items,
            n_dropped=n_dropped,
        )
        if likelihoods.refusal:
            return score(verdict="not_applicable", warnings=[likelihoods.refusal])
        test, warnings = likelihoods.test, _notes(benchmark.originals)
        p = test.p_value if test else None
        if test and rule == "permutation":
            p = likelihoods.p_permutation
        verdict: Verdict = "inconclusive"
        lacks_reference = rule == "relative" and clean is None
        details: JsonDict = {}
        result: ReferenceResult | None = None
        if lacks_reference:
            verdict, p = "not_applicable", None
            warnings.append(no_reference_warning(rule, likelihoods.answers))
        elif p is None or (clean is not None and clean.test is None):
            warnings.append("fewer than 2 shards have a likelihood in release order and shuffled")
        elif clean is not None and clean.test is not None:
            verdict = rules.beyond(p, clean.test.p_value)
            result = ReferenceResult(model=clean.answers.model, p_value=clean.test.p_value)
            details["n_shards_of_reference"] = clean.test.n_shards
        else:
            verdict = rules.significant(p, self.settings.alpha)
        if n_dropped:
            warnings.append(f"{n_dropped} of {len(benchmark.pairs)} items are in unanswered shards")
        if test is None:
            return score(verdict=verdict, lacks_reference=lacks_reference, warnings=warnings)
        details |= {
            "n_shards": test.n_shards,
            "n_orders": self.n_orders,
            "t": test.t if math.isfinite(test.t) else None,
            "ddof": 1,
            "p_ddof1": test.p_value,
            "p_ddof0": test.p_ddof0,
            "p_permutation": likelihoods.p_permutation,
            "k_shards_above_0": sum(bool(s[0] > s[1:].mean()) for s in likelihoods.shards),
        }
        return score(
            verdict=verdict,
            statistic=test.mean,
            interval=test.interval,
            p_value=p,
            reference=result,
            lacks_reference=lacks_reference,
            details=details,
            warnings=warnings,
        )


@dataclass(frozen=True)
class _Likelihoods:
    """Log-likelihoods by shard, the two tests of them, and what the model lacks."""

    answers: Answers
    shards: list[NDArray[np.float64]]
    n_items: int
    test: ShardedTest | None
    p_permutation: float
    refusal: str


def shards_of(items: Sequence[Item], n_shards: int) -> list[list[Item]]:
    """Return contiguous shards of nearly equal size, at least four items if there are eight.

    Two items have only two orders, so that half of the random ones are the release order.
    """
    n = min(n_shards, max(len(items) // 4, min(2, len(items) // 2)))
    return [[items[i] for i in part] for part in np.array_split(range(len(items)), n)] if n else []


def _notes(items: Sequence[Item]) -> list[str]:
    """Return warnings about a release order that is special without any contamination."""
    notes = []
    rows = [item.source.row for item in items]
    if rows != sorted(rows):
        notes.append(
            "the items are not in the order of their source's rows, so no model can have seen them"
            " in this order"
        )
    kinds = [item.category for item in items]
    n_runs = 1 + sum(a != b for a, b in zip(kinds, kinds[1:], strict=False))
    if 1 < len(set(kinds)) == n_runs < len(items):
        notes.append(
            "the file is grouped by category: such an order is more likely than a shuffled one for"
            " any model"
        )
    pictures = [cluster_of(item) for item in items]
    n_repeats = len(pictures) - len(set(pictures))
    n_in_a_row = sum(a == b for a, b in zip(pictures, pictures[1:], strict=False))
    if n_repeats and 2 * n_in_a_row >= n_repeats:
        notes.append(
            "questions about the same image or group follow one another: such an order is more"
            " likely than a shuffled one for any model"
        )
    return notes
