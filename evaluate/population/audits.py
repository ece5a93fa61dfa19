"""Audits of membership: suspected items against others, and how they fail."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from flipbench.core.randomness import generator
from flipbench.core.rates import wilson_interval
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table

from .results import ALPHA, CLEAN, CONTAMINATED, N_SUBSETS, Results, models_of

EASY = ("color", "shape")


def audits(results: Results) -> Table | None:
    """Return how often an audit of membership accuses: suspected items against other items.

    The log-probability of the right letter of suspected items is compared with that of other
    items (Mann-Whitney, one-sided at .05). On clean models no item is a member: halves drawn at
    random, and halves of other kinds of question. On models trained on a share of the items:
    members against non-members, all of them and few.

    References
    ----------
    arXiv 2606.03305 names these two failures of audits, shifted sets and few items.
    """
    tests: dict[str, list[float]] = {}
    for (_, kind, arm), rows in models_of(results.items):
        values = rows["original_log_prob"].to_numpy(dtype=float)
        if np.isnan(values).any():
            continue
        member = rows["member"].to_numpy()
        rng = generator(0, "-".join(map(str, rows.iloc[0][["lineage", "kind", "arm"]])), "audits")
        easy = rows["category"].isin(EASY).to_numpy()
        if arm == CLEAN:
            halves = np.arange(len(rows)) % 2 == 0
            shares = [_accuses(values, rng.permutation(halves)) for _ in range(N_SUBSETS)]
            tests.setdefault("no members, sets alike", []).append(float(np.mean(shares)))
            if easy.any() and not easy.all():
                shifted = float(_accuses(values, easy))
                tests.setdefault("no members, sets of other kinds of question", []).append(shifted)
        if arm == CONTAMINATED and member.any() and not member.all():
            tests.setdefault(f"{kind}: all items", []).append(float(_accuses(values, member)))
            few = [_few(values, member, rng, 10) for _ in range(N_SUBSETS)]
            tests.setdefault(f"{kind}: 10 members, 10 others", []).append(float(np.mean(few)))
    if not tests:
        return None
    rows_of = [
        Row(name, (_share(shares), Cell(str(len(shares))))) for name, shares in tests.items()
    ]
    return Table(
        "audits",
        "How often an audit of membership accuses at .05 (Mann-Whitney of the right letters'"
        " log-probabilities), mean over models. Brackets: 95 % intervals that count each model"
        " once, in percent.",
        "Sets",
        (Column("Accused, %"), Column("Models")),
        (("", tuple(rows_of)),),
    )


def _share(shares: list[float]) -> Cell:
    """Return the mean with Wilson's interval of as many cases: shares vary no more than those."""
    n, mean = len(shares), float(np.mean(shares))
    between = wilson_interval(n * mean, n)
    return Cell(formats.percent(mean), formats.interval(between, formats.percent))


def _accuses(values: NDArray[np.float64], suspected: NDArray[np.bool_]) -> bool:
    test = stats.mannwhitneyu(values[suspected], values[~suspected], alternative="greater")
    return bool(test.pvalue <= ALPHA)


def _few(
    values: NDArray[np.float64], member: NDArray[np.bool_], rng: np.random.Generator, n: int
) -> bool:
    chosen = [rng.permutation(np.flatnonzero(side))[:n] for side in (member, ~member)]
    labels = np.repeat([True, False], [len(part) for part in chosen])
    return _accuses(values[np.concatenate(chosen)], labels)
