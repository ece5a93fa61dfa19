"""Paired comparisons of shares and similarities: where outcomes are not just right or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flipbench.core.records import Interval

from ..protocol.rules import Direction
from ..statistics.paired import Value
from ..statistics.resampling import (
    N_BOOTSTRAP,
    N_PERMUTATIONS,
    bootstrap_interval,
    label_swap_p,
)


@dataclass(frozen=True)
class MeanOutcome:
    """A paired comparison of values in [0, 1].

    Attributes
    ----------
    n, n_dropped : int
        Pairs compared, and pairs of which a value is missing.
    first, second : float
        Sums of the values.
    n_fell, n_rose : int
        Pairs whose second value is lower, higher.
    interval : Interval or None
        Percentile bootstrap of the mean difference over items (or clusters).
    p_one_sided : float
        Whether the mean moves the asked way by chance: the two conditions are swapped item by item
        (cluster by cluster), which for right-or-wrong values is the exact McNemar test.
    """

    n: int
    n_dropped: int
    first: float
    second: float
    n_fell: int
    n_rose: int
    interval: Interval | None
    p_one_sided: float

    @property
    def gap(self) -> float:
        """Mean of second - first; NaN without pairs."""
        return (self.second - self.first) / self.n if self.n else float("nan")


def mean_comparison(
    first: Sequence[Value],
    second: Sequence[Value],
    direction: Direction,
    rng: np.random.Generator,
    *,
    clusters: Sequence[str] | None = None,
    n_bootstrap: int = N_BOOTSTRAP,
    n_permutations: int = N_PERMUTATIONS,
) -> MeanOutcome:
    """Compare two conditions on the same items; all sequences have shape (N,).

    >>> found = mean_comparison([0.2, 0.4, None], [0.6, 0.4, 1.0], "rises", np.random.default_rng())
    >>> found.n, found.n_dropped, round(found.gap, 3), found.n_rose
    (2, 1, 0.2, 1)
    """
    pairs = [
        (i, float(one), float(two))
        for i, (one, two) in enumerate(zip(first, second, strict=True))
        if one is not None and two is not None
    ]
    differences = np.array([two - one for _, one, two in pairs])
    if not pairs:
        return MeanOutcome(0, len(first), 0.0, 0.0, 0, 0, None, 1.0)
    shared = None if clusters is None else [clusters[i] for i, _, _ in pairs]
    sign = 1 if direction == "falls" else -1
    return MeanOutcome(
        n=len(pairs),
        n_dropped=len(first) - len(pairs),
        first=sum(one for _, one, _ in pairs),
        second=sum(two for _, _, two in pairs),
        n_fell=int((differences < 0).sum()),
        n_rose=int((differences > 0).sum()),
        interval=bootstrap_interval(differences, rng, clusters=shared, n_bootstrap=n_bootstrap),
        p_one_sided=label_swap_p(
            sign * differences, rng, clusters=shared, n_permutations=n_permutations
        ),
    )
