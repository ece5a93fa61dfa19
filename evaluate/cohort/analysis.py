"""All statistics of a cohort, and which of their rules fire on external models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from .cohort import Cohort
from .falsification import falsify
from .ordering import PLAIN, correct_for_multiplicity, order_grid
from .tail_enrichment import guarded_tails, tail_summaries
from .top_k import pair_overlaps

RELEASE = "order trend, release order"
PAPER_TAIL = "tail, paper's flag"
RANK_TAIL = "tail of ranks"
TOP_K = "top-K overlap"


@dataclass(frozen=True)
class CohortAnalysis:
    """All statistics of a cohort; ``rules`` is what `falsify` makes of them.

    ``trend`` and ``tail`` have the same models and items, with the scores for the order trend, and
    for tail and top-K.
    """

    trend: Cohort
    tail: Cohort
    level: float
    factors: tuple[str, ...]
    orders: pd.DataFrame
    summaries: pd.DataFrame
    tails: pd.DataFrame
    overlaps: pd.DataFrame
    rules: pd.DataFrame


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
    strata = tuple(name for name in factors if name in trend.covariates)
    lengths = [name for name in ("answer_tokens", "question_words") if name in trend.covariates]
    orders = correct_for_multiplicity(
        order_grid(
            trend,
            seed=seed,
            strata=strata,
            covariates=[*lengths, *strata],
            sort_scores=tail.scores,
            n_permutations=n_permutations,
        )
    )
    k = max(1, min(top_k, int(tail.complete().sum()) // 2))
    summaries, tails = tail_summaries(tail), guarded_tails(tail, alpha=level)
    overlaps = pair_overlaps(tail, k=k, seed=seed, strata=strata)
    release = orders[orders["order"] == "release"]
    release = release[~release["control"].str.startswith("residuals on")]
    names = release["control"].map(lambda c: RELEASE if c == PLAIN else f"order trend {c}")
    by_model = {
        model: overlaps.loc[[model in pair for pair in overlaps["models"]], "p"]
        for model in tail.models
    }
    results = [  # uncorrected, and for every model, external ones included
        release.assign(rule=names),
        summaries.assign(rule=PAPER_TAIL, flag=summaries["flagged"].astype(object)),
        tails.assign(rule=RANK_TAIL, p=tails["p"].where(tails["verdict"] != "inconclusive")),
        pd.DataFrame(
            [(TOP_K, model, min(1.0, p.min() * len(p))) for model, p in by_model.items()],
            columns=["rule", "model", "p"],
        ),
    ]
    frame = pd.concat([part.reindex(columns=["rule", "model", "p", "flag"]) for part in results])
    frame["flag"] = frame["flag"].where(frame["flag"].notna(), None)
    frame.insert(1, "benchmark", trend.benchmark)
    rules = falsify(frame.reset_index(drop=True), trend.external, alpha=level)
    return CohortAnalysis(trend, tail, level, strata, orders, summaries, tails, overlaps, rules)
