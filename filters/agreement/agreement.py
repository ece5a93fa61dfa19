"""How well two raters agree, and how right one is by the other: counts, chance-corrected, rates.

"unsure" counts as "not kept", as it does in a policy; ``three=True`` keeps it apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flipbench.core.randomness import generator
from flipbench.core.rates import LEVEL, Rate
from flipbench.core.records import Interval
from flipbench.models.protocols import Decision

Array = NDArray[np.float64]
Decisions = Mapping[str, Decision]
N_BOOTSTRAP = 2_000
KEPT = ("keep", "not kept")
THREE = ("keep", "unsure", "reject")
_MOST_UNDEFINED = 0.05


@dataclass(frozen=True)
class Estimate:
    """A statistic and its percentile bootstrap interval; None if it is undefined."""

    value: float | None
    interval: Interval | None = None


@dataclass(frozen=True)
class Agreement:
    """Two raters on the same images.

    Attributes
    ----------
    counts : tuple of tuple of int, shape (Q, Q)
        Rows: ``first``, columns: ``second``, in the order of ``categories`` ("keep" comes first).
    kappa, ac1 : Estimate
        Cohen's kappa and Gwet's AC1. Kappa falls with a skewed prevalence, AC1 hardly does.
    n_one_only : int
        Images that only one of the two has rated; they are in no number.
    """

    first: str
    second: str
    categories: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    kappa: Estimate
    ac1: Estimate
    n_one_only: int = 0

    @property
    def n(self) -> int:
        """Number of images that both have rated."""
        return sum(map(sum, self.counts))

    @property
    def raw(self) -> Rate:
        """Share of images on which the two say the same."""
        return Rate.wilson(sum(row[i] for i, row in enumerate(self.counts)), self.n)

    @property
    def precision(self) -> Rate:
        """Of what the first keeps, the share that the second keeps."""
        return Rate.wilson(self.counts[0][0], sum(self.counts[0]))

    @property
    def recall(self) -> Rate:
        """Of what the second keeps, the share that the first keeps."""
        return Rate.wilson(self.counts[0][0], sum(row[0] for row in self.counts))

    @property
    def rejection_precision(self) -> Rate:
        """Of what the first does not keep, the share that the second does not keep."""
        n = self.n - sum(self.counts[0])
        return Rate.wilson(n - (sum(row[0] for row in self.counts) - self.counts[0][0]), n)

    @property
    def rejection_recall(self) -> Rate:
        """Of what the second does not keep, the share that the first does not keep."""
        n = self.n - sum(row[0] for row in self.counts)
        return Rate.wilson(n - (sum(self.counts[0]) - self.counts[0][0]), n)


def agreement(
    first: str,
    second: str,
    ratings: Mapping[str, Decisions],
    *,
    three: bool = False,
    clusters: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Agreement:
    """Compare two raters on the images that both have rated.

    Parameters
    ----------
    ratings : mapping of str to mapping
        By rater, the decision on each edit id (`ratings_of`). ``second`` is the reference.
    clusters : mapping of str to str, optional
        What an edit id shares with others (its original picture); whole clusters are drawn.

    References
    ----------
    Cohen, *A Coefficient of Agreement for Nominal Scales*, 1960; Gwet, *Computing Inter-Rater
    Reliability and Its Variance in the Presence of High Agreement*, 2008. Intervals: percentile
    bootstrap over images, 2,000 seeded draws; draws in which a statistic is undefined are left
    out, and where they are more than 5 % there is no interval.
    """
    a, b = ratings[first], ratings[second]
    both = sorted(set(a) & set(b))
    names = THREE if three else KEPT
    cells = [(_code(a[i], three), _code(b[i], three)) for i in both]
    tables = np.zeros((len(both), len(names) ** 2))
    tables[np.arange(len(both)), [x * len(names) + y for x, y in cells]] = 1
    shared = None if clusters is None else [clusters[i] for i in both]
    return _agreement(first, second, names, tables, shared, seed, len(set(a) ^ set(b)))


def agreement_of_counts(
    first: str, second: str, counts: Sequence[Sequence[int]], *, seed: int = 0
) -> Agreement:
    """Return the agreement that a published table of counts tells of; rows are ``first``.

    Raises
    ------
    ValueError
        If the table is neither 2 x 2 nor 3 x 3.
    """
    names = {2: KEPT, 3: THREE}.get(len(counts))
    if names is None or any(len(row) != len(names) for row in counts):
        raise ValueError(f"counts must be 2 x 2 or 3 x 3, in the order {KEPT} or {THREE}")
    tables = np.repeat(np.eye(len(names) ** 2), np.ravel(counts), axis=0)
    return _agreement(first, second, names, tables, None, seed, 0)


def krippendorff_alpha(
    ratings: Mapping[str, Decisions],
    *,
    three: bool = False,
    clusters: Mapping[str, str] | None = None,
    seed: int = 0,
) -> tuple[Estimate, int]:
    """Return the nominal alpha of two or more raters, and the number of images it rests on.

    Images may lack ratings; those with fewer than two say nothing and are left out.

    References
    ----------
    Krippendorff, *Content Analysis*, 2004, chapter 11, nominal data with missing values. Interval
    as for kappa, not Krippendorff's own bootstrap.
    """
    q = len(THREE if three else KEPT)
    ids = sorted({i for decisions in ratings.values() for i in decisions})
    counts = np.zeros((len(ids), q))
    for row, i in enumerate(ids):
        for decisions in ratings.values():
            if i in decisions:
                counts[row, _code(decisions[i], three)] += 1
    enough = counts.sum(axis=1) >= 2
    counts, ids = counts[enough], [i for i, good in zip(ids, enough, strict=True) if good]
    n_raters = counts.sum(axis=1)
    pairs = (n_raters**2 - (counts**2).sum(axis=1)) / np.maximum(n_raters - 1, 1)
    shared = None if clusters is None else [clusters[i] for i in ids]
    features = np.column_stack([counts, pairs])
    rng = generator(seed, " ".join(sorted(ratings)), "alpha")
    return _estimate(features, _alpha, rng, shared), len(ids)


def _agreement(
    first: str,
    second: str,
    names: tuple[str, ...],
    tables: Array,
    clusters: Sequence[str] | None,
    seed: int,
    n_one_only: int,
) -> Agreement:
    def estimate(statistic: Callable[[Array], Array]) -> Estimate:
        return _estimate(tables, statistic, generator(seed, f"{first} {second}", "kappa"), clusters)

    q = len(names)
    counts = tables.sum(axis=0).astype(int).reshape(q, q)
    rows = tuple(tuple(int(n) for n in row) for row in counts)
    return Agreement(first, second, names, rows, estimate(_kappa), estimate(_ac1), n_one_only)


def _estimate(
    features: Array,
    statistic: Callable[[Array], Array],
    rng: np.random.Generator,
    clusters: Sequence[str] | None,
) -> Estimate:
    """Return a statistic of the images' summed features, (N, F), and its bootstrap interval.

    Images (or clusters) with equal features are drawn together, by a multinomial over the
    distinct rows: the same distribution as drawing them one by one, at a fraction of the cost.
    """
    if not len(features):
        return Estimate(None)
    value = float(statistic(features.sum(axis=0)))
    if np.isnan(value):
        return Estimate(None)
    if clusters is not None:
        _, index = np.unique(np.asarray(clusters), return_inverse=True)
        grouped = np.zeros((index.max() + 1, features.shape[1]))
        np.add.at(grouped, index, features)
        features = grouped
    if len(features) < 2:
        return Estimate(value)
    rows, times = np.unique(features, axis=0, return_counts=True)
    drawn = rng.multinomial(len(features), times / len(features), size=N_BOOTSTRAP)
    values = statistic(drawn @ rows)
    if np.isnan(values).mean() > _MOST_UNDEFINED:
        return Estimate(value)
    low, high = np.nanpercentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Estimate(value, Interval(low=float(low), high=float(high), level=LEVEL))


def _kappa(cells: Array) -> Array:
    """Return Cohen's kappa of tables, (..., Q x Q); NaN where both say one and the same only."""
    table, observed = _observed(cells)
    expected = (table.sum(axis=-1) * table.sum(axis=-2)).sum(axis=-1)
    return _corrected(observed, expected)


