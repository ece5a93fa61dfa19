"""The scores of several models on the same items, and their readers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from flipbench.benchmarks.tables import NumberedRow, check_columns, numbered_rows
from flipbench.core.errors import DataError, nearest

Array = NDArray[np.float64]
Covariate = NDArray[Any]

COVARIATES = (
    "answer_tokens",
    "question_words",
    "answer_type",
    "category",
    "content_type",
    "image",
    "source",
)
"""Columns of a wide file that are covariates of the items unless others are named."""
MISSING = ("", "nan", "na", "none")
"""How a file writes, in any case, that a score was not measured."""


@dataclass(frozen=True)
class Cohort:
    """The scores of several models on one benchmark.

    Attributes
    ----------
    benchmark : str
    item_ids : list of str
        In release order.
    models : list of str
    external : frozenset of str
        The models that cannot have seen the benchmark.
    scores : ndarray of float, shape (n_items, n_models)
        Larger = more familiar; NaN = not measured. Scores may be in nats (log-likelihoods) or
        without a unit (Min-K++).
    covariates : dict of str to ndarray, shape (n_items,)
        Numbers, or text for categories.

    Raises
    ------
    DataError
        If an item or model appears twice, there are fewer than two of them, a model has no score or
        the same score for every item, a score is infinite, an external model is unknown, or the
        shapes differ.
    """

    benchmark: str
    item_ids: list[str]
    models: list[str]
    external: frozenset[str]
    scores: Array
    covariates: dict[str, Covariate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        place = f"cohort {self.benchmark!r}"
        for noun, names in (("item", self.item_ids), ("model", self.models)):
            repeated_names = [name for name, n in Counter(names).items() if n > 1]
            if repeated_names:
                raise DataError(
                    f"{place}: {noun} {repeated_names[0]!r} appears twice; give each one once"
                )
        if len(self.models) < 2:
            raise DataError(f"{place}: a comparison needs at least 2 models; add scores of others")
        if self.scores.shape != (len(self.item_ids), len(self.models)):
            raise DataError(
                f"{place}: scores have shape {self.scores.shape} for {len(self.item_ids)} items and"
                f" {len(self.models)} models"
            )
        if len(self.item_ids) < 2:
            raise DataError(f"{place}: {len(self.item_ids)} items; a comparison needs at least 2")
        for name in sorted(self.external - set(self.models)):
            guess = nearest(name, self.models)
            raise DataError(f"{place}: there is no external model {name!r}{guess}")
        for name, values in self.covariates.items():
            if values.shape != (len(self.item_ids),):
                raise DataError(f"{place}: covariate {name!r} does not have one value per item")
        for column, model in enumerate(self.models):
            self._check_scores(self.scores[:, column], f"{place}, model {model!r}")

    def _check_scores(self, scores: Array, place: str) -> None:
        values = scores[~np.isnan(scores)]
        if len(values) == 0:
            raise DataError(f"{place}: no item has a score; leave the model out")
        if not np.isfinite(values).all():
            item = self.item_ids[int(np.flatnonzero(np.isinf(scores))[0])]
            raise DataError(f"{place}: the score of item {item!r} is infinite")
        if (values == values[0]).all():
            raise DataError(
                f"{place}: all {len(values)} items have the score {values[0]:g}, so none stands"
                " out; leave the model out"
            )

    def missing(self) -> dict[str, list[str]]:
        """Return, by model, the ids of the items that it has no score for."""
        return {
            model: [id for id, absent in zip(self.item_ids, column, strict=True) if absent]
            for model, column in zip(self.models, np.isnan(self.scores).T, strict=True)
            if column.any()
        }

    def complete(self) -> NDArray[np.bool_]:
        """Return which items every model has a score for, shape (n_items,)."""
        return np.asarray(~np.isnan(self.scores).any(axis=1))


def strata_of(values: Covariate, n_bins: int = 10) -> NDArray[np.int64]:
    """Return the stratum of each item, shape (N,): its category, or the bin of its number.

    Numbers with more than ``n_bins`` distinct values are divided at their quantiles; a missing
    value (NaN or empty text) is a stratum of its own.

    >>> strata_of(np.array(["open", "closed", "open"])).tolist()
    [1, 0, 1]
    >>> strata_of(np.array([1.0, 9.0, 2.0, 8.0]), n_bins=2).tolist()
    [0, 1, 0, 1]
    """
    if np.issubdtype(values.dtype, np.number):
        numbers = values.astype(float)
        finite = numbers[~np.isnan(numbers)]
        if len(np.unique(finite)) > n_bins:
            edges = np.quantile(finite, np.arange(1, n_bins) / n_bins)
            binned = np.searchsorted(edges, numbers, side="left").astype(float)
            values = np.where(np.isnan(numbers), np.nan, binned)
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def residuals(values: Array, covariates: Sequence[Covariate]) -> Array:
    """Return the ranks of ``values`` minus what the covariates predict of them, shape (N,).

    Least squares on the ranks of numbers and an indicator of each category, so the result is zero
    on average within every category.

    Raises
    ------
    ValueError
        If a number is missing.
    """
    columns = [np.ones(len(values))]
    for covariate in covariates:
        if np.issubdtype(covariate.dtype, np.number):
            if np.isnan(covariate.astype(float)).any():
                raise ValueError("a covariate has missing values")
            columns.append(stats.rankdata(covariate) / len(values))
        else:
            stratum = strata_of(covariate)
            columns += [(stratum == s).astype(float) for s in range(1, int(stratum.max()) + 1)]
    design = np.stack(columns, axis=1)
    ranks = stats.rankdata(values)
    fitted = design @ np.linalg.lstsq(design, ranks, rcond=None)[0]
    return np.asarray(np.round(ranks - fitted, 6))  # equal values stay equal


def read_cohort(
    path: Path,
    *,
    benchmark: str = "",
    external: Collection[str] = (),
    covariates: Sequence[str] = COVARIATES,
) -> Cohort:
    """Read the scores of several models from a CSV file.

    Either *long*: columns ``item_id``, ``model`` and ``score``; every other column is a covariate,
    with one value per item. Or *wide*: ``item_id``, the ``covariates`` that there are, and one
    column of scores per model. The rows are in release order. An empty cell is a score that was
    not measured.

    Raises
    ------
    DataError
        If the file is not readable or not a cohort; the message names line and column.
    """
    header, rows = numbered_rows(path)
    check_columns(["item_id"], header, str(path))
    if "model" in header:
        check_columns(["score"], header, str(path))
        ids, models, scores, texts = _long(path, rows, header)
    else:
        models = [name for name in header if name != "item_id" and name not in covariates]
        ids = _unique_ids(path, rows)
        scores = [[_score(path, line, row, model) for model in models] for line, row in rows]
        names = [name for name in header if name in covariates]
        texts = {name: [row[name].strip() for _, row in rows] for name in names}
    try:
        return Cohort(
            benchmark=benchmark or path.stem,
            item_ids=ids,
            models=models,
            external=frozenset(external),
            scores=np.array(scores, dtype=float).reshape(len(ids), len(models)),
            covariates={name: _numbers_or_text(values) for name, values in texts.items()},
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


_Rows = Sequence[NumberedRow]


def _long(
    path: Path, rows: _Rows, header: Sequence[str]
) -> tuple[list[str], list[str], list[list[float]], dict[str, list[str]]]:
    names = [name for name in header if name not in ("item_id", "model", "score")]
    scores: dict[str, dict[str, float]] = {}
    first_rows: dict[str, tuple[int, dict[str, str]]] = {}
    last_items: dict[str, str] = {}
    place: dict[str, int] = {}
    for line, row in rows:
        item, model = row["item_id"].strip(), row["model"].strip()
        of_model = scores.setdefault(model, {})
        if item in of_model:
            raise DataError(f"{path}, line {line}: item {item!r} of model {model!r} appears twice")
        of_model[item] = _score(path, line, row, "score")
        cells = {name: row[name].strip() for name in names}
        first_line, first_cells = first_rows.setdefault(item, (line, cells))
        for name in names:
            if cells[name] != first_cells[name]:
                raise DataError(
                    f"{path}, line {line}, column {name!r}: {cells[name]!r} for item {item!r}, but"
                    f" {first_cells[name]!r} in line {first_line}; a covariate has one value per"
                    " item"
                )
        previous = last_items.get(model)
        if place.setdefault(item, len(place)) < (place[previous] if previous else 0):
            raise DataError(
                f"{path}, line {line}: model {model!r} has item {item!r} after {previous!r}, the"
                " models above have it before; sort every model's rows in release order, with an"
                " empty score where there is none"
            )
        last_items[model] = item
    table = [[of_model.get(item, math.nan) for of_model in scores.values()] for item in first_rows]
    texts = {name: [cells[name] for _, cells in first_rows.values()] for name in names}
    return list(first_rows), list(scores), table, texts


def _unique_ids(path: Path, rows: _Rows) -> list[str]:
    lines: dict[str, int] = {}
    for line, row in rows:
        item = row["item_id"].strip()
        if item in lines:
            raise DataError(f"{path}, line {line}: item {item!r} is also in line {lines[item]}")
        lines[item] = line
    return list(lines)


def _score(path: Path, line: int, row: Mapping[str, str], column: str) -> float:
    text = row[column].strip()
    if text.lower() in MISSING:
        return math.nan
    try:
        return float(text)
    except ValueError as error:
        raise DataError(
            f"{path}, line {line}, column {column!r}: {text!r} is not a score; a column of the"
            " items' own is named among the covariates"
        ) from error


def _numbers_or_text(texts: Sequence[str]) -> Covariate:
    """Return numbers if every text that is there is one, else the texts."""
    try:
        return np.array([float(text) if text else math.nan for text in texts])
    except ValueError:
        return np.array(texts)
