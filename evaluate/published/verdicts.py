"""Published figures put through the detectors' own rules: verdicts, marks and requirements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flipbench.core.records import Score

from ..detectors.registry import DETECTORS
from ..protocol import rules
from ..protocol.grid import GridModel, Requirements
from ..protocol.rules import Direction
from ..validation.validation import requirements, success
from .tables import PublishedResult

DETECTOR_OF = {
    "perturbed": ("perturbation_gap", "sign"),
    "circular": ("circular_eval", "paper"),
    "generalised": ("choice_confusion", "sign"),
    "text_only": ("text_only_leakage", "paper"),
}
"""What a table measures → the detector and the paper's rule that judges it."""


def judged(rows: Sequence[PublishedResult]) -> list[tuple[PublishedResult, GridModel, Score]]:
    """Return the score of each row of a trained or clean model by the paper's rule.

    The statistic is the difference of the printed figures, as a fraction: from the original, or
    for text-only accuracy from the clean model's. A row that needs a clean model and has none in
    its table is left out, as is one of a quantity no detector here measures.
    """
    clean = {_context(row): row for row in rows if row.clean}
    found = []
    for row in rows:
        if row.quantity not in DETECTOR_OF or row.original is None or row.perturbed is None:
            continue
        if not row.strategy:
            continue
        score = _score(row, clean.get(_context(row)))
        if score is not None:
            found.append((row, _model(row), score))
    return found


def requirements_of(rows: Sequence[PublishedResult]) -> list[Requirements]:
    """Return the requirements of each detector that the rows have figures of."""
    every = judged(rows)
    grid = list({model.fingerprint: model for _, model, _ in every}.values())
    scores = [score for _, _, score in every]
    found = []
    for detector, rule in DETECTOR_OF.values():
        mine = [score for score in scores if score.detector == detector]
        if mine:
            about = DETECTORS[detector].about
            names = {score.model_fingerprint for score in mine}
            models = [model for model in grid if model.fingerprint in names]
            found.append(requirements(mine, models, detector, rule, about.practical))
    return found


def wrong_marks(rows: Sequence[PublishedResult]) -> Iterator[tuple[PublishedResult, str]]:
    """Yield rows whose printed mark is not what the rule makes of their figures."""
    for row, model, score in judged(rows):
        found = {True: "1", False: "0", None: ""}[success(score, model)]
        if row.mark and found != row.mark:
            yield row, f"printed {row.mark}, but rule {score.rule!r} gives {found or 'no mark'}"


def _context(row: PublishedResult) -> tuple[str, ...]:
    return (row.file, row.table, row.model, row.bench, row.regime, row.quantity)


def _model(row: PublishedResult) -> GridModel:
    """Return the row's model: one family for each table, model and regime."""
    family = " ".join(part for part in (row.table, row.model, row.regime) if part)
    strategy = "clean" if row.clean else row.strategy
    epoch = row.epoch or 0
    if not row.clean and not epoch:
        epoch = 1
    name = f"{family} {row.bench} {row.label}"
    return GridModel(name, name, family, strategy, epoch, epoch)


def _score(row: PublishedResult, clean: PublishedResult | None) -> Score | None:
    assert row.original is not None and row.perturbed is not None
    detector, rule = DETECTOR_OF[row.quantity]
    gap = float(row.perturbed - row.original) / 100
    direction: Direction = "falls"
    reference = ""
    if rule == "paper":
        if clean is None or clean.original is None or clean.perturbed is None:
            return None
        reference = _model(clean).fingerprint
    if detector == "text_only_leakage":
        assert clean is not None and clean.perturbed is not None
        gap, direction = float(row.perturbed - clean.perturbed) / 100, "rises"
        verdict = rules.beyond(gap, direction=direction)
    elif rule == "paper":
        assert clean is not None and clean.perturbed is not None and clean.original is not None
        verdict = rules.beyond(gap, float(clean.perturbed - clean.original) / 100)
    else:
        verdict = rules.beyond(gap)
    model = _model(row)
    return Score(
        detector=detector,
        rule=rule,
        model=model.name,
        model_fingerprint=model.fingerprint,
        benchmark=row.bench,
        benchmark_id=row.bench,
        reference_fingerprint=reference,
        statistic=gap,
        direction=direction,
        verdict=verdict,
        n=row.n_original or 0,
    )
