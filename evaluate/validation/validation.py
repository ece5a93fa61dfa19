"""Can a detector be trusted? Its error rates on a grid of models of known dose.

Rates count the verdicts as reported; the ROC curve ranks the models by the statistic and shows
what the best threshold could have achieved. A rule that flags an external model, which cannot have
seen the benchmark, is wrong; and several tests of a model flag more clean ones than one does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from flipbench.core.randomness import generator
from flipbench.core.records import Score

from ..protocol import rules
from ..protocol.grid import KINDS, GridModel, Kind
from ..statistics.design_effect import ClusteredRate, clustered_rate
from ..statistics.paired import adjust_p_values
from ..statistics.roc import Separation, separation
from .dose import Cells, Trend, rises, series_of, trend, untestable
from .requirements import own_reference

Key = tuple[str, str, str]


@dataclass(frozen=True)
class ExternalAlarms:
    """A rule's verdicts on models that cannot have seen the benchmark.

    Attributes
    ----------
    flagged : tuple of str
        Names of the external models that the rule calls contaminated.
    n : int
        Number of external models that the rule was applied to.
    alpha : float
        Level of the rule's test.
    """

    flagged: tuple[str, ...]
    n: int
    alpha: float = rules.ALPHA

    @property
    def suspected(self) -> bool:
        """Whether an external model is flagged: then no verdict of the rule can be trusted."""
        return bool(self.flagged)

    def by_chance(self, level: float | None = None) -> float:
        """Return the probability of at least this many false alarms of ``n`` independent verdicts.

        Parameters
        ----------
        level : float, optional
            Probability that the rule flags a clean model; ``alpha`` by default.

        Examples
        --------
        >>> alarms = ExternalAlarms(("blip2",), 3)
        >>> round(alarms.by_chance(), 4), alarms.by_chance(0.5)
        (0.1426, 0.875)
        """
        level = self.alpha if level is None else level
        return float(stats.binom.sf(len(self.flagged) - 1, self.n, level)) if self.n else 1.0


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


@dataclass(frozen=True)
class FamilyWise:
    """Models that at least one of several tests calls contaminated.

    Attributes
    ----------
    n_tests : int
        The most tests of one model.
    detected, alarms : ClusteredRate
        Of the contaminated and of the clean models, each test at its own level.
    holm_detected, holm_alarms : ClusteredRate
        The same with Holm's correction for the number of tests of that model.
    holm_alarms_by : dict of str to int
        Clean models that each detector still flags: it reacts to something else, not by chance.
    """

    n_tests: int
    detected: ClusteredRate
    alarms: ClusteredRate
    holm_detected: ClusteredRate
    holm_alarms: ClusteredRate
    holm_alarms_by: dict[str, int]


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
    clean fine-tunes and external models are ours.
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
    purpose = f"validation of {score.detector} {score.rule}, trend"
    cells = [(m, s) for m, s in cells if m.dose is not None]
    applied = [(m, s) for m, s in cells if s.verdict != "not_applicable" and not own_reference(s)]
    ranked = [(m, s) for m, s in applied if s.statistic is not None and not math.isnan(s.statistic)]
    up = rises([s for _, s in ranked]) if ranked else False
    clean = [(m, s) for m, s in applied if m.clean]
    contaminated = [(m, s) for m, s in applied if m.contaminated]
    doses = sorted({m.dose for m, _ in contaminated if m.dose})
    kinds = {m.kind for m, _ in contaminated}
    not_moving = untestable([s for _, s in cells])
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
        detected=_flagged(contaminated),
        trend=trend(
            [] if not_moving else series_of(cells), up, generator(seed, score.benchmark_id, purpose)
        ),
        external_alarms=external_alarms,
        unranked=tuple(m.name for m, s in applied if (m, s) not in ranked),
        by_kind={
            kind: _flagged((m, s) for m, s in contaminated if m.kind == kind)
            for kind in KINDS
            if kind in kinds
        },
    )


def external_alarms(
    scores: Sequence[Score], grid: Sequence[GridModel]
) -> dict[Key, ExternalAlarms]:
    """Return each rule's alarms on the external models, by (detector, rule, benchmark id).

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, sections 4.4, 4.7 and 4.10, with BLIP-2 and InstructBLIP as
    external models of medical benchmarks: one such model at the same level is enough to distrust
    all verdicts. Differs from the paper in stating how likely that is by chance.
    """
    external = {model.fingerprint: model.name for model in grid if model.external}
    applied: dict[Key, list[Score]] = {}
    for score in scores:
        if score.model_fingerprint in external and score.verdict != "not_applicable":
            applied.setdefault(key_of(score), []).append(score)

    def is_alarm(score: Score) -> bool:
        """Return whether a rule flags a model, or would if a reference were not missing."""
        small = score.p_value is not None and score.p_value <= score.alpha
        return score.verdict == "contaminated" or (score.lacks_reference and small)

    return {
        key: ExternalAlarms(
            tuple(external[s.model_fingerprint] for s in of_rule if is_alarm(s)),
            len(of_rule),
            max(s.alpha for s in of_rule),
        )
        for key, of_rule in applied.items()
    }


def family_wise(
    scores: Sequence[Score], grid: Sequence[GridModel], tests: Mapping[str, str]
) -> FamilyWise | None:
    """Return how often at least one test flags a model; None without two tests of one model.

    Parameters
    ----------
    tests : mapping of str to str
        Detector to its rule; a score without a p-value is left out.
    """
    by_model: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        is_test = score.p_value is not None and tests.get(score.detector) == score.rule
        if is_test and score.verdict in ("contaminated", "not_detected"):
            by_model.setdefault((score.model_fingerprint, score.benchmark_id), []).append(score)
    n_tests = max(map(len, by_model.values()), default=0)
    if n_tests < 2:
        return None
    models = {model.fingerprint: model for model in grid if model.dose is not None}
    plain, holm = list[tuple[GridModel, bool]](), list[tuple[GridModel, bool]]()
    alarms_by: Counter[str] = Counter()
    for (fingerprint, _), of_model in by_model.items():
        if (model := models.get(fingerprint)) is None:
            continue
        adjusted = adjust_p_values([s.p_value for s in of_model if s.p_value is not None])
        flagged = [s for s in of_model if s.verdict == "contaminated"]
        p_by_id = {s.id: p for s, p in zip(of_model, adjusted, strict=True)}
        significant = [s for s in flagged if p_by_id[s.id] <= s.alpha]
        plain.append((model, bool(flagged)))
        holm.append((model, bool(significant)))
        if model.clean:
            alarms_by.update(s.detector for s in significant)

    def rates(flags: list[tuple[GridModel, bool]]) -> tuple[ClusteredRate, ClusteredRate]:
        detected = _rate_of((m, flag) for m, flag in flags if m.contaminated)
        return detected, _rate_of(((m, flag) for m, flag in flags if m.clean), exact=True)

    return FamilyWise(n_tests, *rates(plain), *rates(holm), dict(alarms_by.most_common()))


def key_of(score: Score) -> Key:
    """Return detector, rule and benchmark id."""
    return score.detector, score.rule, score.benchmark_id


def _rate_of(flags: Iterable[tuple[GridModel, bool]], *, exact: bool = False) -> ClusteredRate:
    """Return the rate of flagged models, whose lineages are the clusters."""
    by_cluster: dict[str, list[bool]] = {}
    for model, flag in flags:
        by_cluster.setdefault(model.cluster, []).append(flag)
    return clustered_rate([(sum(x), len(x)) for x in by_cluster.values()], exact=exact)


def _flagged(cells: Iterable[tuple[GridModel, Score]], *, exact: bool = False) -> ClusteredRate:
    return _rate_of(((m, s.verdict == "contaminated") for m, s in cells), exact=exact)
