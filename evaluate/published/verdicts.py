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
}
"""What a table measures → the detector and its rule from the paper."""


def judged(rows: Sequence[PublishedResult]) -> list[tuple[PublishedResult, GridModel, Score]]:
    """Return the score of each row of a trained or clean model by the paper's rule.

    The statistic is the difference of the printed figures, as a fraction: from the original or,
    for text-only accuracy, from the clean model's. Rows that need a clean model and have none in
    their table are left out, as are quantities that no detector measures.
    """
    clean = {_context(row): row for row in rows if row.clean}
    scored = [(row, _score(row, clean.get(_context(row)))) for row in rows if row.strategy]
    return [(row, _model(row), score) for row, score in scored if score is not None]


def requirements_of(rows: Sequence[PublishedResult]) -> list[Requirements]:
    """Return the requirements of each detector that has figures in the rows."""
    all_judged = judged(rows)
    grid = {model.fingerprint: model for _, model, _ in all_judged}
    results = []
    for detector, rule in DETECTOR_OF.values():
        scores = [score for _, _, score in all_judged if score.detector == detector]
        if scores:
            models = [grid[name] for name in dict.fromkeys(s.model_fingerprint for s in scores)]
            practical = not DETECTORS[detector].about.needs_clean_model(rule)
            results.append(requirements(scores, models, detector, rule, practical))
    return results


def wrong_marks(rows: Sequence[PublishedResult]) -> Iterator[tuple[PublishedResult, str]]:
    """Yield rows whose printed mark does not follow from the rule."""
    for row, model, score in judged(rows):
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
    if row.quantity not in DETECTOR_OF or row.original is None or row.perturbed is None:
        return None
    detector, rule = DETECTOR_OF[row.quantity]
    points, threshold, reference = row.perturbed - row.original, Decimal(0), ""
    direction: Direction = "falls"
    if rule == "paper":
        if clean is None or clean.original is None or clean.perturbed is None:
            return None
        reference = _model(clean).fingerprint
        if detector == "text_only_leakage":
            points, direction = row.perturbed - clean.perturbed, "rises"
        else:
            threshold = clean.perturbed - clean.original
    statistic, model = float(points) / 100, _model(row)
    return Score(
        detector=detector,
        rule=rule,
        model=model.name,
        model_fingerprint=model.fingerprint,
        benchmark=row.bench,
        benchmark_id=row.bench,
        reference_fingerprint=reference,
        statistic=statistic,
        direction=direction,
        verdict=rules.beyond(statistic, float(threshold) / 100, direction),
        n=row.n_original or 0,
    )
