"""Items on which one model's score is far above the other models': as published, and guarded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from flipbench.core.errors import DataError
from flipbench.core.rates import Rate

from ..statistics.counts import poisson_binomial_p
from ..statistics.paired import adjust_p_values
from .cohort import Array, Cohort

ALPHA = 0.05
LEVELS = (50.0, 100.0)
FLAG_SHARE = 0.05
TAIL = 0.01
"""Share of all rank differences, of every item and model, that is the tail."""
MIN_MODELS = 4
"""With one model left out, a median of the others needs at least two."""

Verdict = Literal["enriched", "not_detected", "artefact_suspected", "unchecked", "inconclusive"]


@dataclass(frozen=True)
class TailSummary:
    """The upper tail of one model's score minus the median of the other models' (*delta*).

    ``q95``, ``q99`` and ``largest`` are in the scores' unit: nats for log-likelihoods, none for
    Min-K++ (which the paper calls nats as well). ``above`` has the share of items above 50 and 100.
    """

    model: str
    external: bool
    n: int
    n_missing: int
    q95: float
    q99: float
    largest: float
    above: tuple[Rate, Rate]

    @property
    def flagged(self) -> bool:
        """The paper's rule: more than 5 % of the items are above 100."""
        return self.above[1].k > FLAG_SHARE * self.above[1].n


@dataclass(frozen=True)
class GuardedTail:
    """How often one model's *rank* is far above the median rank of the others.

    Attributes
    ----------
    upper, lower : int
        Items of this model above the 99th percentile of all rank differences, and as far below.
    expected : float
        ``upper`` if models were exchangeable within items.
    p : float
        The larger of ``p_exchangeable`` and ``p_symmetric``, and of those with each other model
        left out. ``p_holm`` is corrected over the models.
    p_exchangeable : float
        Exact one-sided p-value against "the models' labels can be swapped within an item".
    p_symmetric : float
        Exact one-sided p-value against "this model is as often far below the others as above".
    left_out : str
        The model without which p is largest; empty if that is with all models.
    verdict : str
        "enriched"; "not_detected"; "artefact_suspected" (an external model is enriched as well);
        "unchecked" (enriched, but there is no external model); "inconclusive" (too few models).
    """

    model: str
    external: bool
    n: int
    n_missing: int
    upper: int
    lower: int
    expected: float
    p: float
    p_holm: float
    p_exchangeable: float
    p_symmetric: float
    left_out: str
    verdict: Verdict


def cohort_deltas(scores: Array) -> Array:
    """Return score minus the median over the other models, shape (n_items, n_models).

    >>> cohort_deltas(np.array([[10.0, 1, 2], [0, 1, 2], [5, 5, 5]]))[:, 0].tolist()
    [8.5, -1.5, 0.0]
    """
    columns = range(scores.shape[1])
    medians = [np.median(np.delete(scores, column, axis=1), axis=1) for column in columns]
    return np.asarray(scores - np.stack(medians, axis=1))


