"""Scores of many models from answers that exist already, to validate detectors on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from .item_values import SIDES, ItemValues, item_values
from .models_table import ListedModel
from .prediction import PredictionFile, listing
from .read import ReadOptions, read_predictions
from .scoring import Scoring

LIKELIHOOD = "log_likelihood"
"""How much likelier the right answers to the original items are than for the clean model."""


@dataclass(frozen=True)
class _Values:
    """What is known of one model: predictions on both sides, and log-probabilities by side."""

    files: tuple[PredictionFile, PredictionFile] | None
    log_probs: Mapping[str, Mapping[str, float]]
    groups: Mapping[str, str]


def scores_of_models(
    listed: Sequence[ListedModel],
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
        ``listed`` names.

    Raises
    ------
    DataError
        If a file or row cannot be read, a model has no values, or two models share no item.
    """
    settings = settings or Settings()
    values = (
        _from_long_table(listed, *items)
        if items
        else {one.model.name: _from_files(one, options) for one in listed}
    )
    ids = {name: _ids(known) for name, known in values.items()}
    every = sorted(set().union(*ids.values()))
    pairs = PredictedPairs(benchmark, (), ImageStore(Path()), keys=tuple((i,) for i in every))
    differing = _differing(ids)
    grid = [one.model for one in listed]
    scores: list[Score] = []
    for model in grid:
        clean = reference_of(model, grid)
        own, other = values[model.name], values[clean.name] if clean else None
        found: list[Score] = []
        if own.files:
            table = gap_of_predictions(
                *own.files,
                model=model.name,
                benchmark=benchmark,
                scoring=scoring,
                references=[other.files] if other and other.files else [],
                settings=settings,
            )
            found += [*table.scores, *([table.attraction] if table.attraction else [])]
        answers = Answers(model.name, model.fingerprint, {})
        reference = Answers(clean.name, clean.fingerprint, {}) if clean else None
        found += _log_prob_scores(pairs, answers, own, reference, other, settings)
        for score in found:
            compared = bool(score.reference_fingerprint or score.rule == "relative")
            scores.append(
                score.revised(
                    model_fingerprint=model.fingerprint,
                    benchmark_id=pairs.id,
                    reference_fingerprint=clean.fingerprint if clean and compared else "",
                    warnings=(*score.warnings, *differing),
                )
            )
    return pairs, scores


def _from_files(one: ListedModel, options: ReadOptions | None) -> _Values:
    files = None
    if one.original and one.perturbed:
        files = read_predictions(one.original, options), read_predictions(one.perturbed, options)
    elif one.original or one.perturbed:
        side = "perturbed" if one.original else "original"
        raise DataError(f"{one.where}: {side} is empty; a gap needs predictions on both versions")
    known = ItemValues()
    if one.log_probs:
        rows = read_rows(one.log_probs)
        named = item_values(rows, str(one.log_probs), model=one.model.name, marks=False)
        if list(named) != [one.model.name]:
            raise DataError(
                f"{one.log_probs}: log-probabilities of {listing(list(named))}, but {one.where}"
                f" names it for {one.model.name!r}; give a file of this model alone"
            )
        known = named[one.model.name]
    if files is None and not known.log_probs:
        raise DataError(
            f"{one.where}: {one.model.name} has no values: name files in the columns original and"
            " perturbed, or logprobs, or give one long table of items"
        )
    return _Values(files, known.log_probs, known.groups)


def _from_long_table(
    listed: Sequence[ListedModel], rows: Sequence[Row], source: str
) -> dict[str, _Values]:
    found = item_values(rows, source)
    names = [one.model.name for one in listed]
    if unknown := [name for name in found if name not in names]:
        raise DataError(
            f"{source}: {listing(unknown)} {'is' if len(unknown) == 1 else 'are'} not in the table"
            f" of models ({listing(names)}); add the family and dose of every model"
        )
    for one in listed:
        if one.model.name not in found:
            raise DataError(f"{one.where}: {source} has no values of {one.model.name!r}")

    def values(name: str) -> _Values:
        known, files = found[name], None
        if sides := known.predictions:
            if missing := [side for side in SIDES if side not in sides]:
                raise DataError(
                    f"{source}: {name} has no row with condition {missing[0]!r}; a gap needs both"
                )
            first, second = (
                PredictionFile(
                    Path(f"{source}, {name}, {side}"),
                    "long",
                    tuple(sides[side][item] for item in sorted(sides[side])),
                )
                for side in SIDES
            )
            files = first, second
        return _Values(files, known.log_probs, known.groups)

    return {name: values(name) for name in names}


def _ids(values: _Values) -> set[str]:
    ids = {p.id for file in values.files or () for p in file.predictions}
    return ids.union(*(by_item for by_item in values.log_probs.values()))


def _differing(ids: Mapping[str, set[str]]) -> list[str]:
    """Return a warning if the models have not answered the same items.

    Raises
    ------
    DataError
        If a model shares no item with the first.
    """
    first = next(iter(ids))
    if apart := [name for name, own in ids.items() if not own & ids[first]]:
        raise DataError(
            f"{first} and {apart[0]} have no item in common ({listing(sorted(ids[first]), 3)}"
            f" against {listing(sorted(ids[apart[0]]), 3)}); models of one table answer one"
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
    own: _Values,
    reference: Answers | None,
    clean: _Values | None,
    settings: Settings,
) -> list[Score]:
    """Return the scores of log-probabilities: of both versions compared, or of the originals."""
    sides = [side for side in SIDES if side in own.log_probs]
    if not sides:
        return []
    ids = sorted({name for side in sides for name in own.log_probs[side]})

    def condition(values: _Values, side: str, name: str = "") -> Condition:
        known = values.log_probs.get(side, {})
        return Condition(name or side, [known.get(i) for i in ids], 0, len(ids), None)

    items = [
        Item(
            benchmark=pairs.name,
            name=name,
            question="",
            answer_text="",
            group=own.groups.get(name, ""),
            source=Source(dataset=pairs.name),
        )
        for name in ids
    ]
    conditions = [condition(own, side) for side in sides]
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
    first = replace(against[0], name=f"{sides[0]} of the reference") if against else None
    one_side = replace(
        comparison, detector=LIKELIHOOD, first=first, direction="rises", against_clean=True
    )
    return [mcnemar_score(one_side, "relative")]
