"""Can a detector be trusted? Its error rates on a grid of models of known dose.

Rates count the verdicts as reported; the ROC curve ranks the models by the statistic and shows
what the best threshold could have achieved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flipbench.core.randomness import generator
from flipbench.core.records import Score

from ..protocol.grid import KINDS, GridModel, Kind
from ..statistics.design_effect import ClusteredRate, clustered_rate
from ..statistics.roc import Separation, separation
from .dose import Cells, Trend, rises, series_of, trend
from .external import ExternalAlarms, Key, external_alarms, key_of
from .requirements import own_reference
from .testable import untestable


@dataclass(frozen=True)
class Validation:
    """One rule of one detector on one benchmark, on models of known dose.

    Attributes
    ----------
    separation : Separation or None
        ROC curve, AUROC and operating points; None without both clean and contaminated models
        that have a statistic, and if the statistic is untestable.
    untestable : str
        Why these models cannot test the statistic; then there is no trend either.
    untouched_alarms, finetuned_alarms, alarms : ClusteredRate
        Clean models called contaminated, among those as released, those trained on other data,
        and all, with Clopper-Pearson intervals. The rule's own reference is not counted.
    power : dict of int to ClusteredRate
        Contaminated models called contaminated, by dose, with Wilson intervals; ``detected`` over
        all doses. An inconclusive verdict is a miss; models to which the rule does not apply are
        not counted.
    by_kind : dict of str to ClusteredRate
        Contaminated models called contaminated, by kind of contamination where it is known.
    unranked : tuple of str
        Models with a verdict but no statistic, which the ROC curve leaves out.
    """

    detector: str
    rule: str
    benchmark: str
    benchmark_id: str
    separation: Separation | None
    untestable: str
    untouched_alarms: ClusteredRate
    finetuned_alarms: ClusteredRate
    alarms: ClusteredRate
    power: dict[int, ClusteredRate]
    detected: ClusteredRate
    trend: Trend
    external_alarms: ExternalAlarms
    unranked: tuple[str, ...]
    by_kind: dict[Kind, ClusteredRate]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of contamination among the contaminated models, as far as they are known."""
        return tuple(self.by_kind)

    @property
    def wrong_direction(self) -> bool:
        """Whether contaminated models look less suspicious: the pooled interval is below 0.5."""
        return self.separation is not None and self.separation.pooled.high < 0.5


def validate(
    scores: Sequence[Score], grid: Sequence[GridModel], *, seed: int = 0
) -> list[Validation]:
    """Check every rule of every detector on every benchmark in ``scores``.

    Raises
    ------
    DataError
        If the statistic rises in some scores of a rule and falls in others.

    References
    ----------
    Park et al., arXiv 2511.03774, require reliability and consistency. Error rates with intervals,
    clean fine-tunes and external models (`flipbench.evaluate.validation.external`) are ours.
    """
    models = {model.fingerprint: model for model in grid}
    by_rule: dict[Key, list[tuple[GridModel, Score]]] = {}
    for score in scores:
        if score.model_fingerprint in models:
            cell = models[score.model_fingerprint], score
            by_rule.setdefault(key_of(score), []).append(cell)
    alarms = external_alarms(scores, grid)
    return [
        _validation(cells, alarms.get(key, ExternalAlarms((), 0)), seed)
        for key, cells in by_rule.items()
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
    not_moving = untestable([s for _, s in cells])
    series = [] if not_moving else series_of(cells)
    kinds = {m.kind for m, _ in applied if m.contaminated}
    return Validation(
        detector=score.detector,
        rule=score.rule,
        benchmark=score.benchmark,
        benchmark_id=score.benchmark_id,
        separation=separation(
            [(s.statistic or 0.0) * (1 if up else -1) for _, s in ranked],
            [m.contaminated for m, _ in ranked],
            [m.cluster for m, _ in ranked],
        )
        if ranked and not not_moving
        else None,
        untestable=not_moving,
        untouched_alarms=_flagged(((m, s) for m, s in clean if not m.clean_finetune), exact=True),
        finetuned_alarms=_flagged(((m, s) for m, s in clean if m.clean_finetune), exact=True),
        alarms=_flagged(clean, exact=True),
        power={dose: _flagged((m, s) for m, s in applied if m.dose == dose) for dose in doses},
        detected=_flagged((m, s) for m, s in applied if m.contaminated),
        trend=trend(series, up, generator(seed, score.benchmark_id, f"{purpose}, trend")),
        external_alarms=external_alarms,
        unranked=tuple(m.name for m, s in applied if (m, s) not in ranked),
        by_kind={
            kind: _flagged((m, s) for m, s in applied if m.contaminated and m.kind == kind)
            for kind in KINDS
            if kind in kinds
        },
    )


def rate_of(flags: Iterable[tuple[GridModel, bool]], *, exact: bool = False) -> ClusteredRate:
    """Return the rate of flagged models, whose lineages are the clusters."""
    by_cluster: dict[str, list[bool]] = {}
    for model, flag in flags:
        by_cluster.setdefault(model.cluster, []).append(flag)
    return clustered_rate([(sum(x), len(x)) for x in by_cluster.values()], exact=exact)


def _flagged(cells: Iterable[tuple[GridModel, Score]], *, exact: bool = False) -> ClusteredRate:
    return rate_of(((m, s.verdict == "contaminated") for m, s in cells), exact=exact)
