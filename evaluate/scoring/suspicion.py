"""Which items look memorised, from the per-item values of all detectors and models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score

from ..protocol.grid import GridModel


@dataclass(frozen=True)
class Suspicion:
    """How suspicious a pair is, and the number of scores behind it.

    Attributes
    ----------
    value : float
        Between -1 and 1: the pair's mean rank among all pairs (0 least, 1 most suspicious) in the
        scores of contaminated models, minus its mean rank in those of clean models (0.5 without
        any). A pair that clean models fail as well is hard, not memorised.
    n_scores, n_clean_scores : int
        Scores of contaminated and of clean models with a value for this pair.
    """

    value: float
    n_scores: int
    n_clean_scores: int


def suspicions(
    benchmark: PairedBenchmark, grid: Sequence[GridModel], scores: Sequence[Score]
) -> dict[str, Suspicion]:
    """Return the suspicion of every pair by its original item's id.

    Each detector counts once per model, by the first of its rules that has per-item values. Ties
    get their mean rank.
    """
    original_ids = {pair.perturbed.id: pair.original.id for pair in benchmark.pairs}
    is_clean = {model.fingerprint: model.clean for model in grid}
    used_keys: set[tuple[str, str]] = set()
    ranks: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
    for score in scores:
        key = (score.detector, score.model_fingerprint)
        if score.model_fingerprint not in is_clean or not score.per_item or key in used_keys:
            continue
        used_keys.add(key)
        values = np.array(list(score.per_item.values())) * (1 if score.direction == "rises" else -1)
        by_item = ranks[is_clean[score.model_fingerprint]]
        for item, rank in zip(score.per_item, rankdata(values), strict=True):
            share = (float(rank) - 0.5) / len(values)
            by_item.setdefault(original_ids.get(item, item), []).append(share)
    by_pair = {}
    for pair in benchmark.pairs:
        contaminated, clean = (ranks[side].get(pair.original.id, []) for side in (False, True))
        means = [sum(side) / len(side) if side else 0.5 for side in (contaminated, clean)]
        by_pair[pair.original.id] = Suspicion(means[0] - means[1], len(contaminated), len(clean))
    return by_pair
