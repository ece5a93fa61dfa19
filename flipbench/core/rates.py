"""A fraction of cases and its confidence interval."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator
from statsmodels.stats.proportion import proportion_confint

from flipbench.core.records import Interval, Value

LEVEL = 0.95
MIN_CLUSTERS = 10
"""With fewer clusters, a rate says little about other cases."""


class Rate(Value):
    """k of n cases, and a confidence interval of the fraction; n may be 0.

    Attributes
    ----------
    n_clusters : int
        Number of clusters of dependent cases; `wilson` and `exact` use it as the sample size.

    Examples
    --------
    >>> rate = Rate.wilson(253, 294)
    >>> round(rate.value, 3), round(rate.interval.low, 3)
    (0.861, 0.816)
    """

    k: int
    n: int
    interval: Interval | None = None
    n_clusters: int = 0

    @model_validator(mode="after")
    def _is_a_fraction(self) -> Self:
        if not 0 <= self.k <= self.n:
            raise ValueError(f"k/n must be a fraction, not {self.k}/{self.n}")
        return self

    @property
    def value(self) -> float | None:
        """The fraction k/n; None without cases."""
        return self.k / self.n if self.n else None

    @property
    def too_few(self) -> bool:
        """Whether there are too few clusters for the rate to say much about other cases."""
        return self.n_clusters < MIN_CLUSTERS

    @classmethod
    def wilson(cls, k: int, n: int, n_clusters: int | None = None) -> Rate:
        """Return k/n with Wilson's interval; by default every case is a cluster."""
        size = n if n_clusters is None else n_clusters
        interval = wilson_interval(_scale(k, n, size), size) if n else None
        return Rate(k=k, n=n, interval=interval, n_clusters=size)

    @classmethod
    def exact(cls, k: int, n: int, n_clusters: int | None = None) -> Rate:
        """Return k/n with the Clopper-Pearson interval, whose coverage is at least nominal.

        >>> [round(Rate.exact(0, 14, n).interval.high, 3) for n in (14, 2)]
        [0.232, 0.842]
        """
        if n == 0:
            return Rate(k=k, n=n)
        size = n if n_clusters is None else n_clusters
        low, high = proportion_confint(_scale(k, n, size), size, alpha=1 - LEVEL, method="beta")
        return Rate(k=k, n=n, interval=Interval(low=float(low), high=float(high)), n_clusters=size)


def wilson_interval(k: float, n: int) -> Interval:
    """Return the Wilson interval of the fraction k/n.

    Raises
    ------
    ValueError
        Unless 0 <= k <= n and n > 0.
    """
    if not 0 <= k <= n or n == 0:
        raise ValueError(f"k/n must be a fraction with n > 0, not {k}/{n}")
    low, high = proportion_confint(k, n, alpha=1 - LEVEL, method="wilson")
    return Interval(low=max(0.0, float(low)), high=min(1.0, float(high)))


def _scale(k: int, n: int, n_clusters: int) -> float:
    """Return k scaled from n cases to the number of clusters."""
    return k if n_clusters == n else k / n * n_clusters
