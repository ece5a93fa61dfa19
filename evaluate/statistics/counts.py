"""Tests of counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def poisson_binomial_p(count: int, probabilities: Sequence[float]) -> float:
    """Return P(X >= count) for a sum X of independent events of these probabilities, exactly.

    Without events, the p-value is 1.

    >>> round(poisson_binomial_p(3, [1 / 3, 1 / 3, 1 / 2]), 6), poisson_binomial_p(0, [0.5])
    (0.055556, 1.0)
    """
    distribution = np.ones(1)
    for probability in probabilities:
        distribution = np.convolve(distribution, [1 - probability, probability])
    return min(1.0, float(distribution[count:].sum()))
