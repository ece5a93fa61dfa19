"""What single answers show: power against the number of pairs, and audits of membership."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from flipbench.core.randomness import generator
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table

from ..statistics.counts import poisson_binomial_p
from .results import AS_MADE, CLEAN, CONTAMINATED, CONTROL, Results, models_of

SIZES = (25, 50, 75, 100, 120, 200, 400)
ALPHA = 0.05
N_SUBSETS = 50
_CLIP = float(np.log(1000))
_CRITICAL = float(stats.norm.ppf(ALPHA))
EASY = ("color", "shape")


def power_by_items(results: Results, kinds: Sequence[str]) -> Table | None:
    """Return the share of random subsets of pairs in which each paired test flags a model.

    The gap is tested by McNemar's test, old answers against chance, and the confidence gap by the
    normal approximation of its sign flips, one-sided at .05; all pairs of a model, once, if a size
    is that of the benchmark.
    """
    most = int(results.items["item"].max()) + 1 if len(results.items) else 0
    sizes = [size for size in SIZES if size <= most]
    groups = []
    conditions = [AS_MADE, *sorted(set(results.items["condition"]) - {AS_MADE})]
    for kind, condition in product([kind for kind in kinds if kind in results.kinds], conditions):
        rows: list[Row] = []
        for arm in (CONTAMINATED, CONTROL):
            models = [
                rows_of
                for (_, of_kind, of_arm), rows_of in models_of(results.items, condition)
                if (of_kind, of_arm) == (kind, arm)
            ]
            if not models:
                continue
            enough = [size for size in sizes if size <= min(map(len, models))]
            shares = np.array([[_flags(own, size) for size in enough] for own in models])
            for place, test in enumerate(("McNemar", "old answers", "confidence gap")):
                cells = [Cell(formats.percent(x)) for x in shares.mean(axis=0)[:, place]]
                cells += [Cell(formats.NOTHING)] * (len(sizes) - len(enough))
                rows.append(Row(f"{arm} (n = {len(models)}), {test}", tuple(cells)))
        if rows:
            groups.append((kind if condition == AS_MADE else f"{kind}, {condition}", tuple(rows)))
    if not groups or not sizes:
        return None
    return Table(
        "power-by-items",
        f"Share of {N_SUBSETS} random subsets of the pairs in which a test flags a model, mean over"
        " models, in percent; one-sided at .05.",
        "Models and test",
        tuple(Column(f"{size} pairs") for size in sizes),
        tuple(groups),
    )


def _flags(rows: pd.DataFrame, size: int) -> NDArray[np.float64]:
    """Return the shares of subsets that the three tests flag, shape (3,)."""
    lineage, kind, arm = rows.iloc[0][["lineage", "kind", "arm"]]
    rng = generator(0, f"{lineage} {kind} {arm}", f"subsets of {size}")
    before = rows["original_right"].to_numpy()
    after = rows["perturbed_right"].to_numpy()
    old = rows["old_answer"].to_numpy() & ~after
    chance = 1 / np.maximum(rows["n_options"].to_numpy() - 1, 1)
    counted = ~after & (rows["n_options"].to_numpy() > 2)
    change = (rows["perturbed_log_prob"] - rows["original_log_prob"]).clip(-_CLIP, _CLIP)
    values = change.fillna(0).to_numpy(dtype=float)
    n_subsets = N_SUBSETS if size < len(rows) else 1
    hits = np.zeros(3)
    for _ in range(n_subsets):
        chosen = rng.permutation(len(rows))[:size]
        lost = int((before[chosen] & ~after[chosen]).sum())
        won = int((~before[chosen] & after[chosen]).sum())
        hits[0] += lost + won > 0 and stats.binom.sf(lost - 1, lost + won, 0.5) <= ALPHA
        wrong = chosen[counted[chosen]]
        if len(wrong):
            hits[1] += poisson_binomial_p(int(old[wrong].sum()), chance[wrong].tolist()) <= ALPHA
        spread = float(np.sqrt((values[chosen] ** 2).sum()))
        hits[2] += spread > 0 and values[chosen].sum() / spread <= _CRITICAL
    return hits / n_subsets


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
        Row(name, (Cell(formats.percent(float(np.mean(shares)))), Cell(str(len(shares)))))
        for name, shares in tests.items()
    ]
    return Table(
        "audits",
        "How often an audit of membership accuses at .05 (Mann-Whitney of the right letters'"
        " log-probabilities), mean over models.",
        "Sets",
        (Column("Accused, %"), Column("Models")),
        (("", tuple(rows_of)),),
    )


def _accuses(values: NDArray[np.float64], suspected: NDArray[np.bool_]) -> bool:
    test = stats.mannwhitneyu(values[suspected], values[~suspected], alternative="greater")
    return bool(test.pvalue <= ALPHA)


def _few(
    values: NDArray[np.float64], member: NDArray[np.bool_], rng: np.random.Generator, n: int
) -> bool:
    chosen = [rng.permutation(np.flatnonzero(side))[:n] for side in (member, ~member)]
    labels = np.repeat([True, False], [len(part) for part in chosen])
    return _accuses(values[np.concatenate(chosen)], labels)
