"""Scores of many models from answers that exist already, to validate detectors on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flipbench.benchmarks.tables import Row, read_rows
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Score, Source
from flipbench.models.engine import Answers

from ..protocol.grid import reference_of
from ..scoring.comparison import (
    Comparison,
    Condition,
    Settings,
    mcnemar_score,
    relative_score,
)
from .gap import PredictedPairs, gap_of_predictions
from .models_table import SIDES, ItemValues, ListedModel, item_values
from .prediction import PredictionFile, listing
from .read import ReadOptions, read_predictions
from .scoring import Scoring

LIKELIHOOD = "log_likelihood"
"""How much likelier the right answers to the original items are than for the clean model."""


def scores_of_models(
    models: Sequence[ListedModel],
    items: tuple[Sequence[Row], str] | None = None,
    *,
    benchmark: str,
    options: ReadOptions | None = None,
    scoring: Scoring = "auto",
    settings: Settings | None = None,
) -> tuple[PredictedPairs, list[Score]]:
    """Return the benchmark that the models share, and the scores of all models.

    Predictions give the rules of perturbation_gap, and old_answer_attraction if they list the
    options; log-probabilities of the right answers give
    confidence_gap or, if there are none for the perturbed items, `LIKELIHOOD`. A rule that compares
    with a clean model takes the untouched clean model of the same family and lineage.

    Parameters
    ----------
    items : (rows, name), optional
        A long table (see `flipbench.evaluate.predictions.item_values`) in place of the files that
        ``models`` names.

    Raises
    ------
    DataError
        If a file or row cannot be read, a model has no values, or two models share no item.
    """
    settings = settings or Settings()
    values = (
        _from_long_table(models, *items)
        if items
        else {row.model.name: _from_files(row, options) for row in models}
    )
    ids = {name: _ids(model_values) for name, model_values in values.items()}
    all_ids = sorted(set().union(*ids.values()))
    pairs = PredictedPairs(benchmark, (), ImageStore(Path()), keys=tuple((i,) for i in all_ids))
    item_warnings = _item_warnings(ids)
    grid = [row.model for row in models]
    scores: list[Score] = []
    for model in grid:
        clean = reference_of(model, grid)
        own_values = values[model.name]
        clean_values = values[clean.name] if clean else None
        model_scores: list[Score] = []
        if own_values.files:
            table = gap_of_predictions(
                *own_values.files,
                model=model.name,
                benchmark=benchmark,
                scoring=scoring,
                references=[clean_values.files] if clean_values and clean_values.files else [],
                settings=settings,
            )
            model_scores += [*table.scores, *([table.attraction] if table.attraction else [])]
        answers = Answers(model.name, model.fingerprint, {})
        reference = Answers(clean.name, clean.fingerprint, {}) if clean else None
        model_scores += _log_prob_scores(
            pairs, answers, own_values, reference, clean_values, settings
        )
        for score in model_scores:
            uses_reference = bool(score.reference_fingerprint or score.rule == "relative")
            scores.append(
                score.revised(
                    model_fingerprint=model.fingerprint,
                    benchmark_id=pairs.id,
                    reference_fingerprint=clean.fingerprint if clean and uses_reference else "",
                    warnings=(*score.warnings, *item_warnings),
                )
            )
    return pairs, scores


def _from_files(row: ListedModel, options: ReadOptions | None) -> ItemValues:
    name, values = row.model.name, ItemValues()
    if row.log_probs:
        by_model = item_values(
            read_rows(row.log_probs), str(row.log_probs), model=name, marks=False
        )
        if list(by_model) != [name]:
            raise DataError(
                f"{row.log_probs}: log-probabilities of {listing(list(by_model))}, but {row.where}"
                f" names it for {name!r}; give a file of this model alone"
            )
        values = by_model[name]
    if row.original and row.perturbed:
        files = read_predictions(row.original, options), read_predictions(row.perturbed, options)
        values.files = files
    elif row.original or row.perturbed:
        side = "perturbed" if row.original else "original"
        raise DataError(f"{row.where}: {side} is empty; a gap needs predictions on both versions")
    if values.files is None and not values.log_probs:
        raise DataError(
            f"{row.where}: {name} has no values: name files in the columns original and perturbed,"
            " or logprobs, or give one long table of items"
        )
    return values


def _from_long_table(
    models: Sequence[ListedModel], rows: Sequence[Row], source: str
) -> dict[str, ItemValues]:
    by_model = item_values(rows, source)
    names = [row.model.name for row in models]
    if unknown := [name for name in by_model if name not in names]:
        raise DataError(
            f"{source}: {listing(unknown)} {'is' if len(unknown) == 1 else 'are'} not in the table"
            f" of models ({listing(names)}); add the family and dose of every model"
        )
    for row in models:
        if row.model.name not in by_model:
            raise DataError(f"{row.where}: {source} has no values of {row.model.name!r}")
    for name, values in by_model.items():
        sides = values.predictions
        if not sides:
            continue
        if absent := [side for side in SIDES if side not in sides]:
            raise DataError(
                f"{source}: {name} has no row with condition {absent[0]!r}; a gap needs both"
            )
        original, perturbed = (
            PredictionFile(
                Path(f"{source}, {name}, {side}"),
                "long",
                tuple(sides[side][item] for item in sorted(sides[side])),
            )
            for side in SIDES
        )
        values.files = original, perturbed
    return by_model


def _ids(values: ItemValues) -> set[str]:
    ids = {p.id for file in values.files or () for p in file.predictions}
    return ids.union(*(by_item for by_item in values.log_probs.values()))


def _item_warnings(ids: Mapping[str, set[str]]) -> list[str]:
    """Return a warning if the models have not answered the same items.

    Raises
    ------
    DataError
        If a model shares no item with the first.
    """
    leading_model = next(iter(ids))
    if disjoint := [name for name, model_ids in ids.items() if not model_ids & ids[leading_model]]:
        raise DataError(
            f"{leading_model} and {disjoint[0]} have no item in common"
            f" ({listing(sorted(ids[leading_model]), 3)}"
            f" against {listing(sorted(ids[disjoint[0]]), 3)}); models of one table answer one"
            " benchmark"
        )
    common = set.intersection(*ids.values())
    n_items = len(set().union(*ids.values()))
    if len(common) == n_items:
        return []
    return [
        f"the models have not answered the same items: {len(common)} of {n_items} are common to"
        " all, so differences between models are in part differences between items"
    ]


def _log_prob_scores(
    pairs: PredictedPairs,
    answers: Answers,
    values: ItemValues,
    reference: Answers | None,
    clean: ItemValues | None,
    settings: Settings,
) -> list[Score]:
    """Return the scores of log-probabilities: of both versions compared, or of the originals."""
    sides = [side for side in SIDES if side in values.log_probs]
    if not sides:
        return []
    ids = sorted({name for side in sides for name in values.log_probs[side]})

    def condition(values: ItemValues, side: str, name: str = "") -> Condition:
        by_item = values.log_probs.get(side, {})
        return Condition(name or side, [by_item.get(i) for i in ids], 0, len(ids), None)

    items = [
        Item(
            benchmark=pairs.name,
            name=name,
            question="",
            answer_text="",
            group=values.groups.get(name, ""),
            source=Source(dataset=pairs.name),
        )
        for name in ids
    ]
    conditions = [condition(values, side) for side in sides]
    comparable = clean and set(sides) <= set(clean.log_probs)
    against = [condition(clean, side) for side in sides] if clean and comparable else []
    comparison = Comparison(
        detector="confidence_gap",
        benchmark=pairs,
        answers=answers,
        items=items,
        first=conditions[0],
        second=conditions[-1],
        unit="nats",
        reference_answers=reference if against else None,
        reference=(against[0], against[1]) if len(against) == 2 else None,
        settings=settings,
        notes=("log-probabilities as given: not clipped, and not renormalised over the options",),
    )
    if len(sides) == 2:
        return [mcnemar_score(comparison, "label_swap"), relative_score(comparison)]
    side_condition = replace(against[0], name=f"{sides[0]} of the reference") if against else None
    one_side = replace(
        comparison, detector=LIKELIHOOD, first=side_condition, direction="rises", against_clean=True
    )
    return [mcnemar_score(one_side, "relative")]
