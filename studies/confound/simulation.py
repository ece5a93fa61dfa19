"""Models that differ in gain alone: the published tail rule fires although none has seen an item.

The score of model m on item i is gain[m] * easiness[i] + noise. Easiness has a heavy tail, so a
model of gain 1 is far above a cohort median that models of low gain pull down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from flipbench.core.rates import Rate
from flipbench.evaluate.cohort.cohort import Array, Cohort
from flipbench.evaluate.cohort.tail_enrichment import (
    FLAG_SHARE,
    LEVELS,
    cohort_deltas,
    guarded_tails,
    tail_summaries,
)
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell

SEED = 20260531
N_ITEMS = 1_061
CLOSED_SHARE = 0.4
"""Share of items with a heavy tail: yes/no questions, in the paper."""
CLOSED_SCALE = 900.0
NOISE = 2.0
LOW_GAIN = 0.05
PARITY_GAINS = (LOW_GAIN, LOW_GAIN, 1.0, 1.0, 1.0)
LOW_GAIN_COUNTS = range(5)
N_ANCHORS = 2
N_REPEATS = 200


@dataclass(frozen=True)
class ParityModel:
    """One model of the parity run: its gain, and the rows of the published and the guarded rule.

    ``closed_form`` is the share above 100 that gains alone give, without noise.
    """

    gain: float
    published: Any
    guarded: Any
    closed_form: float


@dataclass(frozen=True)
class SweepPoint:
    """A probe of gain 1 among ``n_low`` models of low gain and two anchors of gain 1.

    ``share`` is the mean share of items above 100 over the repeats, ``flagged`` the repeats in
    which the published rule flags the probe.
    """

    n_low: int
    share: float
    flagged: Rate
    closed_form: float


@dataclass(frozen=True)
class ConfoundSimulation:
    """The parity run, and the sweep over the cohort's composition."""

    seed: int
    parity: list[ParityModel]
    sweep: list[SweepPoint]


def simulate_confound(*, seed: int = SEED, n_repeats: int = N_REPEATS) -> ConfoundSimulation:
    """Simulate cohorts in which no model has seen any item.

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, appendix B: constants, seed and order of draws are theirs, and
    give the printed digits. The closed form and the guarded rule are ours.
    """
    rng = np.random.default_rng(seed)
    cohort = gain_cohort(rng, PARITY_GAINS)
    parity = [
        ParityModel(gain, published, guarded, closed_form(PARITY_GAINS, column))
        for column, (gain, published, guarded) in enumerate(
            zip(
                PARITY_GAINS,
                tail_summaries(cohort).itertuples(),
                guarded_tails(cohort).itertuples(),
                strict=True,
            )
        )
    ]
    sweep = [_sweep_point(rng, n_low, n_repeats) for n_low in LOW_GAIN_COUNTS]
    return ConfoundSimulation(seed, parity, sweep)


def gain_cohort(
    rng: np.random.Generator, gains: Sequence[float], *, n_items: int = N_ITEMS
) -> Cohort:
    """Return a cohort of models that differ in gain alone, none of which has seen an item."""
    scores = _gain_scores(rng, gains, n_items)
    models = [f"gain {gain:g} #{number}" for number, gain in enumerate(gains, 1)]
    return Cohort("simulated", [str(i) for i in range(n_items)], models, frozenset(), scores)


def closed_form(gains: Sequence[float], column: int, n_items: int = N_ITEMS) -> float:
    """Return the share of items above 100 that the difference of gains gives without noise.

    >>> round(closed_form([0.05, 0.05, 1, 1, 1], 4), 4), closed_form([1, 1, 1], 2)
    (0.3163, 0.0)
    """
    difference = gains[column] - median([*gains[:column], *gains[column + 1 :]])
    if difference <= 0:
        return 0.0
    closed = round(CLOSED_SHARE * n_items) / n_items
    return closed * math.exp(-LEVELS[1] / (difference * CLOSED_SCALE))


def confound_tables(simulation: ConfoundSimulation) -> list[Table]:
    """Return the parity run and the sweep as tables."""
    n_models, n_fired = len(simulation.parity), sum(m.published.flagged for m in simulation.parity)
    parity = Table(
        key="confound_parity",
        caption=f"Parity run, seed {simulation.seed}: no model has seen an item; the published rule"
        f" (above {LEVELS[1]:g} on more than {100 * FLAG_SHARE:g} % of items) flags"
        f" {n_fired}/{n_models} models. p: the guarded test on ranks, Holm over the models.",
        stub="model",
        columns=tuple(map(Column, ("largest delta", "above 100, %", "closed form, %")))
        + (Column("published rule", numeric=False), Column("p, ranks"))
        + (Column("guarded rule", numeric=False),),
        groups=(("", tuple(map(_parity_row, simulation.parity))),),
    )
    sweep = Table(
        key="confound_sweep",
        caption=f"A model of gain 1 among {N_ANCHORS} others of gain 1 and some of gain"
        f" {LOW_GAIN:g}: which models it is compared with decides whether it is flagged.",
        stub="models of low gain",
        columns=tuple(map(Column, ("above 100, mean %", "closed form, %", "repeats flagged, %"))),
        groups=(("", tuple(map(_sweep_row, simulation.sweep))),),
    )
    return [parity, sweep]


def _parity_row(model: ParityModel) -> Row:
    cells = (
        Cell(formats.decimals(model.published.largest)),
        rate_cell(model.published.above[1]),
        Cell(formats.percent(model.closed_form)),
        Cell("flagged" if model.published.flagged else "–"),
        Cell(formats.p_value(model.guarded.p_holm)),
        Cell(model.guarded.verdict.replace("_", " ")),
    )
    return Row(model.published.model, cells)


def _sweep_row(point: SweepPoint) -> Row:
    shares = (f"{100 * point.share:.3f}", f"{100 * point.closed_form:.3f}")
    return Row(str(point.n_low), (*map(Cell, shares), rate_cell(point.flagged)))


def _sweep_point(rng: np.random.Generator, n_low: int, n_repeats: int) -> SweepPoint:
    gains = [LOW_GAIN] * n_low + [1.0] * (N_ANCHORS + 1)
    shares = [
        float((cohort_deltas(_gain_scores(rng, gains, N_ITEMS))[:, -1] > LEVELS[1]).mean())
        for _ in range(n_repeats)
    ]
    return SweepPoint(
        n_low=n_low,
        share=float(np.mean(shares)),
        flagged=Rate.wilson(sum(share > FLAG_SHARE for share in shares), n_repeats),
        closed_form=closed_form(gains, len(gains) - 1),
    )


def _gain_scores(rng: np.random.Generator, gains: Sequence[float], n_items: int) -> Array:
    n_closed = round(CLOSED_SHARE * n_items)
    opened = np.abs(rng.normal(size=n_items - n_closed))
    easiness = np.concatenate([opened, rng.exponential(CLOSED_SCALE, n_closed)])
    rng.shuffle(easiness)
    noisy = [gain * easiness + rng.normal(0.0, NOISE, n_items) for gain in gains]
    return np.stack(noisy, axis=1)
