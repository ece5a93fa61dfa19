"""The three requirements of a detector, and specificity, checked on models of known dose.

`success` decides whether a single verdict is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from flipbench.core.records import Score

from ..protocol.grid import GridModel, Requirements
from .dose import is_monotone, rises, series_of, untestable


def requirements(
    scores: Sequence[Score],
    grid: Sequence[GridModel],
    detector: str,
    rule: str,
    practical: bool,
) -> Requirements:
    """Check one rule of one detector on a grid of models.

    Parameters
    ----------
    scores : sequence of Score
        Those of other detectors, rules and models are ignored. There may be several benchmarks;
        each has its own series.
    practical : bool
        Whether the rule needs no clean model; one that compared with a reference model or used a
        tuned threshold (``tuned_threshold``) is not practical either.

    Returns
    -------
    Requirements
        Reliability counts contaminated models that the rule flags; a missing score and an
        inconclusive verdict are misses, "not applicable" is not counted. Consistency counts
        series over the dose (one per benchmark, lineage and strategy, starting at the clean model)
        in which every step moves towards "contaminated", weakly (one step at least does, and none
        moves away) or strictly. Specificity counts clean models that are not flagged, except those
        that would be compared with themselves. A statistic that does not move on these models is
        ``untestable``.

    Raises
    ------
    DataError
        If the statistic rises in some scores and falls in others.

    References
    ----------
    Park et al., arXiv 2511.03774, table 1 (requirements and marks), tables 2 and 13 (numbers).
    Differs from the paper in specificity, which it does not require, and in giving fractions
    beside the marks. ``docs/papers.md`` explains how its marks are read from its tables.
    """
    models = {model.fingerprint: model for model in grid}
    cells = [
        (models[s.model_fingerprint], s)
        for s in scores
        if (s.detector, s.rule) == (detector, rule) and s.model_fingerprint in models
    ]
    several = len({score.benchmark_id for _, score in cells}) > 1

    def label(name: str, score: Score) -> str:
        return f"{name} on {score.benchmark}" if several else name

    applied = [(m, s) for m, s in cells if s.verdict != "not_applicable"]
    contaminated = [(m, s) for m, s in applied if m.contaminated]
    misses = [label(m.name, s) for m, s in contaminated if s.verdict != "contaminated"]
    with_score = {model.fingerprint for model, _ in cells}
    unscored = [
        m.name for m in grid if cells and m.contaminated and m.fingerprint not in with_score
    ]
    misses += [f"{name} (no score)" for name in unscored]
    n_contaminated = len(contaminated) + len(unscored)
    clean = [(m, s) for m, s in applied if m.clean and not own_reference(s)]
    alarms = [label(m.name, s) for m, s in clean if s.verdict == "contaminated"]
    series = series_of(cells)
    up = rises([s for _, s in cells]) if series else False
    weak = [line.name for line in series if is_monotone(line, up)]
    strict = [line.name for line in series if is_monotone(line, up, strict=True)]
    return Requirements(
        detector=detector,
        rule=rule,
        practical=practical
        and not any(s.reference_fingerprint or s.tuned_threshold for _, s in cells),
        reliability=(n_contaminated - len(misses), n_contaminated),
        misses=tuple(misses),
        consistency_weak=(len(weak), len(series)),
        consistency_strict=(len(strict), len(series)),
        violations=tuple(line.name for line in series if line.name not in weak),
        specificity=(len(clean) - len(alarms), len(clean)),
        false_alarms=tuple(alarms),
        untestable=untestable([s for _, s in cells]),
    )


def success(score: Score, model: GridModel) -> bool | None:
    """Return whether a verdict is right; None without a verdict or if the truth is unknown.

    Under the sign rule, the paper counts a clean model as a success only if its gap is above 0: a
    gap of 0 is neither contamination nor a success.
    """
    unjudged = score.verdict in ("inconclusive", "not_applicable") or own_reference(score)
    if unjudged or model.dose is None:
        return None
    if model.clean and score.rule == "sign":
        sign = -1 if score.direction == "rises" else 1
        return score.statistic is not None and sign * score.statistic > 0
    return (score.verdict == "contaminated") != model.clean


def own_reference(score: Score) -> bool:
    """Return whether the model was compared with itself."""
    return score.reference_fingerprint == score.model_fingerprint
