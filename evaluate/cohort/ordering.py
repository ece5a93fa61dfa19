"""Trends of scores along the file, under several orders and with confounders held fixed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flipbench.core.randomness import generator

from ..statistics.order_trend import MIN_ITEMS, OrderTrend, cluster_values, order_trend_test
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


@dataclass(frozen=True)
class OrderCell:
    """The trend of one model's scores under one order, with one control for confounders.

    Attributes
    ----------
    order : str
        One of `ORDERS`.
    control : str
        "none"; "whole images" (one value for each, since questions about one image are not
        independent); "within X" (permutations within the strata of covariate X); "residuals" (on
        the covariates); "residuals on M" (on the covariates and the scores of external model M).
    n, n_missing : int
        Items tested, and items without a score (or without the external model's).
    trend : OrderTrend or None
    refused : str
        Why there is no test; empty if there is one.
    bonferroni, holm, q : float or None
        ``p`` corrected over the family by Bonferroni, Holm and Benjamini-Hochberg; None outside it.
    """

    benchmark: str
    model: str
    external: bool
    order: str
    control: str
    n: int
    n_missing: int
    trend: OrderTrend | None = None
    refused: str = ""
    bonferroni: float | None = None
    holm: float | None = None
    q: float | None = None

    @property
    def p(self) -> float | None:
        """One-sided p-value of scores that fall along the order."""
        return self.trend.p_falls if self.trend else None

    @property
    def at_floor(self) -> bool:
        """Whether p is the smallest that the number of permutations can give."""
        return self.trend is not None and self.trend.p_falls <= self.trend.floor * (1 + 1e-9)

    @property
    def in_family(self) -> bool:
        """Whether the cell is a test: not refused, and not the sanity order."""
        return self.trend is not None and self.order != SANITY_ORDER


def order_grid(
    cohort: Cohort,
    *,
    seed: int = 0,
    orders: Sequence[str] = ORDERS,
    strata: Sequence[str] = (),
    covariates: Sequence[str] = (),
    sort_scores: Array | None = None,
    n_permutations: int = N_PERMUTATIONS,
) -> list[OrderCell]:
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
    list of OrderCell
        In the order models, orders, controls, not corrected; see `correct_for_multiplicity`.

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, sections 4.4 and 4.7. Differs from the paper: an order that
    leaves the file as it is, or whose key is missing, is refused, where the paper reports the
    release order's p again; ties of a key are in order of the hash, where the paper keeps release
    order; "reverse" and the controls are not in the paper.
    """
    cells = []
    for model in cohort.models:
        cells += [
            _cell(cohort, model, order, PLAIN, sort_scores, seed, n_permutations)
            for order in orders
        ]
        cells += _controlled(cohort, model, strata, covariates, seed, n_permutations)
    return cells


def correct_for_multiplicity(cells: Iterable[OrderCell]) -> list[OrderCell]:
    """Return the cells (of all benchmarks) with the corrected p-values of their one family.

    Refused cells and the hash order are not part of the family.
    """
    listed = list(cells)
    p_values = [cell.p for cell in listed if cell.in_family and cell.p is not None]
    corrected = zip(
        adjust_p_values(p_values, "bonferroni"),
        adjust_p_values(p_values, "holm"),
        adjust_p_values(p_values, "benjamini-hochberg"),
        strict=True,
    )
    results = []
    for cell in listed:
        if cell.in_family:
            bonferroni, holm, q = next(corrected)
            cell = replace(cell, bonferroni=bonferroni, holm=holm, q=q)
        results.append(cell)
    return results


def permutations_needed(n_tests: int, alpha: float = ALPHA) -> int:
    """Return the permutations with which Bonferroni over ``n_tests`` can reach ``alpha``.

    >>> permutations_needed(27), permutations_needed(12)
    (2699, 1199)
    """
    return int(np.ceil(round(n_tests / alpha, 9))) - 1


def hash_key(item_ids: Sequence[str]) -> NDArray[np.str_]:
    """Return the SHA-1 digests of the item ids, shape (N,)."""
    return np.array([hashlib.sha1(item.encode()).hexdigest() for item in item_ids])


def sort_order(key: Covariate, item_ids: Sequence[str], what: str) -> tuple[NDArray[np.int64], str]:
    """Return the indices that sort items by ``key`` (ties by hash), and why that is no new order.

    The second value is empty, or a reason to refuse: the key is missing for some items, constant,
    or already sorted along the file, so that only the release order would be tested again.
    """
    release = np.arange(len(key))
    if np.issubdtype(key.dtype, np.number):
        n_missing = int(np.isnan(key.astype(float)).sum())
        if n_missing:
            return release, f"{n_missing} of {len(key)} items have no {what}"
    rank = np.unique(key, return_inverse=True)[1]
    if (rank == rank[0]).all():
        return release, f"{what} is the same for all items, which leaves the release order"
    steps = np.diff(rank)
    if (steps >= 0).all():
        return release, f"the file is already sorted by {what}: the release order again"
    if (steps <= 0).all():
        return release, f"the file is sorted by {what} downwards: the release order reversed"
    return np.lexsort((hash_key(item_ids), rank)), ""


def _cell(
    cohort: Cohort,
    model: str,
    order: str,
    control: str,
    sort_scores: Array | None,
    seed: int,
    n_permutations: int,
) -> OrderCell:
    column = cohort.models.index(model)
    values = cohort.scores[:, column]
    measured = ~np.isnan(values)
    ids = [item for item, there in zip(cohort.item_ids, measured, strict=True) if there]
    values = values[measured]
    release = np.arange(len(values))
    indices, refused = release, ""
    if order == "reverse":
        indices = release[::-1]
    elif order == SANITY_ORDER:
        indices = np.argsort(hash_key(ids))
    elif order in LENGTHS:
        name = LENGTHS[order]
        if name in cohort.covariates:
            indices, refused = sort_order(cohort.covariates[name][measured], ids, name)
        else:
            refused = f"there is no covariate {name!r}"
    elif order == "score":
        key = values if sort_scores is None else sort_scores[measured, column]
        indices, refused = sort_order(key, ids, "score")
        if not refused and (np.diff(values[indices]) >= 0).all():
            refused = "sorted by the tested scores themselves, rho is 1 for any model"
    elif order != "release":
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {order!r}")
    return _tested(
        _empty(cohort, model, order, control, len(values)),
        values[indices],
        None,
        refused,
        seed,
        n_permutations,
    )


def _controlled(
    cohort: Cohort,
    model: str,
    strata: Sequence[str],
    covariates: Sequence[str],
    seed: int,
    n_permutations: int,
) -> Iterator[OrderCell]:
    """Yield the release order's cells with whole images, and with confounders held fixed."""
    scores = cohort.scores[:, cohort.models.index(model)]
    measured = ~np.isnan(scores)
    image = cohort.covariates.get("image", np.array(cohort.item_ids))
    if len(set(image)) < len(image):
        cell = _empty(cohort, model, "release", WHOLE_IMAGES, int(measured.sum()))
        values = cluster_values(scores[measured], [str(name) for name in image[measured]])
        few = f"{len(values)} images share the items; a trend needs at least {MIN_ITEMS} images"
        yield _tested(
            cell, values, None, few if len(values) < MIN_ITEMS else "", seed, n_permutations
        )
    for name in strata:
        cell = _empty(cohort, model, "release", f"within {name}", int(measured.sum()))
        stratum, refused = None, _absent(cohort.covariates, [name])
        if not refused:
            stratum = strata_of(cohort.covariates[name][measured])
            largest = int(np.bincount(stratum).max())
            if largest == len(stratum):
                refused = f"{name} is the same for all items"
            elif largest == 1:
                refused = f"{name} is different for all items, so there is nothing to permute"
        yield _tested(cell, scores[measured], stratum, refused, seed, n_permutations)
    others = sorted(cohort.external - {model})
    for control, baseline in (("residuals", None), *((f"residuals on {m}", m) for m in others)):
        if baseline is None and not covariates:
            continue
        both = measured
        if baseline is not None:
            both = measured & ~np.isnan(cohort.scores[:, cohort.models.index(baseline)])
        cell = _empty(cohort, model, "release", control, int(both.sum()))
        refused = _absent(cohort.covariates, covariates)
        values = scores[both]
        if not refused:
            columns = [cohort.covariates[name][both] for name in covariates]
            if baseline is not None:
                columns.append(cohort.scores[both, cohort.models.index(baseline)])
            try:
                values = residuals(values, columns)
            except ValueError as error:
                refused = str(error)
        yield _tested(cell, values, None, refused, seed, n_permutations)


def _absent(known: Mapping[str, Covariate], names: Sequence[str]) -> str:
    absent = [name for name in names if name not in known]
    return f"there is no covariate {absent[0]!r}" if absent else ""


def _empty(cohort: Cohort, model: str, order: str, control: str, n: int) -> OrderCell:
    n_missing = len(cohort.item_ids) - n
    external = model in cohort.external
    return OrderCell(cohort.benchmark, model, external, order, control, n, n_missing)


def _tested(
    cell: OrderCell,
    values: Array,
    stratum: NDArray[np.int64] | None,
    refused: str,
    seed: int,
    n_permutations: int,
) -> OrderCell:
    """Return the cell with its trend, or with the reason why there is none."""
    if not refused and len(values) < MIN_ITEMS:
        refused = f"a trend needs at least {MIN_ITEMS} items"
    if refused:
        return replace(cell, refused=refused)
    rng = generator(seed, f"{cell.benchmark}\x00{cell.model}", f"{cell.order}\x00{cell.control}")
    strata = None if stratum is None else [str(s) for s in stratum]
    trend = order_trend_test(values, rng, strata=strata, n_permutations=n_permutations)
    return replace(cell, trend=trend)
