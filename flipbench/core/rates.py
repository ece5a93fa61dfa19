"""A fraction of cases and its confidence interval."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from flipbench.core.records import Interval, Value

LEVEL = 0.95
MIN_CLUSTERS = 10
"""With fewer clusters, a rate says little about other cases."""


class Rate(Value):
    """k of n cases, and a confidence interval of the fraction; n may be 0.

    Attributes
    ----------
    n_clusters : int
        Number of clusters of dependent cases.

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
    def wilson(cls, k: int, n: int, size: float | None = None) -> Rate:
        """Return k/n with Wilson's interval, for ``size`` independent cases (default: n)."""
        return cls._of(k, n, size, "wilson")

    @classmethod
    def exact(cls, k: int, n: int, size: float | None = None) -> Rate:
        """Return k/n with the Clopper-Pearson interval, whose coverage is at least nominal.

        >>> [round(Rate.exact(0, 14, size).interval.high, 3) for size in (14, 2)]
        [0.232, 0.842]
        """
        return cls._of(k, n, size, "beta")

    @classmethod
    def _of(cls, k: int, n: int, size: float | None, method: str) -> Rate:
        size = n if size is None else size
        interval = _interval(k / n * size, size, method) if n else None
        return Rate(k=k, n=n, interval=interval, n_clusters=int(size))


def wilson_interval(k: float, n: float) -> Interval:
    """Return the Wilson interval of the fraction k/n.

    Raises
    ------
    ValueError
        Unless 0 <= k <= n and n > 0.
    """
    if not 0 <= k <= n or n == 0:
        raise ValueError(f"k/n must be a fraction with n > 0, not {k}/{n}")
    return _interval(k, n, "wilson")


def _interval(k: float, n: float, method: str) -> Interval:
    from statsmodels.stats.proportion import proportion_confint  # imports pandas and scipy.stats

    low, high = proportion_confint(k, n, alpha=1 - LEVEL, method=method)
    return Interval(low=max(0.0, float(low)), high=min(1.0, float(high)))
