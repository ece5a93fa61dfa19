"""Which items look memorised: the per-item values of all detectors and models, brought together."""

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
    """How suspicious a pair is, and of how many scores that is the mean.

    Attributes
    ----------
    value : float
        Between -1 and 1: the pair's mean place among all pairs (0 least, 1 most suspicious) in
        the scores of contaminated models, less its mean place in those of clean models (0.5
        without any). A pair that clean models fail as well is hard, not memorised.
    n_scores, n_clean_scores : int
        Scores with a value for this pair, of contaminated and of clean models.
    """

    value: float
    n_scores: int
    n_clean_scores: int


def suspicions(
    benchmark: PairedBenchmark, grid: Sequence[GridModel], scores: Sequence[Score]
) -> dict[str, Suspicion]:
    """Return the suspicion of every pair by its original item's id.

    Each detector counts once for each model, by the first of its rules that has per-item values.
    Ties share their mean place.
    """
    of_item = {pair.perturbed.id: pair.original.id for pair in benchmark.pairs}
    models = {model.fingerprint: model for model in grid}
    taken: set[tuple[str, str]] = set()
    places: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
    for score in scores:
        who = (score.detector, score.model_fingerprint)
        if score.model_fingerprint not in models or not score.per_item or who in taken:
            continue
        taken.add(who)
        values = np.array(list(score.per_item.values())) * (1 if score.direction == "rises" else -1)
        ranks = (rankdata(values) - 0.5) / len(values)
        mine = places[models[score.model_fingerprint].clean]
        for item, rank in zip(score.per_item, ranks, strict=True):
            mine.setdefault(of_item.get(item, item), []).append(float(rank))
    found = {}
    for pair in benchmark.pairs:
        dirty, clean = (places[side].get(pair.original.id, []) for side in (False, True))
        means = [sum(side) / len(side) if side else 0.5 for side in (dirty, clean)]
        found[pair.original.id] = Suspicion(means[0] - means[1], len(dirty), len(clean))
    return found