def rank_scores(scores: Array) -> Array:
    """Return each model's scores as ranks in (0, 1), ties averaged, same shape.

    >>> rank_scores(np.array([[900.0, -1], [10, 3]])).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    return np.asarray((stats.rankdata(scores, axis=0) - 0.5) / len(scores))


def upper_tail(scores: Array) -> NDArray[np.bool_]:
    """Return which items are far above the other models' median rank, shape of ``scores``.

    These are the largest 1 % of all models' rank differences together.
    """
    deltas = cohort_deltas(rank_scores(scores))
    return np.asarray(deltas > np.quantile(deltas, 1 - TAIL))


def tail_summaries(cohort: Cohort) -> list[TailSummary]:
    """Return the published statistic of every model, on the items that all models have.

    It says nothing about contamination by itself: models that differ only in gain are flagged
    (`python -m studies.confound`), and it depends on which other models there are.

    Raises
    ------
    DataError
        If no item has the scores of all models.

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, section 4, detector 3 and Table 3. Quantiles are linear.
    """
    scores, n_missing = _complete(cohort)
    deltas = cohort_deltas(scores)
    n = len(deltas)
    return [
        TailSummary(
            model=model,
            external=model in cohort.external,
            n=n,
            n_missing=n_missing,
            q95=float(np.quantile(delta, 0.95)),
            q99=float(np.quantile(delta, 0.99)),
            largest=float(delta.max()),
            above=(
                Rate.wilson(int((delta > LEVELS[0]).sum()), n),
                Rate.wilson(int((delta > LEVELS[1]).sum()), n),
            ),
        )
        for model, delta in zip(cohort.models, deltas.T, strict=True)
    ]


def guarded_tails(cohort: Cohort, *, alpha: float = ALPHA) -> list[GuardedTail]:
    """Return every model's tail of rank differences, with tests and a verdict.

    Ranks within a model remove its gain and offset. The tail is the largest 1 % of all models'
    rank differences; under the null hypothesis that an item's ranks are exchangeable among models,
    each of an item's tail members belongs to any model with equal probability, so a model's count
    is Poisson-binomial. A model with noisier ranks breaks this but has a lower tail to match;
    therefore the count above must also exceed the count below. An enrichment needs both, whichever
    other model is left out, after Holm's correction over the models. No external model may pass
    the two tests even once, without correction: that withholds a verdict, so it is easier.

    What remains: a model that really is better at some kind of item than all the others, and has
    seen none of them, is enriched too; so is each of several models with shared training data.

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, section 4, detector 3, which has no null hypothesis; ranks, both
    tests, the left-out models and the external models are ours.
    """
    scores, n_missing = _complete(cohort)
    tails = [_tail(cohort, column, scores, n_missing) for column in range(len(cohort.models))]
    external_fires = any(
        tail.external and max(tail.p_exchangeable, tail.p_symmetric) <= alpha for tail in tails
    )

    def verdict(p: float) -> Verdict:
        if len(cohort.models) < MIN_MODELS:
            return "inconclusive"
        if external_fires:
            return "artefact_suspected"
        if p > alpha:
            return "not_detected"
        return "enriched" if cohort.external else "unchecked"

    holm = adjust_p_values([tail.p for tail in tails], "holm")
    return [replace(t, p_holm=p, verdict=verdict(p)) for t, p in zip(tails, holm, strict=True)]


def _complete(cohort: Cohort) -> tuple[Array, int]:
    complete = cohort.complete()
    if not complete.any():
        raise DataError(
            f"cohort {cohort.benchmark!r}: no item has the scores of all {len(cohort.models)}"
            " models; leave out the models with the fewest"
        )
    return cohort.scores[complete], int((~complete).sum())


def _tail(cohort: Cohort, column: int, scores: Array, n_missing: int) -> GuardedTail:
    """Return a model's tail before the correction over models."""
    upper, lower, n_expected, exchangeable, symmetric = _tail_tests(rank_scores(scores), column)
    p, left_out = max(exchangeable, symmetric), ""
    for left_out_column, name in enumerate(cohort.models):
        if left_out_column == column or len(cohort.models) < MIN_MODELS:
            continue
        ranks = rank_scores(np.delete(scores, left_out_column, axis=1))
        p_without = max(_tail_tests(ranks, column - (left_out_column < column))[3:])
        if p_without > p:
            p, left_out = p_without, name
    return GuardedTail(
        model=cohort.models[column],
        external=cohort.models[column] in cohort.external,
        n=len(scores),
        n_missing=n_missing,
        upper=upper,
        lower=lower,
        expected=n_expected,
        p=p,
        p_holm=p,
        p_exchangeable=exchangeable,
        p_symmetric=symmetric,
        left_out=left_out,
        verdict="not_detected",
    )


def _tail_tests(ranks: Array, column: int) -> tuple[int, int, float, float, float]:
    """Return the counts above and below, the expected count, and the two p-values."""
    deltas = cohort_deltas(ranks)
    far = np.quantile(deltas, 1 - TAIL)
    is_upper = deltas > far
    upper, lower = int(is_upper[:, column].sum()), int((deltas[:, column] < -far).sum())
    shares = is_upper.mean(axis=1)
    exchangeable = poisson_binomial_p(upper, shares[shares > 0].tolist())
    symmetric = float(stats.binom.sf(upper - 1, upper + lower, 0.5)) if upper + lower else 1.0
    return upper, lower, float(shares.sum()), exchangeable, symmetric
