"""The three requirements of a detector, and specificity, checked on models of known dose.

Here is also the one function that says whether a verdict is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from flipbench.core.records import Score

from ..protocol.grid import GridModel, Requirements
from .dose import is_monotone, rises, series_of


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
        Those of other detectors, rules and models are passed over. Several benchmarks may be
        among them; each makes its own cells and series.
    practical : bool
        The detector's own claim; a rule that compared with a reference model, or whose threshold
        was tuned (``tuned_threshold``), is not practical.

    Returns
    -------
    Requirements
        Reliability counts contaminated models that the rule flags; a model without a score and
        an inconclusive verdict are misses, "not applicable" is not counted. Consistency counts
        series over the dose (one for each benchmark, family and strategy, the family's clean
        model first) whose statistic moves towards "contaminated" all along, weakly and strictly.
        Specificity counts clean models that are not flagged, without those that a rule would
        compare with themselves.

    Raises
    ------
    DataError
        Where the statistic of one score rises and that of another falls.

    References
    ----------
    Park et al., arXiv 2511.03774, table 1 (requirements and marks), tables 2 and 13 (numbers).
    Differs from the paper in specificity, which it does not ask for, and in fractions beside
    marks. How its marks are read off its tables: ``docs/papers.md``.
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
    dirty = [(m, s) for m, s in applied if m.contaminated]
    misses = [label(m.name, s) for m, s in dirty if s.verdict != "contaminated"]
    scored = {model.fingerprint for model, _ in cells}
    unscored = [m.name for m in grid if m.contaminated and m.fingerprint not in scored]
    misses += [f"{name} (no score)" for name in unscored] if cells else []
    n_dirty = len(dirty) + (len(unscored) if cells else 0)
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
        reliability=(n_dirty - len(misses), n_dirty),
        misses=tuple(misses),
        consistency_weak=(len(weak), len(series)),
        consistency_strict=(len(strict), len(series)),
        violations=tuple(line.name for line in series if line.name not in weak),
        specificity=(len(clean) - len(alarms), len(clean)),
        false_alarms=tuple(alarms),
    )


def success(score: Score, model: GridModel) -> bool | None:
    """Return whether a verdict is right; None where there is none, or none that could be wrong.

    The paper marks a clean model's cell as right under the sign rule only where its gap is above
    0: a gap of 0 is neither contamination nor a success.
    """
    unjudged = score.verdict in ("inconclusive", "not_applicable") or own_reference(score)
    if unjudged or model.dose is None:
        return None
    if model.clean and score.rule == "sign":
        rises = score.direction == "rises"
        return score.statistic is not None and (
            score.statistic < 0 if rises else score.statistic > 0
        )
    return (score.verdict == "contaminated") != model.clean


def own_reference(score: Score) -> bool:
    """Return whether a model was compared with itself."""
    return score.reference_fingerprint == score.model_fingerprint
