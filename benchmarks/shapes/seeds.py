"""Means over the same items of several models that differ by a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from flipbench.core.records import Interval
from flipbench.evaluate.statistics.resampling import LEVEL, N_BOOTSTRAP, bootstrap_interval


@dataclass(frozen=True)
class SeedMean:
    """A mean over S seeds and N items; None without items.

    Attributes
    ----------
    by_seed : tuple of float, length S
        The mean of each seed.
    over_items : Interval or None
        How it would vary with other items, for these seeds: the bootstrap resamples items, with
        the values of all seeds. None with fewer than two items.
    over_seeds : Interval or None
        How it would vary with other seeds, for these items: Student's interval of ``by_seed``.
        None with fewer than two seeds.

    Either is None where all that it varies agree: it would have no width, as if all were known.
    """

    mean: float | None
    by_seed: tuple[float, ...]
    over_items: Interval | None = None
    over_seeds: Interval | None = None


def seed_mean(
    values: ArrayLike, rng: np.random.Generator, *, n_bootstrap: int = N_BOOTSTRAP
) -> SeedMean:
    """Return the mean of ``values``, shape (S, N), with an interval over items and one over seeds.

    The two answer different questions, and neither contains the other. For a difference of two
    kinds of training, give the differences, seed by seed and item by item.

    Raises
    ------
    ValueError
        If ``values`` has another number of dimensions.

    Examples
    --------
    >>> found = seed_mean([[1, 0, 1, 1], [1, 0, 0, 1]], np.random.default_rng(0))
    >>> found.mean, found.by_seed
    (0.625, (0.75, 0.5))
    """
    array = np.asarray(values, dtype=float)
    if array.ndim != 2:
        raise ValueError(f"values must have the shape (seeds, items), not {array.shape}")
    if not array.size:
        return SeedMean(None, ())
    by_seed, by_item = array.mean(1), array.mean(0)
    return SeedMean(
        float(array.mean()),
        tuple(by_seed.tolist()),
        bootstrap_interval(by_item, rng, n_bootstrap=n_bootstrap) if np.ptp(by_item) else None,
        _students(by_seed) if np.ptp(by_seed) else None,
    )


def _students(values: np.ndarray) -> Interval:
    mean, error = values.mean(), stats.sem(values)
    reach = error * stats.t.ppf(0.5 + LEVEL / 2, len(values) - 1)
    return Interval(low=float(mean - reach), high=float(mean + reach))
