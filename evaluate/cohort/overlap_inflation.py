"""Overlap inflation: how much better a model does on items whose pictures are near the corpus."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from flipbench.core.errors import DataError
from flipbench.core.records import Interval

from ..statistics.resampling import LEVEL, N_BOOTSTRAP, N_PERMUTATIONS, Array

Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
ALL = "all items"


def overlap_inflation(
    scores: ArrayLike,
    flagged: ArrayLike,
    pictures: Sequence[str],
    rng: np.random.Generator,
    *,
    strata: Sequence[str] | None = None,
    n_permutations: int = N_PERMUTATIONS,
    n_bootstrap: int = N_BOOTSTRAP,
) -> pd.DataFrame:
    """Compare flagged items with the others, over all items and within each stratum.

    Parameters
    ----------
    scores : array_like, shape (N,)
        One model's scores in release order, e.g. mean log-probability of the right answer in nats
        per token; NaN where there is none.
    flagged : array_like of bool, shape (N,)
        Whether the item's picture has a near neighbour in the corpus.
    pictures : sequence of str, shape (N,)
        The picture of each item; permutations and bootstrap keep its items together.
    strata : sequence of str, shape (N,), optional
        Answer type or category.

    Returns
    -------
    DataFrame
        One row for each ``stratum``, all items first: ``n_flagged`` and ``n_unflagged`` items with
        a score, ``n_missing`` without, and the pictures that they are of, which are the independent
        units (``n_pictures_flagged``, ``n_pictures_unflagged``). ``mean_flagged``,
        ``mean_unflagged`` and their ``difference`` are in the score's unit, NaN if a side is empty;
        ``interval`` is a percentile bootstrap over pictures, each side resampled for itself (None
        with fewer than two on a side). ``p_value`` is two-sided, flags permuted among pictures, and
        exact if all assignments can be enumerated; ``p_items`` permutes flags among items, as in
        the paper, and is too small where items share pictures. ``position_correlation`` is that of
        flag and position in the file: far from 0, inflation and order trend are confounded.

    Raises
    ------
    DataError
        If lengths differ, or a picture is flagged for some of its items only.

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, ``scripts/overlap_inflation.py``. It permutes items; here
    pictures are permuted, and its p-value stands beside.

    Examples
    --------
    >>> names = ["a", "b", "c", "d", "e"]
    >>> rng = np.random.default_rng(0)
    >>> result = overlap_inflation([2, 4, 1, 1, 3], [1, 1, 0, 0, 0], names, rng)
    >>> result[["difference", "p_value"]].round(4).values.tolist()
    [[1.3333, 0.3]]
    """
    values, flags, picture = _checked(scores, flagged, pictures)
    groups = {ALL: np.ones(len(values), bool)}
    if strata is not None:
        _same_length(len(values), strata)
        groups |= {name: np.asarray(strata) == name for name in sorted(set(strata))}
    return pd.DataFrame(
        _inflation(name, values, flags, picture, in_stratum, rng, n_permutations, n_bootstrap)
        for name, in_stratum in groups.items()
    )


@dataclass(frozen=True)
class Churn:
    """How far a ranking of models changes when flagged items are left out.

    Attributes
    ----------
    tau : float or None
        Kendall's tau-b between both rankings; None with fewer than two models or all of them tied.
    interval : Interval or None
        Of tau, percentile bootstrap over pictures; models are fixed.
    swapped : list of (str, str)
        Pairs of models of which the first leads over all items, the second without flagged ones.
    """

    tau: float | None
    interval: Interval | None
    swapped: list[tuple[str, str]]


def accuracy_inflation(
    correct: ArrayLike,
    flagged: ArrayLike,
    pictures: Sequence[str],
    models: Sequence[str],
    rng: np.random.Generator,
    *,
    n_bootstrap: int = N_BOOTSTRAP,
) -> tuple[pd.DataFrame, Churn]:
    """Return what flagged items add to each model's accuracy, and to the order of the models.

    Parameters
    ----------
    correct : array_like, shape (N, M)
        1 right, 0 wrong, NaN no answer; items by models.
    flagged, pictures : shape (N,)
        As in `overlap_inflation`.
    models : sequence of str, shape (M,)

    Returns
    -------
    DataFrame
        One row for each ``model``: ``k`` of ``n`` answered items are right, and ``k_clean`` of
        ``n_clean`` that are not flagged; ``inflation`` = k / n - k_clean / n_clean, a fraction, NaN
        if either is empty; ``interval``, a percentile bootstrap over pictures, or None.
    Churn

    Raises
    ------
    DataError
        If shapes differ, or a picture is flagged for some of its items only.

    Examples
    --------
    >>> right = np.array([[1.0]] * 7 + [[0.0]] * 3)
    >>> flags = [True] * 4 + [False] * 6
    >>> names = list("abcdefghij")
    >>> frame, churn = accuracy_inflation(right, flags, names, ["m"], np.random.default_rng(0))
    >>> frame[["k", "n", "k_clean", "n_clean"]].values.tolist(), churn.tau
    ([[7, 10, 3, 6]], None)
    """
    outcomes = np.asarray(correct, dtype=float)
    if outcomes.ndim != 2 or outcomes.shape[1] != len(models):
        raise DataError(f"answers of {len(models)} models need {len(models)} columns of outcomes")
    _, flags, picture = _checked(outcomes[:, 0] if len(models) else [], flagged, pictures)
    counts = _counts(outcomes, flags, picture)
    totals = counts.sum(axis=0)
    weights = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=n_bootstrap)
    resampled = np.tensordot(weights.astype(float), counts, axes=1)
    everywhere, clean = _accuracies(totals)
    drawn_everywhere, drawn_clean = _accuracies(resampled.swapaxes(0, 1))
    differences = drawn_everywhere - drawn_clean
    intervals = [_percentiles(column) if len(counts) > 1 else None for column in differences.T]
    results = pd.DataFrame(totals.T.astype(int), columns=["k", "n", "k_clean", "n_clean"])
    results.insert(0, "model", list(models))
    results["inflation"] = everywhere - clean
    results["interval"] = pd.Series(intervals, dtype=object)
    taus = map(_tau, drawn_everywhere, drawn_clean)
    tau = _tau(everywhere, clean)
    return results, Churn(
        tau=tau,
        interval=None if tau is None else _percentiles([t for t in taus if t is not None]),
        swapped=[
            (models[a], models[b])
            for a, b in itertools.permutations(range(len(models)), 2)
            if everywhere[a] > everywhere[b] and clean[a] < clean[b]
        ],
    )


def _inflation(
    name: str,
    values: Array,
    flags: Flags,
    picture: Indices,
    in_stratum: Flags,
    rng: np.random.Generator,
    n_permutations: int,
    n_bootstrap: int,
) -> dict[str, object]:
    has_score = in_stratum & np.isfinite(values)
    score, flag, position = values[has_score], flags[has_score], np.flatnonzero(has_score)
    units, unit = np.unique(picture[has_score], return_inverse=True)
    totals = np.bincount(unit, weights=score).astype(np.float64)
    sizes = np.bincount(unit).astype(np.float64)
    unit_flagged = np.zeros(len(units), bool)
    unit_flagged[unit] = flag
    mean_flagged, mean_unflagged = (
        float(score[side].mean()) if side.any() else float("nan") for side in (flag, ~flag)
    )
    by_picture = _Sides(totals, sizes, unit_flagged)
    by_item = _Sides(score, np.ones(len(score)), flag)
    varies = len(score) > 1 and flag.any() and not flag.all()
    return {
        "stratum": name,
        "n_flagged": int(flag.sum()),
        "n_unflagged": int((~flag).sum()),
        "n_pictures_flagged": int(unit_flagged.sum()),
        "n_pictures_unflagged": int((~unit_flagged).sum()),
        "n_missing": int(in_stratum.sum() - has_score.sum()),
        "mean_flagged": mean_flagged,
        "mean_unflagged": mean_unflagged,
        "difference": mean_flagged - mean_unflagged,
        "interval": by_picture.interval(rng, n_bootstrap),
        "p_value": by_picture.p_value(rng, n_permutations),
        "p_items": by_item.p_value(rng, n_permutations),
        "position_correlation": (
            float(np.corrcoef(flag.astype(float), position)[0, 1]) if varies else float("nan")
        ),
    }


@dataclass(frozen=True)
class _Sides:
    """Totals and sizes of units, shape (U,), and which of them are flagged."""

    totals: Array
    sizes: Array
    flagged: Flags

    @property
    def sides(self) -> tuple[Indices, Indices]:
        return np.flatnonzero(self.flagged), np.flatnonzero(~self.flagged)

    def difference(self, flagged: Indices, unflagged: Indices, axis: int = -1) -> Array:
        means = [
            self.totals[side.astype(int)].sum(axis) / self.sizes[side.astype(int)].sum(axis)
            for side in (flagged, unflagged)
        ]
        return np.asarray(means[0] - means[1])

    def p_value(self, rng: np.random.Generator, n_permutations: int) -> float:
        """Return the two-sided p of the difference in means when flags are permuted."""
        smaller = min(self.sides, key=len)
        if len(smaller) == 0 or len(self.totals) < 3:
            return 1.0
        if (
            len(smaller) == 1
        ):  # SciPy needs two on each side; here each unit is the only one in turn
            means_of_rest = (self.totals.sum() - self.totals) / (self.sizes.sum() - self.sizes)
            differences = np.abs(self.totals / self.sizes - means_of_rest)
            return float(np.mean(differences >= differences[smaller[0]] - 1e-12))

        def magnitude(flagged: Indices, unflagged: Indices, axis: int = -1) -> Array:
            # equal differences count as equal
            return np.asarray(np.abs(self.difference(flagged, unflagged, axis)).round(12))

        test = stats.permutation_test(
            self.sides,
            magnitude,
            permutation_type="independent",
            vectorized=True,
            n_resamples=n_permutations,
            batch=500,
            alternative="greater",
            rng=rng,
        )
        return float(test.pvalue)

    def interval(self, rng: np.random.Generator, n_bootstrap: int) -> Interval | None:
        if min(map(len, self.sides)) < 2:
            return None
        result = stats.bootstrap(
            self.sides,
            self.difference,
            vectorized=True,
            paired=False,
            n_resamples=n_bootstrap,
            batch=250,
            confidence_level=LEVEL,
            method="percentile",
            rng=rng,
        ).confidence_interval
        return Interval(low=float(result.low), high=float(result.high), level=LEVEL)


def _counts(outcomes: Array, flags: Flags, picture: Indices) -> Array:
    """Return by picture right, answered, clean right, clean answered: shape (P, 4, M)."""
    n_right, n_answered = np.nan_to_num(outcomes), np.isfinite(outcomes).astype(float)
    clean = (~flags).astype(float)[:, None]
    columns = np.stack([n_right, n_answered, n_right * clean, n_answered * clean], axis=1)
    counts = np.zeros((int(picture.max(initial=-1)) + 1, *columns.shape[1:]))
    np.add.at(counts, picture, columns)
    return counts


def _accuracies(counts: Array) -> tuple[Array, Array]:
    """Return the accuracies over all and over clean items, from counts of shape (4, ...)."""
    n_right, n_answered = counts[::2], counts[1::2]
    shares = np.divide(n_right, n_answered, out=np.full_like(n_right, np.nan), where=n_answered > 0)
    return shares[0], shares[1]


def _tau(scores: Array, clean_scores: Array) -> float | None:
    if len(scores) < 2 or not np.isfinite([scores, clean_scores]).all():
        return None
    tau = float(stats.kendalltau(scores, clean_scores).statistic)
    return tau if np.isfinite(tau) else None


def _percentiles(values: ArrayLike) -> Interval | None:
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return None
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(low=float(low), high=float(high), level=LEVEL)


def _checked(
    scores: ArrayLike, flagged: ArrayLike, pictures: Sequence[str]
) -> tuple[Array, Flags, Indices]:
    values, flags = np.asarray(scores, dtype=float), np.asarray(flagged, dtype=bool)
    _same_length(len(values), flags, pictures)
    names, picture = np.unique(np.asarray(pictures, dtype=str), return_inverse=True)
    n_flagged, n = np.bincount(picture, weights=flags), np.bincount(picture)
    split = np.flatnonzero((n_flagged > 0) & (n_flagged < n))
    if len(split):
        raise DataError(
            f"picture {names[split[0]]}: {int(n_flagged[split[0]])} of its {n[split[0]]} items are"
            " flagged; flag pictures, then give each item its picture's flag"
        )
    return values, flags, picture


def _same_length(n: int, *sequences: ArrayLike | Sequence[str]) -> None:
    lengths = [len(np.asarray(values)) for values in sequences]
    if any(length != n for length in lengths):
        raise DataError(f"scores of {n} items, but flags, pictures or strata of {lengths}")
