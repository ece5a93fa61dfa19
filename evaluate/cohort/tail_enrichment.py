"""Items on which one model's score is far above the other models': as published, and guarded."""

from __future__ import annotations

import numpy as np
import pandas as pd
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


def tail_summaries(cohort: Cohort) -> pd.DataFrame:
    """Return the published statistic of every model, on the items that all models have.

    It says nothing about contamination by itself: models that differ only in gain are flagged
    (`python -m studies.confound`), and it depends on which other models there are.

    Returns
    -------
    DataFrame
        One row for each model. ``q95``, ``q99`` and ``largest`` are of its score minus the median
        of the other models', in the scores' unit: nats for log-likelihoods, none for Min-K++ (which
        the paper calls nats as well). ``above`` has the `Rate` of items above 50 and above 100, and
        ``flagged`` is the paper's rule: more than 5 % of the items are above 100.

    Raises
    ------
    DataError
        If no item has the scores of all models.

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, section 4, detector 3 and Table 3. Quantiles are linear.
    """
    scores, about = _complete(cohort)
    deltas = cohort_deltas(scores)
    rates = [
        tuple(Rate.wilson(int((delta > level).sum()), len(delta)) for level in LEVELS)
        for delta in deltas.T
    ]
    return about.assign(
        q95=np.quantile(deltas, 0.95, axis=0),
        q99=np.quantile(deltas, 0.99, axis=0),
        largest=deltas.max(axis=0),
        above=pd.Series(rates, dtype=object),
        flagged=[high.k > FLAG_SHARE * high.n for _, high in rates],
    )


def guarded_tails(cohort: Cohort, *, alpha: float = ALPHA) -> pd.DataFrame:
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

    Returns
    -------
    DataFrame
        One row for each model. ``upper`` and ``lower`` count its items in the tail, and as far
        below; ``expected`` is ``upper`` if models were exchangeable within items.
        ``p_exchangeable`` and ``p_symmetric`` are exact one-sided p-values against "the models'
        labels can be swapped within an item" and "it is as often far below the others as above";
        ``p`` is the largest of both with all models and with each other one left out (which one:
        ``left_out``), ``p_holm`` is corrected. ``verdict`` is "enriched"; "not_detected";
        "artefact_suspected" (an external model is enriched as well); "unchecked" (enriched, but
        there is no external model); or "inconclusive" (too few models).

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, section 4, detector 3, which has no null hypothesis; ranks, both
    tests, the left-out models and the external models are ours.
    """
    scores, about = _complete(cohort)
    columns = range(len(cohort.models))
    tests = [_tail_tests(rank_scores(scores), column) for column in columns]
    names = ("upper", "lower", "expected", "p_exchangeable", "p_symmetric")
    tails = pd.concat([about, pd.DataFrame(tests, columns=names)], axis=1)
    p_values, left_out = [max(test[3:]) for test in tests], [""] * len(tests)
    for other in columns if len(columns) >= MIN_MODELS else ():
        ranks = rank_scores(np.delete(scores, other, axis=1))
        for column in columns:
            if column != other:
                p = max(_tail_tests(ranks, column - (other < column))[3:])
                if p > p_values[column]:
                    p_values[column], left_out[column] = p, cohort.models[other]
    p_holm = adjust_p_values(p_values, "holm")
    tails = tails.assign(p=p_values, left_out=left_out, p_holm=p_holm)
    enriched = "enriched" if cohort.external else "unchecked"
    tails["verdict"] = np.where(tails["p_holm"] <= alpha, enriched, "not_detected")
    external = tails.loc[tails["external"], ["p_exchangeable", "p_symmetric"]]
    if len(columns) < MIN_MODELS:
        tails["verdict"] = "inconclusive"
    elif (external.max(axis=1) <= alpha).any():
        tails["verdict"] = "artefact_suspected"
    return tails


def _complete(cohort: Cohort) -> tuple[Array, pd.DataFrame]:
    """Return the scores of the items that all models have, and the frame's leading columns."""
    complete = cohort.complete()
    if not complete.any():
        raise DataError(
            f"cohort {cohort.benchmark!r}: no item has the scores of all {len(cohort.models)}"
            " models; leave out the models with the fewest"
        )
    about = pd.DataFrame({"model": cohort.models})
    about["external"] = about["model"].isin(list(cohort.external))
    n = int(complete.sum())
    return cohort.scores[complete], about.assign(n=n, n_missing=len(complete) - n)


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
