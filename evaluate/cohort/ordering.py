"""Trends of scores along the file, under several orders and with confounders held fixed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flipbench.core.randomness import generator

from ..statistics.order_trend import MIN_ITEMS, cluster_values, order_trend_test
from ..statistics.paired import adjust_p_values
from .cohort import Array, Cohort, Covariate, residuals, strata_of

ALPHA = 0.01
N_PERMUTATIONS = 10_000
SANITY_ORDER = "hash"
"""A random order, under which p is uniform whatever the scores hold: outside the family."""
LENGTHS = {"answer length": "answer_tokens", "question length": "question_words"}
"""Order → the covariate it sorts by."""
ORDERS = ("release", "reverse", SANITY_ORDER, *LENGTHS, "score")
PLAIN = "none"
WHOLE_IMAGES = "whole images"


class _Trial(NamedTuple):
    """What is tested: values in order, or why they are not."""

    order: str
    control: str
    n: int
    values: Array
    refusal: str = ""
    stratum: NDArray[np.int64] | None = None


def order_grid(
    cohort: Cohort,
    *,
    seed: int = 0,
    orders: Sequence[str] = ORDERS,
    strata: Sequence[str] = (),
    covariates: Sequence[str] = (),
    sort_scores: Array | None = None,
    n_permutations: int = N_PERMUTATIONS,
) -> pd.DataFrame:
    """Test every model for a trend under every order, and in release order with every control.

    Whole images are tested if the cohort knows each item's ``image`` and some items share one.

    Parameters
    ----------
    strata : sequence of str
        Covariates, each held fixed by permuting within its strata (numbers: within tenths).
    covariates : sequence of str
        Covariates, all held fixed by residuals on them.
    sort_scores : ndarray of float, shape (n_items, n_models), optional
        Another score of each model, to sort by under the order "score".
    n_permutations : int
        Drawn anew for each cell from (seed, benchmark, model, order, control).

    Returns
    -------
    DataFrame
        One row for each model, order and control, not corrected; see `correct_for_multiplicity`.
        ``order`` is one of `ORDERS`. ``control`` is "none"; "whole images" (one value for each,
        since questions about one image are not independent); "within X" (permutations within the
        strata of covariate X); "residuals" (on the covariates); or "residuals on M" (on the
        covariates and the scores of external model M). ``n`` items are tested, ``n_missing`` have
        no score (or lack the external model's). ``trend`` is an `OrderTrend`, or None if there is
        no test, and ``refused`` says why. ``p`` is one-sided for scores that fall along the order,
        ``at_floor`` whether it is the smallest that the number of permutations can give.

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, sections 4.4 and 4.7. Differs from the paper: an order that
    leaves the file as it is, or whose key is missing, is refused, where the paper reports the
    release order's p again; ties of a key are in order of the hash, where the paper keeps release
    order; "reverse" and the controls are not in the paper.
    """
    rows = []
    for column, model in enumerate(cohort.models):
        key = cohort.scores if sort_scores is None else sort_scores
        trials = [_ordered(cohort, column, order, key[:, column]) for order in orders]
        trials += _controlled(cohort, column, strata, covariates)
        for order, control, n, values, refusal, stratum in trials:
            if not refusal and len(values) < MIN_ITEMS:
                refusal = f"a trend needs at least {MIN_ITEMS} items"
            names = None if stratum is None else [str(number) for number in stratum]
            rng = generator(seed, f"{cohort.benchmark}\x00{model}", f"{order}\x00{control}")
            trend = None
            if not refusal:
                trend = order_trend_test(values, rng, strata=names, n_permutations=n_permutations)
            rows.append(
                {
                    "benchmark": cohort.benchmark,
                    "model": model,
                    "external": model in cohort.external,
                    "order": order,
                    "control": control,
                    "n": n,
                    "n_missing": len(cohort.item_ids) - n,
                    "trend": trend,
                    "refused": refusal,
                    "p": trend and trend.p_falls,
                    "at_floor": bool(trend and trend.p_falls <= trend.floor * (1 + 1e-9)),
                }
            )
    return pd.DataFrame(rows)


def in_family(cells: pd.DataFrame) -> pd.Series:
    """Return which cells are tests: not refused, and not of the sanity order."""
    return cells["trend"].notna() & (cells["order"] != SANITY_ORDER)


def correct_for_multiplicity(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells (of all benchmarks) with the corrected p-values of their one family.

    The columns ``bonferroni``, ``holm`` and ``q`` (Benjamini-Hochberg) are NaN outside the family.
    """
    family = in_family(cells)
    p_values = cells.loc[family, "p"].tolist()
    cells = cells.assign(bonferroni=np.nan, holm=np.nan, q=np.nan)
    cells.loc[family, "bonferroni"] = adjust_p_values(p_values, "bonferroni")
    cells.loc[family, "holm"] = adjust_p_values(p_values, "holm")
    cells.loc[family, "q"] = adjust_p_values(p_values, "benjamini-hochberg")
    return cells


def permutations_needed(n_tests: int, alpha: float = ALPHA) -> int:
    """Return the permutations with which Bonferroni over ``n_tests`` can reach ``alpha``.

    >>> permutations_needed(27), permutations_needed(12)
    (2699, 1199)
    """
    return int(np.ceil(round(n_tests / alpha, 9))) - 1


def hash_key(item_ids: Sequence[str]) -> NDArray[np.str_]:
    """Return the SHA-1 digests of the item ids, shape (N,)."""
    return np.array([hashlib.sha1(item.encode()).hexdigest() for item in item_ids])


def sort_order(key: Covariate, item_ids: Sequence[str], noun: str) -> tuple[NDArray[np.int64], str]:
    """Return the indices that sort items by ``key`` (ties by hash), and why that is no new order.

    The second value is empty, or a reason to refuse: the key is missing for some items, constant,
    or already sorted along the file, so that only the release order would be tested again.
    """
    release = np.arange(len(key))
    if np.issubdtype(key.dtype, np.number):
        n_missing = int(np.isnan(key.astype(float)).sum())
        if n_missing:
            return release, f"{n_missing} of {len(key)} items have no {noun}"
    rank = np.unique(key, return_inverse=True)[1]
    if (rank == rank[0]).all():
        return release, f"{noun} is the same for all items, which leaves the release order"
    steps = np.diff(rank)
    if (steps >= 0).all():
        return release, f"the file is already sorted by {noun}: the release order again"
    if (steps <= 0).all():
        return release, f"the file is sorted by {noun} downwards: the release order reversed"
    return np.lexsort((hash_key(item_ids), rank)), ""


def _ordered(cohort: Cohort, column: int, order: str, sort_scores: Array) -> _Trial:
    """Return a model's scores in one order."""
    has_score = ~np.isnan(cohort.scores[:, column])
    ids = list(itertools.compress(cohort.item_ids, has_score.tolist()))
    values = cohort.scores[has_score, column]
    indices, refusal = np.arange(len(values)), ""
    if order == "reverse":
        indices = indices[::-1]
    elif order == SANITY_ORDER:
        indices = np.argsort(hash_key(ids))
    elif order in LENGTHS:
        refusal = _absent(cohort, [LENGTHS[order]])
        if not refusal:
            key = cohort.covariates[LENGTHS[order]][has_score]
            indices, refusal = sort_order(key, ids, LENGTHS[order])
    elif order == "score":
        indices, refusal = sort_order(sort_scores[has_score], ids, "score")
        if not refusal and (np.diff(values[indices]) >= 0).all():
            refusal = "sorted by the tested scores themselves, rho is 1 for any model"
    elif order != "release":
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    return _Trial(order, PLAIN, len(values), values[indices], refusal)


def _controlled(
    cohort: Cohort, column: int, strata: Sequence[str], covariates: Sequence[str]
) -> Iterator[_Trial]:
    """Yield a model's scores in release order, as whole images and with confounders held fixed."""
    scores = cohort.scores[:, column]
    has_score = ~np.isnan(scores)
    n = int(has_score.sum())
    image = cohort.covariates.get("image", np.array(cohort.item_ids))
    if len(set(image)) < len(image):
        values = cluster_values(scores[has_score], [str(name) for name in image[has_score]])
        too_few = f"{len(values)} images share the items; a trend needs at least {MIN_ITEMS} images"
        yield _Trial("release", WHOLE_IMAGES, n, values, too_few if len(values) < MIN_ITEMS else "")
    for name in strata:
        stratum, refusal = None, _absent(cohort, [name])
        if not refusal:
            stratum = strata_of(cohort.covariates[name][has_score])
            largest = int(np.bincount(stratum).max())
            if largest == len(stratum):
                refusal = f"{name} is the same for all items"
            elif largest == 1:
                refusal = f"{name} is different for all items, so there is nothing to permute"
        yield _Trial("release", f"within {name}", n, scores[has_score], refusal, stratum)
    baselines: dict[str, Array] = {
        f"residuals on {model}": cohort.scores[:, cohort.models.index(model)]
        for model in sorted(cohort.external - {cohort.models[column]})
    }
    plain = {"residuals": np.empty((len(scores), 0))} if covariates else {}
    for control, baseline in (plain | baselines).items():
        columns = baseline.reshape(len(scores), -1)
        complete = has_score & ~np.isnan(columns).any(axis=1)
        values, refusal = scores[complete], _absent(cohort, covariates)
        if not refusal:
            held_fixed = [cohort.covariates[name][complete] for name in covariates]
            try:
                values = residuals(values, [*held_fixed, *columns[complete].T])
            except ValueError as error:
                refusal = str(error)
        yield _Trial("release", control, int(complete.sum()), values, refusal)


def _absent(cohort: Cohort, names: Sequence[str]) -> str:
    absent = [name for name in names if name not in cohort.covariates]
    return f"there is no covariate {absent[0]!r}" if absent else ""
