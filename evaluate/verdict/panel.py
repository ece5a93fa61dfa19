"""Several clean references as a panel: what gaps clean models have, and where the model's lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from flipbench.core.records import Interval
from flipbench.reporting import formats


@dataclass(frozen=True)
class Panel:
    """A model's gap among those of clean models; gaps are fractions.

    Attributes
    ----------
    gaps : tuple of float
        Of the clean models.
    p_value : float
        Conformal: (1 + number of clean gaps <= the model's) / (number of clean gaps + 1).
    interval : Interval or None
        Where a further clean model's gap is expected; None with fewer than two clean gaps, or if
        they are all equal.
    """

    gap: float
    gaps: tuple[float, ...]
    p_value: float
    interval: Interval | None

    @property
    def sentence(self) -> str:
        """What the panel shows, and how it differs from the interval over items."""
        n = len(self.gaps)
        listed = ", ".join(formats.points(gap) for gap in self.gaps)
        rank = (
            f"The gaps of the {n} clean references are {listed} points; among them the model's has"
            f" conformal {formats.p_equation(self.p_value)}, which {n} references cannot bring"
            f" below {formats.p_value(1 / (n + 1))}."
        )
        between = ""
        if self.interval is not None:
            low, high = formats.points(self.interval.low), formats.points(self.interval.high)
            side = "below" if self.gap < self.interval.low else "not below"
            between = (
                f" A further clean model's gap is expected between {low} and {high} (95 %"
                f" predictive interval, Student's t); the model's is {side} it."
            )
        return (
            f"{rank}{between} The interval of the difference is over items and ignores that clean"
            " models differ."
        )


def panel_of(gap: float, gaps: Sequence[float]) -> Panel:
    """Compare a gap with those of clean models.

    >>> panel = panel_of(-0.3, [0.0, 0.02, 0.04])
    >>> panel.p_value, round(panel.interval.low, 4), round(panel.interval.high, 4)
    (0.25, -0.0794, 0.1194)
    """
    n = len(gaps)
    p_value = (1 + sum(clean <= gap for clean in gaps)) / (n + 1)
    return Panel(gap, tuple(gaps), p_value, predictive_interval(gaps))


def predictive_interval(values: Sequence[float], level: float = 0.95) -> Interval | None:
    """Return Student's interval for one further value; None without a spread to base it on."""
    n = len(values)
    spread = float(np.std(values, ddof=1)) if n > 1 else 0.0
    if spread == 0:
        return None
    half = float(stats.t.ppf(0.5 + level / 2, n - 1)) * spread * math.sqrt(1 + 1 / n)
    mean = float(np.mean(values))
    return Interval(low=max(-1.0, mean - half), high=min(1.0, mean + half), level=level)
