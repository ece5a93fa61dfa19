"""Flagged shares by subpopulation: whether a tail is spread out or sits in one stratum."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from statsmodels.stats.contingency_tables import StratifiedTable

from flipbench.core.errors import DataError
from flipbench.core.rates import Rate

from ..statistics.intervals import design_effect
from ..statistics.paired import adjust_p_values

MIN_ITEMS = 30
NONE = "(none)"
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Share:
    """The flagged share of one stratum under one model, against the rest of the factor.

    Attributes
    ----------
    rate : Rate
        k of n items, with Wilson's interval for as many items as the pictures are worth.
    rest : Rate
        The same over all other items.
    p_value : float
        Two-sided, against "as often as elsewhere": a score test with the variance between pictures,
        Student's t.
    q_value : float or None
        Benjamini-Hochberg over all shares of strata that are not small; None for a small stratum.
    """

    model: str
    rate: Rate
    rest: Rate
    p_value: float
    q_value: float | None = None


@dataclass(frozen=True)
class Stratum:
    """One value of a factor.

    Attributes
    ----------
    small : bool
        Fewer than 30 items: shown in grey, left out of the family of tests.
    shares : tuple of Share
        One for each model.
    spread : float
        Largest difference of flagged shares between models, a fraction.
    """

    factor: str
    name: str
    n: int
    small: bool
    shares: tuple[Share, ...]
    spread: float


def subpopulations(
    flags: ArrayLike,
    models: Sequence[str],
    factors: Mapping[str, Sequence[str]],
    *,
    pictures: Sequence[str] | None = None,
    min_items: int = MIN_ITEMS,
) -> list[Stratum]:
    """Split flagged shares by each factor; the strata of a factor sum to all items.

    Parameters
    ----------
    flags : array_like of bool, shape (N, M)
        Items by models: whether the model's statistic flags the item (for example tail above 100).
    models : sequence of str, shape (M,)
    factors : mapping of str to sequence of str, each of shape (N,)
        Answer type, category, ...; an empty value is a stratum of its own, "(none)".
    pictures : sequence of str, shape (N,), optional
        Items of one picture are one independent unit.

    Raises
    ------
    DataError
        If shapes differ.

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, section 4.11 and table 6. Intervals, tests, correction and the
    Cochran-Mantel-Haenszel test are ours.

    Examples
    --------
    >>> tail = [[0]] * 645 + [[1]] * 256 + [[0]] * 160
    >>> strata = subpopulations(tail, ["m"], {"answer": ["OPEN"] * 645 + ["CLOSED"] * 416})
    >>> [(s.name, s.shares[0].rate.k, s.n) for s in strata]
    [('CLOSED', 256, 416), ('OPEN', 0, 645)]
    """
    flagged = _checked(flags, models, factors)
    n_items = len(flagged)
    units = np.array(range(n_items) if pictures is None else pictures, dtype=str)
    if len(units) != n_items:
        raise DataError(f"{n_items} items, but pictures of {len(units)}")
    strata = []
    for factor, items_by_name in _strata(factors):
        for name, in_stratum in items_by_name:
            shares = tuple(
                Share(
                    model,
                    _rate(flagged[in_stratum, column], units[in_stratum]),
                    _rate(flagged[~in_stratum, column], units[~in_stratum]),
                    _score_test(flagged[:, column], in_stratum, units),
                )
                for column, model in enumerate(models)
            )
            n = int(in_stratum.sum())
            values = [share.rate.k / n for share in shares] or [0.0]
            spread = max(values) - min(values)
            strata.append(Stratum(factor, name, n, n < min_items, shares, spread))
    family = [share.p_value for s in strata if not s.small for share in s.shares]
    q_values = iter(adjust_p_values(family, "benjamini-hochberg"))
    return [
        s
        if s.small
        else replace(s, shares=tuple(replace(share, q_value=next(q_values)) for share in s.shares))
        for s in strata
    ]


def models_within_strata(
    flags: ArrayLike, models: Sequence[str], factors: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """Compare the models two by two within the strata of each factor.

    The Cochran-Mantel-Haenszel test of flag by model, given the stratum, takes the two models'
    items as independent samples. Both models see the same items, so it errs towards "no
    difference" where they flag the same ones. Parameters are those of `subpopulations`.

    Returns
    -------
    DataFrame
        One row for each ``factor`` and pair of ``models``: the ``odds_ratio`` of the first model's
        flags to the second's, pooled over strata (Mantel-Haenszel), NaN if it is undefined; the
        two-sided ``p_value``, 1 if nothing varies; and ``p_adjusted`` by Holm over all rows.
    """
    flagged = _checked(flags, models, factors)
    rows = []
    for factor, items_by_name in _strata(factors):
        for a, b in itertools.combinations(range(len(models)), 2):
            tables = [
                [
                    [int(column.sum()), int((~column).sum())]
                    for column in (flagged[in_stratum, a], flagged[in_stratum, b])
                ]
                for _, in_stratum in items_by_name
            ]
            rows.append((factor, (models[a], models[b]), *_cochran_mantel_haenszel(tables)))
    frame = pd.DataFrame(rows, columns=["factor", "models", "odds_ratio", "p_value"])
    return frame.assign(p_adjusted=adjust_p_values(frame["p_value"].tolist()))


def _cochran_mantel_haenszel(tables: Sequence[Sequence[Sequence[int]]]) -> tuple[float, float]:
    varying = [t for t in tables if 0 < t[0][0] + t[1][0] and 0 < t[0][1] + t[1][1]]
    if not varying:
        return float("nan"), 1.0
    stratified = StratifiedTable([np.array(table) for table in varying])
    cross = sum(t[0][1] * t[1][0] / (sum(t[0]) + sum(t[1])) for t in varying)
    odds = float(stratified.oddsratio_pooled) if cross else float("inf")
    excess = sum(
        t[0][0] - sum(t[0]) * (t[0][0] + t[1][0]) / (sum(t[0]) + sum(t[1])) for t in varying
    )
    if abs(excess) <= 0.5:  # the continuity correction leaves nothing; statsmodels goes below 0
        return odds, 1.0
    return odds, float(stratified.test_null_odds(correction=True).pvalue)


def _rate(flags: Flags, units: NDArray[np.str_]) -> Rate:
    k, n = int(flags.sum()), len(flags)
    if n == 0 or len(set(units.tolist())) == n:
        return Rate.wilson(k, n)
    return Rate.wilson(k, n, n / design_effect(flags.astype(float).tolist(), units.tolist()))


def _score_test(flags: Flags, in_stratum: Flags, units: NDArray[np.str_]) -> float:
    """Return the two-sided p of "inside and outside are flagged alike", units being independent."""
    n_stratum, n_rest = int(in_stratum.sum()), int((~in_stratum).sum())
    _, unit = np.unique(units, return_inverse=True)
    n_units = int(unit.max(initial=-1)) + 1
    if not n_stratum or not n_rest or n_units < 2 or flags.all() or not flags.any():
        return 1.0
    weights = np.where(in_stratum, 1 / n_stratum, -1 / n_rest)
    totals = np.bincount(unit, weights=weights * (flags - flags.mean()))
    variance = float((totals**2).sum()) * n_units / (n_units - 1)
    if variance == 0:
        return 1.0
    return float(2 * stats.t.sf(abs(float(totals.sum())) / variance**0.5, n_units - 1))


def _checked(
    flags: ArrayLike, models: Sequence[str], factors: Mapping[str, Sequence[str]]
) -> Flags:
    flagged = np.asarray(flags, dtype=bool)
    if flagged.ndim != 2 or flagged.shape[1] != len(models):
        raise DataError(f"flags of {len(models)} models need {len(models)} columns")
    for factor, values in factors.items():
        if len(values) != len(flagged):
            raise DataError(f"factor {factor}: {len(values)} values for {len(flagged)} items")
    return flagged


def _strata(factors: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, list[tuple[str, Flags]]]]:
    """Yield each factor with its strata, in the order of their names, and their items."""
    for factor, values in factors.items():
        names = np.array([value or NONE for value in values])
        yield factor, [(name, names == name) for name in sorted(set(names.tolist()))]
