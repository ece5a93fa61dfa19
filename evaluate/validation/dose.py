"""How a detector's statistic depends on the dose: series, rank correlation, or not at all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flipbench.core.errors import DataError
from flipbench.core.records import Score

from ..protocol.grid import UNTOUCHED, GridModel
from ..statistics.resampling import N_PERMUTATIONS, permutation_p

Cells = Sequence[tuple[GridModel, Score]]
EDGE = 0.01
"""Distance from 0 or 1 within which a share has no room to show anything."""


@dataclass(frozen=True)
class Series:
    """Statistics of one lineage and strategy on one benchmark, by increasing dose."""

    name: str
    doses: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Trend:
    """How a statistic moves towards "contaminated" as the dose rises, within series.

    Attributes
    ----------
    in_order, n_steps : int
        Steps from one dose to the next that move strictly in the right direction, and all steps.
        By chance, half are in order.
    correlation : float
        Of all pairs of doses within a series, the share in the right order minus the share in
        the wrong one (Somers' D, ties count 0): 1 is monotone, 0 no trend. NaN without a series.
    p_value : float or None
        One-sided, from doses shuffled within each series; None without a series.
    """

    in_order: int
    n_steps: int
    correlation: float
    p_value: float | None


def rises(scores: Sequence[Score]) -> bool:
    """Return whether a contaminated model's statistic rises, according to its scores.

    Raises
    ------
    DataError
        If the scores with a statistic disagree on its direction, or none has a statistic.
    """
    directions = {score.direction for score in scores if score.statistic is not None}
    if len(directions) != 1:
        raise DataError(
            f"{scores[0].detector if scores else 'detector'}: a contaminated model's statistic"
            f" either falls or rises, but these scores have {sorted(directions) or 'no statistic'};"
            " check one rule at a time"
        )
    return directions == {"rises"}


def series_of(cells: Cells) -> list[Series]:
    """Return each series of a detector, the clean model's statistic first.

    Values at equal doses are averaged. Dose 0 is the untouched clean model (or, without one, the
    clean fine-tunes); a reference without a statistic of its own counts as 0, its difference from
    itself. A series of a single dose is left out.
    """
    several = len({score.benchmark_id for _, score in cells}) > 1
    by_series: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    for model, score in cells:
        if model.dose:
            on = f" on {score.benchmark}" if several else ""
            key = (score.benchmark_id, model.cluster, f"{model.cluster}, {model.strategy}{on}")
            values = by_series.setdefault(key, {})
            if score.statistic is not None:
                values.setdefault(model.dose, []).append(score.statistic)
    series = []
    for (benchmark, cluster, name), values in by_series.items():
        if zero := _at_zero(benchmark, cluster, cells):
            values[0] = zero
        if len(values) > 1:
            doses = tuple(sorted(values))
            means = tuple(sum(values[dose]) / len(values[dose]) for dose in doses)
            series.append(Series(name, doses, means))
    return series


def is_monotone(series: Series, up: bool, *, strict: bool = False) -> bool:
    """Return whether no step of a series moves away from "contaminated", and one towards it.

    With ``strict``, every step moves towards it.
    """
    steps = [(b - a) * (1 if up else -1) for a, b in pairwise(series.values)]
    return all(step > 0 if strict else step >= 0 for step in steps) and max(steps) > 0


def untestable(scores: Sequence[Score]) -> str:
    """Return why these models cannot test a statistic, in a few words; else "".

    It is the same for all of them, or the shares it is made of are all at their floor (0) or all
    at their ceiling (1).
    """
    values = [s.statistic for s in scores if s.statistic is not None and s.statistic == s.statistic]
    if len(values) < 2:
        return ""
    constant = f"{values[0]:.3g} for all models" if max(values) - min(values) <= 1e-9 else ""
    shares = [share for score in scores for share in _shares(score)]
    if constant and all(share == values[0] for share in shares):
        return constant
    if shares and 0 <= min(shares) <= max(shares) <= EDGE:
        return f"at its floor: at most {100 * max(shares):.1f} % for all models"
    if shares and 1 - EDGE <= min(shares) <= max(shares) <= 1:
        return f"at its ceiling: at least {100 * min(shares):.1f} % for all models"
    return constant


def _shares(score: Score) -> Iterable[float]:
    """Return the shares behind a statistic: those of its conditions, or the statistic itself."""
    if score.unit != "fraction" or score.statistic is None or math.isnan(score.statistic):
        return ()
    if score.accuracies:
        return [count.k / count.n for count in score.accuracies.values() if count.n]
    if score.reference is None or score.reference.statistic is None:
        return [score.statistic]
    clean = score.reference.statistic
    return [clean, round(clean + score.statistic, 12)]


def trend(
    series: Sequence[Series],
    up: bool,
    rng: np.random.Generator,
    n_permutations: int = N_PERMUTATIONS,
) -> Trend:
    """Return how the statistic depends on the dose, over all series."""
    sign = 1.0 if up else -1.0
    values = [sign * np.array(line.values) for line in series]
    steps = [step for line in values for step in np.diff(line)]
    n_pairs = sum(math.comb(len(line), 2) for line in values)
    if not n_pairs:
        return Trend(0, 0, math.nan, None)
    observed = sum(_concordance(line[None, :])[0] for line in values)
    null = np.zeros(n_permutations)
    for line in values:
        null += _concordance(rng.permuted(np.tile(line, (n_permutations, 1)), axis=1))
    return Trend(
        in_order=sum(step > 0 for step in steps),
        n_steps=len(steps),
        correlation=float(observed / n_pairs),
        p_value=permutation_p(float(observed), null),
    )


def _concordance(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rising minus the falling pairs of each row, shape (B, n_doses) -> (B,)."""
    lower, upper = np.triu_indices(values.shape[1], 1)
    return np.asarray(np.sign(values[:, upper] - values[:, lower]).sum(axis=1))


def _at_zero(benchmark: str, cluster: str, cells: Cells) -> list[float]:
    related = [(m, s) for m, s in cells if (s.benchmark_id, m.cluster) == (benchmark, cluster)]
    references = {s.reference_fingerprint for _, s in related}
    clean = [(m, s) for m, s in related if m.clean]
    untouched = [(m, s) for m, s in clean if m.strategy == UNTOUCHED] or clean
    return [
        0.0 if score.statistic is None else score.statistic
        for model, score in untouched
        if score.statistic is not None or model.fingerprint in references
    ]
