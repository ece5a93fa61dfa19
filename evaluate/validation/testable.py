"""Whether models can test a statistic: one that does not move on them shows nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from flipbench.core.records import Score

EDGE = 0.01
"""Distance from 0 or 1 within which a share has no room to show anything."""


def untestable(scores: Sequence[Score]) -> str:
    """Return why these models cannot test a statistic, in a few words; else "".

    It is the same for all of them, or the shares it is made of are all at their floor (0) or all
    at their ceiling (1).
    """
    known = [s for s in scores if s.statistic is not None and not math.isnan(s.statistic)]
    values = [s.statistic for s in known if s.statistic is not None]
    if len(values) < 2:
        return ""
    same = f"{values[0]:.3g} for all models" if max(values) - min(values) <= 1e-9 else ""
    shares = [share for score in known for share in _shares(score)]
    if same and all(share == values[0] for share in shares):
        return same
    if shares and 0 <= min(shares) <= max(shares) <= EDGE:
        return f"at its floor: at most {100 * max(shares):.1f} % for all models"
    if shares and 1 - EDGE <= min(shares) <= max(shares) <= 1:
        return f"at its ceiling: at least {100 * min(shares):.1f} % for all models"
    return same


def _shares(score: Score) -> Iterable[float]:
    """Return the shares behind a statistic: those of its conditions, or the statistic itself."""
    if score.unit != "fraction" or score.statistic is None:
        return ()
    if score.accuracies:
        return [count.k / count.n for count in score.accuracies.values() if count.n]
    if score.reference is None or score.reference.statistic is None:
        return [score.statistic]
    clean = score.reference.statistic
    return [clean, round(clean + score.statistic, 12)]
