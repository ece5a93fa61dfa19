"""Right letters that differ between two versions, and gaps with equal letters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from .resampling import Array, by_cluster, permutation_p

Integers = NDArray[np.int64]
N_DRAWS = 999


@dataclass(frozen=True)
class LetterPairs:
    """The right options of N pairs, arrays of shape (N,).

    Attributes
    ----------
    old, new, n_options : int array
        Of the original, of the perturbed version, and how many there are.
    """

    old: Integers
    new: Integers
    n_options: Integers

    @property
    def old_cells(self) -> Integers:
        """Number of options and right letter of the original, as one number."""
        return self.n_options * 100 + self.old

    @property
    def new_cells(self) -> Integers:
        """The same of the perturbed version."""
        return self.n_options * 100 + self.new

    def margins_p(self, rng: np.random.Generator) -> float:
        """Return the p-value of "the same letters are right as often in both versions".

        The statistic is the sum of squared differences of counts over letters, within each number
        of options; old and new letter of a pair are swapped at random.
        """
        cells, index = np.unique([self.old_cells, self.new_cells], return_inverse=True)
        old_index, new_index = index.reshape(2, -1)
        change = np.zeros((len(old_index), len(cells)))
        rows = np.arange(len(old_index))
        change[rows, old_index] -= 1
        change[rows, new_index] += 1
        signs = rng.choice([-1.0, 1.0], (N_DRAWS, len(old_index)))
        null = ((signs @ change) ** 2).sum(axis=1)
        return permutation_p(float((change.sum(axis=0) ** 2).sum()), null)

    def standardized(self, original: Array, perturbed: Array) -> tuple[float, Array]:
        """Return a model's gap if each letter were right as often in both versions.

        Accuracies by letter are weighted with the mean of the two versions' shares (direct
        standardisation), so that a preference for a letter has no part in it. Letters that are
        never right on one side are left out.

        Parameters
        ----------
        original, perturbed : float arrays, shape (N,)
            Right answers to original and perturbed version.

        Returns
        -------
        float
            The gap, a fraction.
        float array, shape (N,)
            What each pair contributes to its error: the gap's linearisation around 0.
        """
        n = len(original)
        gap, total, influence = 0.0, 0.0, np.zeros(n)
        for cell in np.unique(self.old_cells):
            is_old, is_new = self.old_cells == cell, self.new_cells == cell
            if not is_new.any():
                continue
            weight = (is_old.sum() + is_new.sum()) / (2 * n)
            a, b = float(original[is_old].mean()), float(perturbed[is_new].mean())
            gap, total = gap + weight * (b - a), total + weight
            influence[is_new] += weight * n / is_new.sum() * (perturbed[is_new] - b)
            influence[is_old] -= weight * n / is_old.sum() * (original[is_old] - a)
        return (gap / total, influence / total) if total else (math.nan, influence)


def standardized_drop_p(
    letters: LetterPairs,
    model: tuple[Array, Array],
    clusters: Sequence[str],
    references: Sequence[tuple[Array, Array]] = (),
) -> float:
    """Return the one-sided p-value of a gap below 0, or below references' gaps, at equal letters.

    Student's t with the variance between clusters; with several references, of the difference from
    their mean, plus the spread between them as in `flipbench.evaluate.statistics.gap_tests`.

    Parameters
    ----------
    model : (float array, float array), shapes (N,)
        Right answers to originals and to perturbed versions, without missing ones.
    references : sequence of the same
    """
    gap, influence = letters.standardized(*model)
    degrees = len(set(clusters)) - 1
    spread = 0.0
    if references:
        reference_results = [letters.standardized(*reference) for reference in references]
        gap -= float(np.mean([reference_gap for reference_gap, _ in reference_results]))
        influence = influence - np.mean([part for _, part in reference_results], axis=0)
        if (n := len(reference_results)) > 1:
            gaps = np.array([reference_gap for reference_gap, _ in reference_results])
            sampling = np.mean(
                [
                    _variance(a - b, clusters) / 2
                    for i, (_, a) in enumerate(reference_results)
                    for _, b in reference_results[:i]
                ]
            )
            spread = max(0.0, float(gaps.var(ddof=1) - sampling)) * (1 + 1 / n)
            degrees = n - 1 if spread > 0 else degrees
    variance = _variance(influence, clusters) + spread
    if degrees < 1 or not variance > 0:
        return 1.0 if not gap < 0 else 0.5
    return float(stats.t.cdf(gap / math.sqrt(variance), degrees))


def _variance(influence: Array, clusters: Sequence[str]) -> float:
    """Return the variance of a mean from its linearisation, over clusters."""
    totals, _ = by_cluster(influence, clusters)
    n = len(totals)
    return float((totals**2).sum()) * n / max(1, n - 1) / len(influence) ** 2
