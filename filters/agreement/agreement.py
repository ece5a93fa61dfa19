"""Agreement of raters: counts, chance-corrected statistics, precision and recall.

Of decisions on edited images, "unsure" counts as "not kept", as in a policy; other labels may be
given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

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
_MAX_UNDEFINED = 0.05


@dataclass(frozen=True)
class Estimate:
    """A statistic and its percentile bootstrap interval; None if undefined."""

    value: float | None
    interval: Interval | None = None


@dataclass(frozen=True)
class Agreement:
    """Two raters on the same images.

    Attributes
    ----------
    counts : tuple of tuple of int, shape (Q, Q)
        Rows: ``first``, columns: ``second``, in the order of the labels; of decisions, ``KEPT``.
    kappa, ac1 : Estimate
        Cohen's kappa and Gwet's AC1. Skewed prevalence lowers kappa but hardly affects AC1. Kappa
        is undefined if both raters give only one and the same label.
    n_one_only : int
        Images rated by only one of the two; excluded from all other numbers.
    """

    first: str
    second: str
    counts: tuple[tuple[int, ...], ...]
    kappa: Estimate
    ac1: Estimate
    n_one_only: int = 0

    @property
    def n(self) -> int:
        """Number of images rated by both."""
        return sum(map(sum, self.counts))

    @property
    def raw(self) -> Rate:
        """Share of images on which the two agree."""
        return Rate.wilson(sum(row[i] for i, row in enumerate(self.counts)), self.n)

    @property
    def precision(self) -> Rate:
        """Share of the first rater's keeps that the second keeps, too."""
        return Rate.wilson(self.counts[0][0], sum(self.counts[0]))

    @property
    def recall(self) -> Rate:
        """Share of the second rater's keeps that the first keeps, too."""
        return Rate.wilson(self.counts[0][0], self.counts[0][0] + self.counts[1][0])

    @property
    def rejection_precision(self) -> Rate:
        """Share of what the first does not keep that the second does not keep either."""
        return Rate.wilson(self.counts[1][1], sum(self.counts[1]))

    @property
    def rejection_recall(self) -> Rate:
        """Share of what the second does not keep that the first does not keep either."""
        return Rate.wilson(self.counts[1][1], self.counts[0][1] + self.counts[1][1])


