"""Tests of counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def poisson_binomial_p(count: int, probabilities: Sequence[float]) -> float:
    """Return P(X >= count) for a sum X of independent events of these probabilities, exactly.

    Without events, the p-value is 1.

    >>> round(poisson_binomial_p(3, [1 / 3, 1 / 3, 1 / 2]), 6), poisson_binomial_p(0, [0.5])
    (0.055556, 1.0)
    """
    tail = poisson_binomial_tail(probabilities)
    return min(1.0, float(tail[count])) if count < len(tail) else 0.0


def poisson_binomial_tail(probabilities: Sequence[float]) -> NDArray[np.float64]:
    """Return P(X >= k) for k = 0 to the number of events, X a sum of independent events.

    >>> poisson_binomial_tail([0.5, 0.5]).tolist()
    [1.0, 0.75, 0.25]
    """
    distribution = np.ones(1)
    for probability in probabilities:
        distribution = np.convolve(distribution, [1 - probability, probability])
    return np.asarray(distribution[::-1].cumsum()[::-1])
