"""The three requirements of a detector, and specificity, checked on models of known dose."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flipbench.errors import DataError
from flipbench.evaluate.grid import GridModel, Requirements
from flipbench.records import Score


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
        The detector's own claim; a rule that compared with a reference model is not practical.

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
        Where scores do not say in ``details["direction"]`` which way their statistic moves.

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
    dirty = [(m, s) for m, s in applied if not m.clean]
    misses = [label(m.name, s) for m, s in dirty if s.verdict != "contaminated"]
    scored = {model.fingerprint for model, _ in cells}
    unscored = [m.name for m in grid if not m.clean and m.fingerprint not in scored]
    misses += [f"{name} (no score)" for name in unscored] if cells else []
    n_dirty = len(dirty) + (len(unscored) if cells else 0)
    clean = [(m, s) for m, s in applied if m.clean and not _own_reference(s)]
    alarms = [label(m.name, s) for m, s in clean if s.verdict == "contaminated"]
    series = _series(cells)
    rises = _rises(detector, [s for _, s in cells]) if series else False
    weak = [name for name, values in series.items() if _monotone(values, rises)]
    strict = [name for name, values in series.items() if _monotone(values, rises, strict=True)]
    return Requirements(
        detector=detector,
        rule=rule,
        practical=practical and not any(s.reference_fingerprint for _, s in cells),
        reliability=(n_dirty - len(misses), n_dirty),
        misses=tuple(misses),
        consistency_weak=(len(weak), len(series)),
        consistency_strict=(len(strict), len(series)),
        violations=tuple(name for name in series if name not in weak),
        specificity=(len(clean) - len(alarms), len(clean)),
        false_alarms=tuple(alarms),
    )


def success(score: Score, model: GridModel) -> bool | None:
    """Return whether a verdict is right; None where there is none, or none that could be wrong.

    The paper marks a clean model's cell as right under the sign rule only where its gap is above
    0: a gap of 0 is neither contamination nor a success.
    """
    if score.verdict in ("inconclusive", "not_applicable") or _own_reference(score):
        return None
    if model.clean and score.rule == "sign":
        rises = score.details.get("direction") == "rises"
        return score.statistic is not None and (
            score.statistic < 0 if rises else score.statistic > 0
        )
    return (score.verdict == "contaminated") != model.clean


def _own_reference(score: Score) -> bool:
    return score.reference_fingerprint == score.model_fingerprint


def _rises(detector: str, scores: Sequence[Score]) -> bool:
    found = {score.details.get("direction") for score in scores}
    if len(found) != 1 or not found <= {"falls", "rises"}:
        raise DataError(
            f"{detector}: the scores must say in details['direction'] whether a contaminated"
            f" model's statistic 'falls' or 'rises', not {sorted(map(str, found))}"
        )
    return found == {"rises"}


def _series(cells: Sequence[tuple[GridModel, Score]]) -> dict[str, list[float]]:
    """Return the statistics of each series by rising dose, the clean model's first.

    Equal doses are averaged. A clean model without a statistic that served as reference stands
    at 0, the difference from itself. A series of one dose says nothing and is left out.
    """
    several = len({score.benchmark_id for _, score in cells}) > 1
    found: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    names: dict[tuple[str, str, str], str] = {}
    for model, score in cells:
        if model.clean:
            continue
        key = (score.benchmark_id, model.family, model.strategy)
        on = f" on {score.benchmark}" if several else ""
        names[key] = f"{model.family}, {model.strategy}{on}"
        doses = found.setdefault(key, {})
        if score.statistic is not None:
            doses.setdefault(model.dose, []).append(score.statistic)
    references = {(score.benchmark_id, score.reference_fingerprint) for _, score in cells}
    for model, score in cells:
        if not model.clean:
            continue
        zero = 0.0 if (score.benchmark_id, model.fingerprint) in references else None
        value = zero if score.statistic is None else score.statistic
        for (benchmark, family, _), doses in found.items():
            if (benchmark, family) == (score.benchmark_id, model.family) and value is not None:
                doses.setdefault(0, []).append(value)
    return {
        names[key]: [sum(doses[dose]) / len(doses[dose]) for dose in sorted(doses)]
        for key, doses in found.items()
        if len(doses) > 1
    }


def _monotone(values: Sequence[float], rises: bool, *, strict: bool = False) -> bool:
    steps = [(after - before) * (1 if rises else -1) for before, after in pairwise(values)]
    return all(step > 0 if strict else step >= 0 for step in steps)
