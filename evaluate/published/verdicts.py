"""Published figures judged by the detectors' own rules: verdicts, marks and requirements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from flipbench.core.records import Score

from ..detectors.registry import DETECTORS
from ..protocol import rules
from ..protocol.grid import GridModel, Requirements
from ..protocol.rules import Direction
from ..validation.requirements import requirements, success
from .tables import PublishedResult

DETECTOR_OF = {
    "perturbed": ("perturbation_gap", "sign"),
    "circular": ("circular_eval", "paper"),
    "generalised": ("choice_confusion", "sign"),
    "text_only": ("text_only_leakage", "paper"),
    "ngram_accuracy": ("ngram_accuracy", "paper"),
    "guided_prompting": ("guided_prompting", "paper"),
    "shared_likelihood": ("shared_likelihood", "paper"),
}
"""What a table measures → the detector and its rule from the paper."""
LEVEL = "p ≤ 0.05"
"""The rule of shared_likelihood in its own paper; tables compare p with the clean model's."""


def score_rows(rows: Sequence[PublishedResult]) -> list[tuple[PublishedResult, GridModel, Score]]:
    """Return the score of each row of a trained or clean model by the paper's rule.

    The statistic is the difference of the printed figures, as a fraction: from the original or,
    for text-only accuracy, from the clean model's. Rows that need a clean model and have none in
    their table are left out, as are quantities that no detector measures.
    """
    clean = {_context(row): row for row in rows if row.clean}
    trained_rows = [row for row in rows if row.strategy]
    scores = [(row, _score(row, clean.get(_context(row)))) for row in trained_rows]
    scores += [(row, _at_level(row)) for row in trained_rows]
    return [(row, _model(row), score) for row, score in scores if score is not None]


def requirements_of(rows: Sequence[PublishedResult]) -> list[Requirements]:
    """Return the requirements of each detector that has figures in the rows."""
    all_judged = score_rows(rows)
    grid = {model.fingerprint: model for _, model, _ in all_judged}
    results = []
    for detector, rule in (*DETECTOR_OF.values(), ("shared_likelihood", LEVEL)):
        scores = [s for _, _, s in all_judged if (s.detector, s.rule) == (detector, rule)]
        if scores:
            models = [grid[name] for name in dict.fromkeys(s.model_fingerprint for s in scores)]
            practical = not DETECTORS[detector].about.needs_clean_model(rule)
            results.append(requirements(scores, models, detector, rule, practical))
    return results


def wrong_marks(rows: Sequence[PublishedResult]) -> Iterator[tuple[PublishedResult, str]]:
    """Yield rows whose printed mark does not follow from the rule."""
    for row, model, score in score_rows(rows):
        mark = {True: "1", False: "0", None: ""}[success(score, model)]
        if row.mark and mark != row.mark:
            yield row, f"printed {row.mark}, but rule {score.rule!r} gives {mark or 'no mark'}"


def _context(row: PublishedResult) -> tuple[str, ...]:
    return (row.file, row.table, row.model, row.bench, row.regime, row.quantity)


def _model(row: PublishedResult) -> GridModel:
    """Return the row's model: one family for each table, model and regime."""
    family = " ".join(part for part in (row.table, row.model, row.regime) if part)
    strategy = "clean" if row.clean else row.strategy
    epoch = row.epoch or int(not row.clean)
    name = f"{family} {row.bench} {row.label}"
    return GridModel(name, name, family, strategy, epoch, epoch)


def _score(row: PublishedResult, clean: PublishedResult | None) -> Score | None:
    """Return the row's score by the rule of `DETECTOR_OF`; None if it has no figure for it."""
    if row.quantity not in DETECTOR_OF:
        return None
    detector, rule = DETECTOR_OF[row.quantity]
    direction: Direction = "falls"
    threshold = Decimal(0)
    if row.value is not None:
        if clean is None or clean.value is None:
            return None
        points = row.value - clean.value
        direction = "falls" if row.quantity == "shared_likelihood" else "rises"
    elif row.original is None or row.perturbed is None:
        return None
    elif rule == "sign":
        points, clean = row.perturbed - row.original, None
    elif clean is None or clean.original is None or clean.perturbed is None:
        return None
    elif detector == "text_only_leakage":
        points, direction = row.perturbed - clean.perturbed, "rises"
    else:
        points, threshold = row.perturbed - row.original, clean.perturbed - clean.original
    return _judge(row, detector, rule, points, threshold, direction, clean)


def _at_level(row: PublishedResult) -> Score | None:
    """Return the score of a p-value by itself: significant or not; None for another quantity."""
    if row.quantity != "shared_likelihood" or row.value is None:
        return None
    score = _judge(row, "shared_likelihood", LEVEL, row.value, Decimal(0), "falls", None)
    verdict = rules.significant(float(row.value), rules.ALPHA)
    return score.model_copy(update={"verdict": verdict})


def _judge(
    row: PublishedResult,
    detector: str,
    rule: str,
    points: Decimal,
    threshold: Decimal,
    direction: Direction,
    clean: PublishedResult | None,
) -> Score:
    model = _model(row)
    unit = 1 if row.quantity == "shared_likelihood" else 100
    statistic = float(points) / unit
    return Score(
        detector=detector,
        rule=rule,
        model=model.name,
        model_fingerprint=model.fingerprint,
        benchmark=row.bench,
        benchmark_id=row.bench,
        reference_fingerprint=_model(clean).fingerprint if clean else "",
        statistic=statistic,
        direction=direction,
        verdict=rules.beyond(statistic, float(threshold) / unit, direction),
        n=row.n_original or 0,
    )