def agreement(
    first: str,
    second: str,
    ratings: Mapping[str, Mapping[str, str]],
    *,
    labels: Sequence[str] | None = None,
    clusters: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Agreement:
    """Compare two raters on the images rated by both.

    Parameters
    ----------
    ratings : mapping of str to mapping
        Decision or label by id, for each rater. ``second`` is the reference.
    labels : sequence of str, optional
        All possible ratings; by default they are decisions, kept or not.
    clusters : mapping of str to str, optional
        Cluster of each id (its original image); the bootstrap resamples whole clusters.

    References
    ----------
    Cohen, *A Coefficient of Agreement for Nominal Scales*, 1960; Gwet, *Computing Inter-Rater
    Reliability and Its Variance in the Presence of High Agreement*, 2008. Intervals: percentile
    bootstrap over images, 2,000 seeded resamples; those in which a statistic is undefined are
    dropped, and if they exceed 5 % there is no interval.
    """
    a, b = ratings[first], ratings[second]
    shared = sorted(set(a) & set(b))
    code, n_labels = _coding(labels)
    cells = np.zeros((len(shared), n_labels**2))  # a 1 where both ratings meet
    cells[np.arange(len(shared)), [n_labels * code(a[i]) + code(b[i]) for i in shared]] = 1
    groups = None if clusters is None else [clusters[i] for i in shared]
    purpose = "kappa" if labels is None else "label kappa"
    kappa, ac1 = (
        _estimate(cells, statistic, generator(seed, f"{first} {second}", purpose), groups)
        for statistic in (_kappa, _ac1)
    )
    table = cells.sum(axis=0).astype(int).reshape(n_labels, n_labels).tolist()
    return Agreement(first, second, tuple(map(tuple, table)), kappa, ac1, len(set(a) ^ set(b)))


def krippendorff_alpha(
    ratings: Mapping[str, Mapping[str, str]],
    *,
    labels: Sequence[str] | None = None,
    clusters: Mapping[str, str] | None = None,
    seed: int = 0,
) -> tuple[Estimate, int]:
    """Return the nominal alpha of two or more raters, and the number of images it is based on.

    Ratings may be missing; images with fewer than two are excluded. ``labels`` are all possible
    ratings; by default they are decisions, kept or not.

    References
    ----------
    Krippendorff, *Content Analysis*, 2004, chapter 11, nominal data with missing values. The
    interval is computed as for kappa, not by Krippendorff's own bootstrap.
    """
    ids = sorted({i for decisions in ratings.values() for i in decisions})
    code, n_labels = _coding(labels)
    counts = np.zeros((len(ids), n_labels))
    for row, i in enumerate(ids):
        for decisions in ratings.values():
            if i in decisions:
                counts[row, code(decisions[i])] += 1
    is_rated = counts.sum(axis=1) >= 2
    counts, ids = counts[is_rated], list(compress(ids, is_rated))
    n_raters = counts.sum(axis=1)
    pairs = (n_raters**2 - (counts**2).sum(axis=1)) / np.maximum(n_raters - 1, 1)
    groups = None if clusters is None else [clusters[i] for i in ids]
    features = np.column_stack([counts, pairs])
    rng = generator(seed, " ".join(sorted(ratings)), "alpha")
    return _estimate(features, _alpha, rng, groups), len(ids)


def _estimate(
    features: Array,
    statistic: Callable[[Array], Array],
    rng: np.random.Generator,
    clusters: Sequence[str] | None,
) -> Estimate:
    """Return a statistic of the images' summed features, (N, F), and its bootstrap interval.

    Resamples images (or clusters) by a multinomial over the distinct feature rows: the same
    distribution as drawing images one by one, at a fraction of the cost.
    """
    if not len(features):
        return Estimate(None)
    value = float(statistic(features.sum(axis=0)))
    if np.isnan(value):
        return Estimate(None)
    if clusters is not None:
        _, index = np.unique(np.asarray(clusters), return_inverse=True)
        by_cluster = np.zeros((index.max() + 1, features.shape[1]))
        np.add.at(by_cluster, index, features)
        features = by_cluster
    if len(features) < 2:
        return Estimate(value)
    rows, counts = np.unique(features, axis=0, return_counts=True)
    resampled = rng.multinomial(len(features), counts / len(features), size=N_BOOTSTRAP)
    values = statistic(resampled @ rows)
    if np.isnan(values).mean() > _MAX_UNDEFINED:
        return Estimate(value)
    low, high = np.nanpercentile(values, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Estimate(value, Interval(low=float(low), high=float(high), level=LEVEL))


def _kappa(cells: Array) -> Array:
    """Return Cohen's kappa of tables, (..., Q x Q); NaN if both give the same single rating."""
    table, observed = _observed(cells)
    chance = (table.sum(axis=-1) * table.sum(axis=-2)).sum(axis=-1)
    return _corrected(observed, chance)


def _ac1(cells: Array) -> Array:
    """Return Gwet's AC1 of tables, (..., Q x Q)."""
    table, observed = _observed(cells)
    prevalence = (table.sum(axis=-1) + table.sum(axis=-2)) / 2
    chance = (prevalence * (1 - prevalence)).sum(axis=-1) / (table.shape[-1] - 1)
    return _corrected(observed, chance)


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


def _corrected(observed: Array, chance: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        room = 1 - chance
        return np.asarray(np.where(room > 1e-12, (observed - chance) / room, np.nan))


def _coding(labels: Sequence[str] | None) -> tuple[Callable[[str], int], int]:
    """Return the function from labels to numbers, and how many there are."""
    if labels is None:
        return (lambda decision: int(decision != "keep")), len(KEPT)
    return list(labels).index, len(labels)