def _ac1(cells: Array) -> Array:
    """Return Gwet's AC1 of tables, (..., Q x Q)."""
    table, observed = _observed(cells)
    prevalence = (table.sum(axis=-1) + table.sum(axis=-2)) / 2
    expected = (prevalence * (1 - prevalence)).sum(axis=-1) / (table.shape[-1] - 1)
    return _corrected(observed, expected)


def _alpha(sums: Array) -> Array:
    """Return alpha of (..., Q + 1) sums: ratings by category, then disagreeing pairs."""
    counts, disagreeing = sums[..., :-1], sums[..., -1]
    n = counts.sum(axis=-1)
    possible = (n**2 - (counts**2).sum(axis=-1)) / (n - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(possible > 0, 1 - disagreeing / possible, np.nan))


def _observed(cells: Array) -> tuple[Array, Array]:
    q = round(cells.shape[-1] ** 0.5)
    table = cells.reshape(*cells.shape[:-1], q, q) / cells.sum(axis=-1)[..., None, None]
    return table, np.trace(table, axis1=-2, axis2=-1)


def _corrected(observed: Array, expected: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        room = 1 - expected
        return np.asarray(np.where(room > 1e-12, (observed - expected) / room, np.nan))


def _code(decision: Decision, three: bool) -> int:
    return THREE.index(decision) if three else int(decision != "keep")
