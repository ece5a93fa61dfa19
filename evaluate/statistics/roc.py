"""How well a statistic separates two groups of models: ROC curve, AUROC, TPR at a given FPR.

Larger means more suspicious; the P positives are contaminated models, the N negatives clean ones.
Models of one cluster (a clean model and everything trained from it) are not independent. Intervals
therefore come twice: pooled, as if they were, and with the design effect that they show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from flipbench.core.records import Interval

from .design_effect import (
    MIN_CLUSTERS,
    ClusteredRate,
    clustered_rate,
    correlation_of_values,
    kish_design_effect,
    student_factor,
)
from .resampling import LEVEL, Array


@dataclass(frozen=True)
class OperatingPoint:
    """The detection rate at a false-positive rate of at most ``target``.

    Attributes
    ----------
    estimable : bool
        Whether there are enough clean models: with n of them the smallest rate above 0 is 1/n.
    alarms : int
        Clean models above the threshold: as many as ``target`` allows, except for ties.
    detected : Rate
        Contaminated models above the threshold.
    """

    target: float
    estimable: bool
    alarms: int
    n_clean: int
    detected: ClusteredRate


@dataclass(frozen=True)
class WithinClusters:
    """The AUROC over pairs of a contaminated and a clean model of the same cluster.

    ``wins`` of the ``n_pairs`` have the contaminated model as the more suspicious; ties count half.
    """

    auroc: float
    interval: Interval
    wins: float
    n_pairs: int


@dataclass(frozen=True)
class Separation:
    """How well a statistic separates P contaminated from N clean models.

    Attributes
    ----------
    fpr, tpr : tuple of float, shape (n_thresholds + 1,)
        The ROC curve, from (0, 0) to (1, 1).
    auroc : float
        Probability that a contaminated model is more suspicious than a clean one; ties count half.
    interval, pooled : Interval
        Intervals of ``auroc`` with the design effect, and as if all models were independent.
    within : WithinClusters or None
        None if no cluster has both kinds of models.
    design_effect : float
        How many contaminated models of these clusters are worth one independent model; below 1
        where clusters shift both kinds of models alike.
    """

    fpr: tuple[float, ...]
    tpr: tuple[float, ...]
    auroc: float
    interval: Interval
    pooled: Interval
    within: WithinClusters | None
    design_effect: float
    n_clean: int
    n_contaminated: int
    n_clusters: int
    points: tuple[OperatingPoint, ...]


def separation(
    suspicion: Sequence[float],
    contaminated: Sequence[bool],
    clusters: Sequence[str],
    *,
    targets: Sequence[float] = (0.0, 0.01, 0.05),
) -> Separation | None:
    """Compare contaminated with clean models; None if there are none of either.

    Parameters
    ----------
    suspicion : sequence of float, shape (M,)
        Larger is more suspicious; may be infinite, not NaN.
    contaminated : sequence of bool, shape (M,)
    clusters : sequence of str, shape (M,)
    targets : sequence of float
        False-positive rates, fractions.

    Notes
    -----
    ``benchmarks/statistics/lineage_coverage.py`` simulates how often the intervals hold the true
    value.

    References
    ----------
    Newcombe, Statistics in Medicine 25 (2006) 559, method 5. Differs in the sample sizes, which
    are divided by the design effect: from 8 clusters on `variance_ratio`, else that of the
    correlation within clusters.
    """
    values, positive = np.asarray(suspicion, dtype=float), np.asarray(contaminated, dtype=bool)
    if np.isnan(values).any():
        raise ValueError("a suspicion is NaN: leave out models without a statistic")
    if not positive.any() or positive.all():
        return None
    groups = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)[1]
    order = np.lexsort((values, positive, groups))  # the same sums, however the models come
    values, positive, groups = values[order], positive[order], groups[order]
    auroc = area_under_curve(values, positive)
    n_clean, n_contaminated = int((~positive).sum()), int(positive.sum())
    if groups.max() + 1 >= MIN_CLUSTERS:
        effects = [variance_ratio(values, positive, groups)] * 2
    else:
        correlation = correlation_of_values(values, positive, groups)
        effects = [
            kish_design_effect(np.unique(groups[side], return_counts=True)[1].tolist(), correlation)
            for side in (positive, ~positive)
        ]
    points = []
    for target in targets:
        threshold = _threshold(values[~positive], target)
        counts = [
            (int((values[of] > threshold).sum()), int(of.sum()))
            for of in (positive & (groups == group) for group in np.unique(groups[positive]))
        ]
        points.append(
            OperatingPoint(
                target=target,
                estimable=target == 0 or n_clean * target >= 1 - 1e-9,
                alarms=int((values[~positive] > threshold).sum()),
                n_clean=n_clean,
                detected=clustered_rate(counts),
            )
        )
    fpr, tpr = _curve(values, positive)
    return Separation(
        fpr=fpr,
        tpr=tpr,
        auroc=auroc,
        interval=newcombe_interval(auroc, [(n_contaminated / effects[0], n_clean / effects[1])]),
        pooled=newcombe_interval(auroc, [(n_contaminated, n_clean)]),
        within=_within(values, positive, groups),
        design_effect=effects[0],
        n_clean=n_clean,
        n_contaminated=n_contaminated,
        n_clusters=int(groups.max()) + 1,
        points=tuple(points),
    )


def variance_ratio(values: Array, positive: NDArray[np.bool_], groups: NDArray[np.int64]) -> float:
    """Return the variance of an AUROC over clusters, divided by that over independent models.

    A cluster's contaminated and clean models are taken together, so that what shifts both alike
    does not widen the interval. At least 1/2, and 1 if the AUROC is 0 or 1; multiplied by the
    square of Student's quantile over the normal's, for the number of clusters. 1 if no cluster has
    two models.

    Parameters
    ----------
    values, positive, groups : ndarray, shape (M,)
        Groups are numbered from 0.

    References
    ----------
    Obuchowski, Biometrics 53 (1997) 567, over DeLong et al., Biometrics 44 (1988) 837.
    """
    n_groups = int(groups.max()) + 1
    if n_groups == len(values):
        return 1.0
    contaminated, clean = values[positive][:, None], values[~positive][None, :]
    wins = (contaminated > clean) + (contaminated == clean) / 2
    sides = [
        (wins.mean(axis=axis) - wins.mean(), groups[side])
        for axis, side in ((1, positive), (0, ~positive))
    ]
    independent = sum((part**2).sum() / len(part) / max(len(part) - 1, 1) for part, _ in sides)
    totals = np.sum(
        [np.bincount(group, part, n_groups) / len(part) for part, group in sides], axis=0
    )
    clustered = (totals**2).sum() * n_groups / (n_groups - 1)
    ratio = clustered / independent if independent > 0 else 1.0
    return float(max(ratio, 0.5) * student_factor(n_groups))


def newcombe_interval(auroc: float, sizes: Sequence[tuple[float, float]]) -> Interval:
    """Return Newcombe's interval of an AUROC, which has a positive width even at 0 and 1.

    Parameters
    ----------
    sizes : sequence of (float, float)
        Positives and negatives; several, if the AUROC is over the pairs within several strata.

    Examples
    --------
    >>> interval = newcombe_interval(1.0, [(2, 2)])
    >>> 0.3 < interval.low < 0.4, interval.high
    (True, 1.0)
    """
    z, total = float(scipy.stats.norm.ppf(0.5 + LEVEL / 2)), sum(p * n for p, n in sizes)

    def beyond(truth: float) -> float:
        spread = (1 - truth) / (2 - truth) + truth / (1 + truth)
        weighted = sum(p * n * (1 + ((p + n) / 2 - 1) * spread) for p, n in sizes)
        return (auroc - truth) ** 2 - z**2 * truth * (1 - truth) * weighted / total**2

    low = 0.0 if auroc == 0 else scipy.optimize.brentq(beyond, 0.0, auroc - 1e-12 * auroc)
    high = 1.0 if auroc == 1 else scipy.optimize.brentq(beyond, auroc + 1e-12 * (1 - auroc), 1.0)
    return Interval(low=float(low), high=float(high))


def _within(
    values: Array, positive: NDArray[np.bool_], groups: NDArray[np.int64]
) -> WithinClusters | None:
    """Compare contaminated with clean models of the same cluster."""
    wins, sizes = 0.0, []
    for group in np.unique(groups):
        of = groups == group
        if 0 < positive[of].sum() < of.sum():
            wins += _wins(values[of], positive[of])
            sizes.append((int(positive[of].sum()), int((~positive[of]).sum())))
    n_pairs = sum(p * n for p, n in sizes)
    if not n_pairs:
        return None
    return WithinClusters(wins / n_pairs, newcombe_interval(wins / n_pairs, sizes), wins, n_pairs)


def area_under_curve(values: Array, positive: NDArray[np.bool_]) -> float:
    """Return the probability that a positive has the larger value; ties count half.

    Both kinds must occur; ``values`` and ``positive`` have shape (N,).

    >>> values = -np.array([0.05, 0.10, 0.20, 0.15, 1.0])
    >>> round(area_under_curve(values, np.array([True, True, True, False, False])), 4)
    0.8333
    """
    return _wins(values, positive) / int(positive.sum()) / int((~positive).sum())


def _wins(values: Array, positive: NDArray[np.bool_]) -> float:
    """Return how many pairs have the positive on top; ties count half."""
    contaminated, clean = values[positive][:, None], values[~positive][None, :]
    return float(((contaminated > clean) + (contaminated == clean) / 2).sum())


def _threshold(clean: Array, target: float) -> float:
    """Return the lowest threshold that at most a share ``target`` of clean models exceeds.

    It is the value of a clean model; only values strictly above it are detected.
    """
    at = int(np.floor(target * len(clean) + 1e-9))
    return float(np.sort(clean)[::-1][at]) if at < len(clean) else -np.inf


def _curve(
    values: Array, positive: NDArray[np.bool_]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    thresholds = np.unique(values)[::-1]
    fpr, tpr = (
        (0.0, *(float((values[side] >= t).mean()) for t in thresholds))
        for side in (~positive, positive)
    )
    return fpr, tpr
