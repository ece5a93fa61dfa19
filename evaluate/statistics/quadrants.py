"""Four quadrants of consistency and image reliance, and what to expect of them by chance.

Sadanandan and Behzadan, arXiv 2603.20985.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field
from scipy import special

from flipbench.core.records import Count, Interval, Mean, Value

from .resampling import Array

Quadrant = Literal["ideal", "fragile", "dangerous", "worst"]
QUADRANTS: tuple[Quadrant, ...] = ("ideal", "fragile", "dangerous", "worst")
FLAG = 0.5
"""Dangerous fraction above which the paper flags a model."""
EPSILON = 1e-12
"""Smallest probability in a divergence, as in the paper."""


def quadrant_of(consistent: bool, reliant: bool) -> Quadrant:
    """Return the quadrant of an item.

    Parameters
    ----------
    consistent : bool
        Whether all wordings of the question get the same answer.
    reliant : bool
        Whether the answer without the image is another one.

    Examples
    --------
    >>> quadrant_of(True, True), quadrant_of(True, False), quadrant_of(False, False)
    ('ideal', 'dangerous', 'worst')
    """
    if reliant:
        return "ideal" if consistent else "fragile"
    return "dangerous" if consistent else "worst"


@dataclass(frozen=True)
class QuadrantCounts:
    """How many items are in each quadrant, and the fractions that follow.

    Fractions are None without items.

    Examples
    --------
    >>> counts = QuadrantCounts(ideal=31, fragile=13, dangerous=25, worst=29)
    >>> [round(100 * x, 2) for x in (counts.flip_rate, counts.dangerous_fraction)]
    [42.86, 25.51]
    >>> round(100 * counts.dangerous_given_consistent, 2), round(100 * counts.expected, 2)
    (44.64, 31.49)
    """

    ideal: int
    fragile: int
    dangerous: int
    worst: int

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> QuadrantCounts:
        """Return the counts of a mapping by quadrant; a missing quadrant has none."""
        return cls(*(counts.get(name, 0) for name in QUADRANTS))

    @property
    def n(self) -> int:
        """All items."""
        return self.ideal + self.fragile + self.dangerous + self.worst

    @property
    def n_consistent(self) -> int:
        """Items with the same answer to all wordings."""
        return self.ideal + self.dangerous

    @property
    def n_flipped(self) -> int:
        """Items with different answers to different wordings."""
        return self.fragile + self.worst

    @property
    def n_not_reliant(self) -> int:
        """Items with the same answer without the image."""
        return self.dangerous + self.worst

    @property
    def flip_rate(self) -> float | None:
        """FR: the fraction of items with different answers to different wordings."""
        return _ratio(self.n_flipped, self.n)

    @property
    def dangerous_fraction(self) -> float | None:
        """DF: the fraction that is consistent and not reliant on the image; at most 1 - FR."""
        return _ratio(self.dangerous, self.n)

    @property
    def dangerous_given_consistent(self) -> float | None:
        """DF among the consistent items, which unlike DF is not bounded by the flip rate."""
        return _ratio(self.dangerous, self.n_consistent)

    @property
    def bound(self) -> float | None:
        """The largest DF at this flip rate: 1 - FR."""
        return _ratio(self.n_consistent, self.n)

    @property
    def expected(self) -> float | None:
        """DF if consistency and image reliance were independent: P(consistent) P(not reliant)."""
        return _ratio(self.n_consistent * self.n_not_reliant, self.n**2)


def _ratio(k: int, n: int) -> float | None:
    return k / n if n else None


def distribution(log_probs: ArrayLike) -> Array:
    """Return the probabilities of K options, renormalised, from log-probabilities, shape (..., K).

    >>> distribution([-1.0, -1.0]).tolist()
    [0.5, 0.5]
    """
    return np.asarray(special.softmax(np.asarray(log_probs, dtype=float), axis=-1))


def entropy(p: ArrayLike) -> Array:
    """Return the entropy of distributions of shape (..., K), in nats.

    >>> round(float(entropy([0.82, 0.18])), 5)
    0.47139
    """
    return np.asarray(special.entr(np.asarray(p, dtype=float)).sum(-1))


def kl_divergence(p: ArrayLike, q: ArrayLike) -> Array:
    """Return KL(P || Q) of distributions of shape (..., K), in nats.

    Probabilities below 1e-12 count as 1e-12.

    >>> round(float(kl_divergence([0.82, 0.18], [0.41, 0.59])), 5)
    0.35469
    """
    clipped = [np.maximum(np.asarray(x, dtype=float), EPSILON) for x in (p, q)]
    return np.asarray(special.rel_entr(*clipped).sum(-1))


class QuadrantResult(Value):
    """Items by whether the answer is consistent over wordings and relies on the image.

    As JSON, it is a score's ``quadrants``.

    Attributes
    ----------
    counts : dict of str to Count
        Right answers to the question as it is (``k``) of the items in each quadrant (``n``).
    flip_rate, dangerous, given_consistent : Interval or None
        Of FR, DF, and DF among the consistent items, over items; the fractions follow from
        ``counts``.
    prior : Count
        Right answers without the image: DF of a model that is always right, with this text prior.
    entropies : dict of str to Mean
        Mean entropy of the answer, by quadrant, in nats.
    divergences : dict of str to Mean
        Mean KL(P with image || P without), by quadrant, in nats.
    auroc : float or None
        How well a low divergence tells dangerous from other items.
    auroc_interval : Interval or None
        As if items were independent.
    wordings : dict of str to int
        Other wordings of the questions, by whether they were kept, or why they were not.
    levels : dict of str to Count
        Wordings with another answer than the question as it is, by what the wording changes.
    unchanged : dict of str to dict of str to Count
        Answers that stay on another or a black picture, by check and quadrant.
    items : dict of str to str
        The quadrant of each item, by the item's id.
    """

    counts: dict[str, Count]
    flip_rate: Interval | None = None
    dangerous: Interval | None = None
    given_consistent: Interval | None = None
    prior: Count
    entropies: dict[str, Mean] = Field(default_factory=dict)
    divergences: dict[str, Mean] = Field(default_factory=dict)
    auroc: float | None = None
    auroc_interval: Interval | None = None
    wordings: dict[str, int] = Field(default_factory=dict)
    levels: dict[str, Count] = Field(default_factory=dict)
    unchanged: dict[str, dict[str, Count]] = Field(default_factory=dict)
    items: dict[str, str] = Field(default_factory=dict)
