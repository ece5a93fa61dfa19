"""Can a detector be trusted? Its answers on a grid of models whose dose is known.

A verdict is counted as it is printed; the ROC curve, beside it, ranks the models by the statistic
and asks what the best threshold could have done.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flipbench.core.randomness import generator
from flipbench.core.rates import Rate
from flipbench.core.records import Score

from ..protocol.grid import GridModel
from ..statistics.roc import Separation, separation
from .dose import Trend, rises, series_of, trend
from .external import ExternalAlarms, Key, external_alarms, key_of
from .requirements import own_reference, requirements, success

__all__ = ["Validation", "requirements", "success", "validate"]

Cells = Sequence[tuple[GridModel, Score]]


@dataclass(frozen=True)
class Validation:
    """One rule of one detector on one benchmark, on models of known dose.

    Attributes
    ----------
    separation : Separation or None
        ROC curve, AUROC and operating points; None where clean or contaminated models with a
        statistic are missing.
    untouched_alarms, finetuned_alarms, alarms : Rate
        Clean models called contaminated, among those as released, those trained on other data,
        and all; intervals of Clopper and Pearson. A model that serves as the rule's reference is
        not counted.
    power : dict of int to Rate
        Contaminated models called contaminated by dose, with Wilson's intervals; ``detected``
        whatever the dose. A verdict that is inconclusive is a miss; models that the rule does not
        apply to are not counted.
    unranked : tuple of str
        Models with a verdict that the ROC curve leaves out, as they have no statistic.
    """

    detector: str
    rule: str
    benchmark: str
    benchmark_id: str
    separation: Separation | None
    untouched_alarms: Rate
    finetuned_alarms: Rate
    alarms: Rate
    false_alarms: tuple[str, ...]
    power: dict[int, Rate]
    detected: Rate
    trend: Trend
    external_alarms: ExternalAlarms
    unranked: tuple[str, ...]


def validate(
    scores: Sequence[Score], grid: Sequence[GridModel], *, seed: int = 0
) -> list[Validation]:
    """Check every rule of every detector on every benchmark that ``scores`` name.

    Raises
    ------
    DataError
        Where the statistic of one score rises and that of another falls.

    References
    ----------
    Park et al., arXiv 2511.03774, ask for reliability and consistency. Error rates with intervals,
    clean fine-tunes and external baselines (`flipbench.evaluate.validation.external`) are
    ours.
    """
    models = {model.fingerprint: model for model in grid}
    found: dict[Key, list[tuple[GridModel, Score]]] = {}
    for score in scores:
        if score.model_fingerprint in models:
            cell = models[score.model_fingerprint], score
            found.setdefault(key_of(score), []).append(cell)
    suspects = external_alarms(scores, grid)
    return [
        _validation(cells, suspects.get(key, ExternalAlarms((), 0)), seed)
        for key, cells in found.items()
    ]


def _validation(cells: Cells, external_alarms: ExternalAlarms, seed: int) -> Validation:
    score = cells[0][1]
    purpose = f"validation of {score.detector} {score.rule}"
    cells = [(m, s) for m, s in cells if m.dose is not None]
    applied = [(m, s) for m, s in cells if s.verdict != "not_applicable" and not own_reference(s)]
    ranked = [(m, s) for m, s in applied if s.statistic is not None and not math.isnan(s.statistic)]
    up = rises([s for _, s in ranked]) if ranked else False
    clean = [(m, s) for m, s in applied if m.clean]
    doses = sorted({m.dose for m, _ in applied if m.dose})
    series = series_of(cells)
    return Validation(
        detector=score.detector,
        rule=score.rule,
        benchmark=score.benchmark,
        benchmark_id=score.benchmark_id,
        separation=separation(
            [(s.statistic or 0.0) * (1 if up else -1) for _, s in ranked],
            [m.contaminated for m, _ in ranked],
            [m.cluster for m, _ in ranked],
            generator(seed, score.benchmark_id, purpose),
        )
        if ranked
        else None,
        untouched_alarms=Rate.exact(*_flagged((m, s) for m, s in clean if not m.clean_finetune)),
        finetuned_alarms=Rate.exact(*_flagged((m, s) for m, s in clean if m.clean_finetune)),
        alarms=Rate.exact(*_flagged(clean)),
        false_alarms=tuple(m.name for m, s in clean if s.verdict == "contaminated"),
        power={
            dose: Rate.wilson(*_flagged((m, s) for m, s in applied if m.dose == dose))
            for dose in doses
        },
        detected=Rate.wilson(*_flagged((m, s) for m, s in applied if m.contaminated)),
        trend=trend(series, up, generator(seed, score.benchmark_id, f"{purpose}, trend")),
        external_alarms=external_alarms,
        unranked=tuple(m.name for m, s in applied if (m, s) not in ranked),
    )


def _flagged(cells: Iterable[tuple[GridModel, Score]]) -> tuple[int, int, int]:
    """Return how many are called contaminated, of how many, and of how many lineages."""
    judged = list(cells)
    verdicts = [score.verdict for _, score in judged]
    n_clusters = len({model.cluster for model, _ in judged})
    return verdicts.count("contaminated"), len(verdicts), n_clusters
