"""Paired comparisons of shares and similarities, for outcomes other than right or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from flipbench.core.records import Interval

from ..protocol.rules import Direction
from ..statistics.intervals import mean_interval
from ..statistics.paired import Value
from ..statistics.resampling import N_BOOTSTRAP, N_PERMUTATIONS, label_swap_p


@dataclass(frozen=True)
class MeanOutcome:
    """A paired comparison of values in [0, 1].

    Attributes
    ----------
    n, n_dropped, n_independent : int
        Pairs compared, pairs with a missing value, and clusters (else pairs) compared.
    first, second : float
        Sums of the values.
    n_fell, n_rose : int
        Pairs whose second value is lower, higher.
    interval : Interval or None
        Of the mean difference, over items (or clusters): see `mean_interval`.
    p_one_sided : float
        P-value of a change of the mean in the given direction, by swapping the two conditions item
        by item (cluster by cluster); for right-or-wrong values this is the exact McNemar test.
    """

    n: int
    n_dropped: int
    first: float
    second: float
    n_fell: int
    n_rose: int
    interval: Interval | None
    p_one_sided: float
    n_independent: int

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

    >>> outcome = mean_comparison([0.2, 0.4, None], [0.6, 0.4, 1], "rises", np.random.default_rng())
    >>> outcome.n, outcome.n_dropped, round(outcome.gap, 3), outcome.n_rose
    (2, 1, 0.2, 1)
    """
    pairs = [
        (i, float(before), float(after))
        for i, (before, after) in enumerate(zip(first, second, strict=True))
        if before is not None and after is not None
    ]
    differences = np.array([after - before for _, before, after in pairs])
    if not pairs:
        return MeanOutcome(0, len(first), 0.0, 0.0, 0, 0, None, 1.0, 0)
    shared = None if clusters is None else [clusters[i] for i, _, _ in pairs]
    sign = 1 if direction == "falls" else -1
    return MeanOutcome(
        n=len(pairs),
        n_dropped=len(first) - len(pairs),
        first=fsum(before for _, before, _ in pairs),
        second=fsum(after for _, _, after in pairs),
        n_fell=int((differences < 0).sum()),
        n_rose=int((differences > 0).sum()),
        interval=mean_interval(differences.tolist(), rng, clusters=shared, n_bootstrap=n_bootstrap),
        p_one_sided=label_swap_p(
            sign * differences, rng, clusters=shared, n_permutations=n_permutations
        ),
        n_independent=len(pairs) if shared is None else len(set(shared)),
    )
