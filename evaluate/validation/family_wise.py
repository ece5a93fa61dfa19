"""What asking several detectors about one model costs in false alarms, and Holm's remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flipbench.core.records import Score

from ..protocol.grid import GridModel
from ..statistics.design_effect import ClusteredRate
from ..statistics.paired import adjust_p_values
from .validation import rate_of


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
        if score.p_value is not None and tests.get(score.detector) == score.rule:
            if score.verdict in ("contaminated", "not_detected"):
                by_model.setdefault((score.model_fingerprint, score.benchmark_id), []).append(score)
    n_tests = max(map(len, by_model.values()), default=0)
    if n_tests < 2:
        return None
    models = {model.fingerprint: model for model in grid if model.dose is not None}
    plain: list[tuple[GridModel, bool]] = []
    holm: list[tuple[GridModel, bool]] = []
    alarms_by: Counter[str] = Counter()
    for (fingerprint, _), of_model in by_model.items():
        if (model := models.get(fingerprint)) is None:
            continue
        adjusted = adjust_p_values([s.p_value for s in of_model if s.p_value is not None])
        flags = [s.verdict == "contaminated" for s in of_model]
        kept = [f and p <= s.alpha for f, p, s in zip(flags, adjusted, of_model, strict=True)]
        plain.append((model, any(flags)))
        holm.append((model, any(kept)))
        if model.clean:
            alarms_by.update(s.detector for s, flag in zip(of_model, kept, strict=True) if flag)

    def rates(flagged: list[tuple[GridModel, bool]]) -> tuple[ClusteredRate, ClusteredRate]:
        dirty = rate_of((m, flag) for m, flag in flagged if m.contaminated)
        return dirty, rate_of(((m, flag) for m, flag in flagged if m.clean), exact=True)

    return FamilyWise(n_tests, *rates(plain), *rates(holm), dict(alarms_by.most_common()))
