"""One-sided tests that a model's gap lies below 0, or below the gaps of clean models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from flipbench.core.records import Interval

from .resampling import LEVEL, Array, by_cluster, exact_label_swap_p


@dataclass(frozen=True)
class MeanDifference:
    """A model's gap minus the mean gap of R >= 2 reference models.

    Attributes
    ----------
    difference, spread : float
        Fractions; ``spread`` is the standard deviation between references that sampling of items
        does not explain.
    interval : Interval
        Two-sided.
    p_below : float
        One-sided p-value against "not below the references".
    df : float
        Degrees of freedom: R - 1 where references differ, else the number of clusters - 1.
    n : int
        Pairs that the model and all references answered.
    """

    difference: float
    spread: float
    interval: Interval
    p_below: float
    df: float
    n: int


def drop_p(changes: Array, clusters: Sequence[str], references: Sequence[Array] = ()) -> float:
    """Return the p-value against "the gap does not lie below 0, or below the references' gaps".

    Without references and with a single one the test is exact: labels (original and perturbed, or
    model and reference) are swapped, cluster by cluster; without shared clusters and references it
    is McNemar's test. Several references are averaged; see `mean_difference`.

    Parameters
    ----------
    changes : float array, shape (N,)
        Right on the perturbed version - right on the original; NaN where a pair says nothing.
    clusters : sequence of str, shape (N,)
    references : sequence of float arrays, shape (R, N)

    Examples
    --------
    >>> round(drop_p(np.array([-1, -1, -1, 1.0]), list("abcd")), 4)
    0.3125
    """
    if len(references) > 1:
        result = mean_difference(changes, references, clusters)
        return result.p_below if result else 1.0
    difference = changes - references[0] if references else changes
    totals, _ = by_cluster(*_complete(difference, clusters))
    return exact_label_swap_p(np.rint(totals))


def mean_difference(
    changes: Array,
    references: Sequence[Array],
    clusters: Sequence[str],
    level: float = LEVEL,
) -> MeanDifference | None:
    """Compare a model's gap with the mean of several references' gaps; None below three clusters.

    The variance has two parts: that of the mean over items (clusters) of the model's change minus
    the references' mean change, and ``spread² (1 + 1/R)``, since the model is one more draw from
    the models whose gaps differ. One value of +1 and one of -1 are added, as in
    `flipbench.evaluate.statistics.intervals.difference_interval`.

    Parameters are those of `drop_p`.

    References
    ----------
    A random-effects meta-analysis with the method of moments (DerSimonian and Laird, Controlled
    Clinical Trials 7 (1986), 177-188) for the spread, here between models on the same items.
    """
    stacked = np.array(references)
    differences, kept_clusters = _complete(changes - stacked.mean(axis=0), clusters)
    is_answered = ~np.isnan(changes - stacked.mean(axis=0))
    stacked = stacked[:, is_answered]
    n, n_references = len(differences), len(stacked)
    if len(set(kept_clusters)) < 3:
        return None
    padded = np.append(differences, [1.0, -1.0]), [*kept_clusters, "\0+", "\0-"]
    mean, items_variance, n_clusters = _mean_and_variance(*padded)
    sampling = np.mean(
        [
            _mean_and_variance(a - b, kept_clusters)[1] / 2
            for a, b in itertools.combinations(stacked, 2)
        ]
    )
    between = max(0.0, float(stacked.mean(axis=1).var(ddof=1) - sampling))
    variance = items_variance + between * (1 + 1 / n_references)
    df = float(n_references - 1 if between > 0 else n_clusters - 1)
    error = math.sqrt(variance)
    half = float(stats.t.ppf(0.5 + level / 2, df)) * error
    difference = float(differences.mean())
    interval = Interval(low=max(-2.0, mean - half), high=min(2.0, mean + half), level=level)
    p_below = float(stats.t.cdf(mean / error, df))
    return MeanDifference(difference, math.sqrt(between), interval, p_below, df, n)


def scaled_drop_p(
    model: Array, references: Sequence[Array], clusters: Sequence[str], chances: Array
) -> tuple[float, float]:
    """Return the p-values of "not below the references" in proportion and in odds.

    Compared are perturbed over original accuracy beyond guessing, and the odds ratios, of the model
    and of the references on average, with the delta method's variance over clusters. Failed edits
    cost all models the same proportion; versions that are harder in the sense of a Rasch model,
    about the same odds.

    Parameters
    ----------
    model : float array, shape (2, N)
        Right answers to originals and to perturbed versions; NaN where missing.
    references : sequence of float arrays, shapes (2, N)
    chances : float array, shape (N,)
        Accuracy of guessing; 0 if not known.
    """
    is_complete = np.asarray(~np.isnan([model, *references]).any(axis=(0, 1)))
    names = list(itertools.compress(clusters, is_complete.tolist()))
    if len(set(names)) < 3:
        return 1.0, 1.0
    own_outcomes, reference_outcomes = (
        model[:, is_complete],
        np.mean([reference[:, is_complete] for reference in references], axis=0),
    )
    p_values = []
    for scale in (_cross_product, _log_odds):
        value, influence = scale(own_outcomes, reference_outcomes, chances[is_complete])
        _, variance, n = _mean_and_variance(influence, names)
        p_values.append(float(stats.t.cdf(value / math.sqrt(variance), n - 1)) if variance else 1.0)
    return p_values[0], p_values[1]


def _cross_product(model: Array, reference: Array, chances: Array) -> tuple[float, Array]:
    """Return a value below 0 if the model loses a greater part of its accuracy beyond guessing.

    Fieller's form of a difference of ratios, which needs no accuracy above 0.
    """
    model, reference = ((outcomes - chances) / (1 - chances) for outcomes in (model, reference))
    (original, perturbed), (reference_original, reference_perturbed) = (
        model.mean(axis=1),
        reference.mean(axis=1),
    )
    influence = (
        reference_original * (model[1] - perturbed)
        + perturbed * (reference[0] - reference_original)
        - original * (reference[1] - reference_perturbed)
        - reference_perturbed * (model[0] - original)
    )
    return float(perturbed * reference_original - reference_perturbed * original), influence


def _log_odds(model: Array, reference: Array, _: Array) -> tuple[float, Array]:
    """Return the model's log odds ratio of right answers minus the reference's."""
    value, influence = 0.0, np.zeros(model.shape[1])
    for sign, outcomes in ((1, model), (-1, reference)):
        shares = (outcomes.sum(axis=1) + 0.5) / (outcomes.shape[1] + 1)
        odds = np.log(shares / (1 - shares))
        original, perturbed = (outcomes - shares[:, None]) / (shares * (1 - shares))[:, None]
        value, influence = (
            value + sign * float(odds[1] - odds[0]),
            influence + sign * (perturbed - original),
        )
    return value, influence


def _complete(changes: Array, clusters: Sequence[str]) -> tuple[Array, list[str]]:
    is_complete = ~np.isnan(changes)
    return changes[is_complete], list(itertools.compress(clusters, is_complete.tolist()))


def _mean_and_variance(values: Array, clusters: Sequence[str]) -> tuple[float, float, int]:
    """Return the mean, the variance of the mean over clusters, and the number of clusters."""
    totals, sizes = by_cluster(values, clusters)
    n, n_clusters = float(sizes.sum()), len(totals)
    mean = float(totals.sum()) / n
    between = float(((totals - sizes * mean) ** 2).sum()) * n_clusters / (n_clusters - 1)
    return mean, between / n**2, n_clusters
