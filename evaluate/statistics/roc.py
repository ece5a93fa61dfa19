"""How well a number tells two groups of models apart: ROC curve, AUROC, TPR at a given FPR.

Everywhere "larger" means more suspicious, P positives are contaminated models and N negatives are
clean ones. Models of one cluster (a clean model and all that was trained from it) are not
independent: intervals draw, or count, whole clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from flipbench.core.rates import MIN_CLUSTERS, Rate, wilson_interval
from flipbench.core.records import Interval

from .resampling import LEVEL, N_BOOTSTRAP

Array = NDArray[np.float64]


@dataclass(frozen=True)
class OperatingPoint:
    """What is detected at a false-positive rate of at most ``target``.

    Attributes
    ----------
    estimable : bool
        Whether one clean model is no more than ``target`` of all: with n clean models the
        smallest rate above 0 is 1/n.
    alarms : int
        Clean models above the threshold; its best place is between two of them, so this is the
        most that ``target`` allows, ties aside.
    detected : Rate
        Contaminated models above the threshold.
    """

    target: float
    estimable: bool
    alarms: int
    n_clean: int
    detected: Rate


@dataclass(frozen=True)
class Separation:
    """How well a statistic separates P contaminated from N clean models.

    Attributes
    ----------
    fpr, tpr : tuple of float, shape (n_thresholds + 1,)
        The ROC curve, from (0, 0) to (1, 1).
    auroc : float
        Probability that a contaminated model is the more suspicious of two; ties count half.
    method : {"cluster bootstrap", "Newcombe"}
        Where the interval of ``auroc`` comes from.
    """

    fpr: tuple[float, ...]
    tpr: tuple[float, ...]
    auroc: float
    interval: Interval
    method: str
    n_clean: int
    n_contaminated: int
    n_clusters: int
    points: tuple[OperatingPoint, ...]


def separation(
    suspicion: Sequence[float],
    contaminated: Sequence[bool],
    clusters: Sequence[str],
    rng: np.random.Generator,
    *,
    targets: Sequence[float] = (0.0, 0.01, 0.05),
    n_bootstrap: int = N_BOOTSTRAP,
) -> Separation | None:
    """Compare contaminated with clean models; None where one of the two is missing.

    Parameters
    ----------
    suspicion : sequence of float, shape (M,)
        Larger is more suspicious. Must be finite or infinite, not NaN.
    contaminated : sequence of bool, shape (M,)
    clusters : sequence of str, shape (M,)
    targets : sequence of float
        False-positive rates, fractions.

    Notes
    -----
    With `MIN_CLUSTERS` clusters or more, intervals are percentiles of a bootstrap that draws
    whole clusters; draws without clean or without contaminated models are left out. With fewer, or
    where all draws agree (perfect separation), Newcombe's interval for the AUROC and Wilson's for
    a TPR take the number of clusters for the number of models, which errs on the wide side.
    For normal values with a true AUROC of 0.5 to 0.98, Newcombe's held the truth in 92 to 100 % of
    600 simulations (2 to 9 clusters), the bootstrap in 90 to 94 % (12) and 87 to 94 % (30).

    References
    ----------
    Newcombe, Statistics in Medicine 25 (2006) 559, method 5. Differs in the sample sizes, which
    are clusters.
    """
    values, positive = np.asarray(suspicion, dtype=float), np.asarray(contaminated, dtype=bool)
    if np.isnan(values).any():
        raise ValueError("a suspicion is NaN: leave out models without a statistic")
    if not positive.any() or positive.all():
        return None
    groups = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)[1]
    n_clusters = int(groups.max()) + 1
    once = np.ones((1, len(values)))
    auroc = float(_aurocs(values, positive, once)[0])
    n_clean, n_contaminated = int((~positive).sum()), int(positive.sum())
    draws = np.empty((0, len(values)))
    if n_clusters >= MIN_CLUSTERS:
        shares = np.full(n_clusters, 1 / n_clusters)
        draws = rng.multinomial(n_clusters, shares, n_bootstrap)[:, groups].astype(float)
        draws = draws[draws[:, positive].any(axis=1) & draws[:, ~positive].any(axis=1)]
    drawn = _percentiles(_aurocs(values, positive, draws))
    dirty_groups, clean_groups = (len(set(groups[side])) for side in (positive, ~positive))
    points = []
    for target in targets:
        hit = _tprs(values, positive, once, target)
        between = _percentiles(_tprs(values, positive, draws, target))
        k = round(float(hit[0][0]) * n_contaminated)
        between = between or wilson_interval(k / n_contaminated * dirty_groups, dirty_groups)
        points.append(
            OperatingPoint(
                target=target,
                estimable=target == 0 or n_clean * target >= 1 - 1e-9,
                alarms=round(float(hit[1][0]) * n_clean),
                n_clean=n_clean,
                detected=Rate(k=k, n=n_contaminated, interval=between),
            )
        )
    fpr, tpr = _curve(values, positive)
    return Separation(
        fpr=fpr,
        tpr=tpr,
        auroc=auroc,
        interval=drawn or newcombe_interval(auroc, dirty_groups, clean_groups),
        method="cluster bootstrap" if drawn else "Newcombe",
        n_clean=n_clean,
        n_contaminated=n_contaminated,
        n_clusters=n_clusters,
        points=tuple(points),
    )


def newcombe_interval(auroc: float, n_positive: int, n_negative: int) -> Interval:
    """Return Newcombe's interval of an AUROC, which is not a point at 0 and 1 either.

    >>> interval = newcombe_interval(1.0, 2, 2)
    >>> 0.3 < interval.low < 0.4, interval.high
    (True, 1.0)
    """
    z, spare = float(stats.norm.ppf(0.5 + LEVEL / 2)), (n_positive + n_negative) / 2 - 1

    def beyond(truth: float) -> float:
        spread = 1 + spare * ((1 - truth) / (2 - truth) + truth / (1 + truth))
        variance = truth * (1 - truth) * spread / (n_positive * n_negative)
        return (auroc - truth) ** 2 - z**2 * variance

    low = 0.0 if auroc == 0 else optimize.brentq(beyond, 0.0, auroc - 1e-12 * auroc)
    high = 1.0 if auroc == 1 else optimize.brentq(beyond, auroc + 1e-12 * (1 - auroc), 1.0)
    return Interval(low=float(low), high=float(high))


def _aurocs(values: Array, positive: NDArray[np.bool_], weights: Array) -> Array:
    """Return the AUROC under each row of ``weights``, shape (B, M)."""
    dirty, clean = weights[:, positive], weights[:, ~positive]
    one, other = values[positive][:, None], values[~positive][None, :]
    above = (one > other) + (one == other) / 2
    total = dirty.sum(axis=1) * clean.sum(axis=1)
    return np.asarray(((dirty @ above) * clean).sum(axis=1) / total)


def _tprs(
    values: Array, positive: NDArray[np.bool_], weights: Array, target: float
) -> tuple[Array, Array]:
    """Return (TPR, FPR) under each row of ``weights`` at the lowest threshold that is allowed.

    The threshold is the value of a clean model, and only what lies above it is detected.
    """
    order = np.argsort(-values[~positive], kind="stable")
    clean, clean_weights = values[~positive][order], weights[:, ~positive][:, order]
    total = clean_weights.sum(axis=1, keepdims=True)
    too_many = clean_weights.cumsum(axis=1) > np.floor(target * total + 1e-9)
    threshold = np.where(too_many.any(axis=1), clean[too_many.argmax(axis=1)], -np.inf)[:, None]
    dirty = weights[:, positive]
    tpr = (dirty * (values[positive] > threshold)).sum(axis=1) / dirty.sum(axis=1)
    return tpr, (clean_weights * (clean > threshold)).sum(axis=1) / total[:, 0]


def _curve(
    values: Array, positive: NDArray[np.bool_]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    thresholds = np.unique(values)[::-1]
    fpr, tpr = (
        (0.0, *(float((values[side] >= t).mean()) for t in thresholds))
        for side in (~positive, positive)
    )
    return fpr, tpr


def _percentiles(draws: Array | tuple[Array, Array]) -> Interval | None:
    found = draws[0] if isinstance(draws, tuple) else draws
    if not len(found) or found.min() == found.max():
        return None
    low, high = np.quantile(found, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return Interval(low=float(low), high=float(high))
