"""All statistics of a cohort, and which of their rules fire on external models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .cohort import Cohort
from .falsification import Falsified, RuleResult, falsify
from .ordering import PLAIN, OrderCell, correct_for_multiplicity, order_grid
from .tail_enrichment import GuardedTail, TailSummary, guarded_tails, tail_summaries
from .top_k import PairOverlap, pair_overlaps

RELEASE = "order trend, release order"
PAPER_TAIL = "tail, paper's flag"
RANK_TAIL = "tail of ranks"
TOP_K = "top-K overlap"


@dataclass(frozen=True)
class CohortAnalysis:
    """All statistics of a cohort.

    Attributes
    ----------
    orders : list of OrderCell
    summaries, tails : list of TailSummary, list of GuardedTail
    overlaps : list of PairOverlap
    falsified : list of Falsified
        One for each rule and model; a rule that fires on an external model is no evidence.
    """

    trend: Cohort
    tail: Cohort
    level: float
    factors: tuple[str, ...]
    orders: list[OrderCell]
    summaries: list[TailSummary]
    tails: list[GuardedTail]
    overlaps: list[PairOverlap]
    falsified: list[Falsified] = field(default_factory=list)


def analyse(
    trend: Cohort,
    tail: Cohort,
    *,
    factors: Sequence[str] = ("category",),
    top_k: int = 25,
    n_permutations: int = 9_999,
    level: float = 0.05,
    seed: int = 0,
) -> CohortAnalysis:
    """Run every statistic.

    Parameters
    ----------
    trend, tail : Cohort
        The same models and items: scores for the order trend, and for tail and top-K.
    factors : sequence of str
        Covariates; those that the cohort lacks are left out.
    top_k : int
        At most half of the items that all models have scores for.
    """
    known = tuple(name for name in factors if name in trend.covariates)
    lengths = [name for name in ("answer_tokens", "question_words") if name in trend.covariates]
    orders = correct_for_multiplicity(
        order_grid(
            trend,
            seed=seed,
            strata=known,
            covariates=[*lengths, *known],
            sort_scores=tail.scores,
            n_permutations=n_permutations,
        )
    )
    k = max(1, min(top_k, int(tail.complete().sum()) // 2))
    found = CohortAnalysis(
        trend,
        tail,
        level,
        known,
        orders,
        tail_summaries(tail),
        guarded_tails(tail, alpha=level),
        pair_overlaps(tail, k=k, seed=seed, strata=known),
    )
    found.falsified.extend(falsify(_rules(found), trend.external, alpha=level))
    return found


def _rules(found: CohortAnalysis) -> list[RuleResult]:
    """Return each rule's uncorrected result for each model, external ones included."""
    here = found.trend.benchmark
    names = {PLAIN: RELEASE}
    rules = [
        RuleResult(names.get(cell.control, f"order trend {cell.control}"), here, cell.model, cell.p)
        for cell in found.orders
        if cell.order == "release" and not cell.control.startswith("residuals on")
    ]
    rules += [RuleResult(PAPER_TAIL, here, one.model, flag=one.flagged) for one in found.summaries]
    rules += [
        RuleResult(RANK_TAIL, here, one.model, None if one.verdict == "inconclusive" else one.p)
        for one in found.tails
    ]
    for model in found.tail.models:
        p_values = [pair.p for pair in found.overlaps if model in pair.models]
        rules.append(RuleResult(TOP_K, here, model, min(1.0, min(p_values) * len(p_values))))
    return rules
