"""Published tables as printed: one row per pair of cells, with all digits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from flipbench.benchmarks.tables import check_columns, numbered_rows
from flipbench.core.errors import DataError

ALIASES = {
    "table": ("table",),
    "model": ("model",),
    "bench": ("bench", "benchmark", "dataset"),
    "n": ("n", "N"),
    "regime": ("regime",),
    "strategy": ("strategy",),
    "epoch": ("epoch", "dose"),
    "original": ("orig", "original", "accuracy_original"),
    "perturbed": ("pert", "perturbed", "accuracy_perturbed"),
    "delta": ("delta_printed", "delta", "gap"),
    "value": ("value", "percent", "rate_pct"),
    "k": ("k",),
    "quantity": ("quantity",),
}

MEASURES = {
    "sl_p": "shared_likelihood",
    "shared_likelihood": "shared_likelihood",
    "gp_pct": "guided_prompting",
    "guided_prompting": "guided_prompting",
    "ng_pct": "ngram_accuracy",
    "ngram_accuracy": "ngram_accuracy",
}
"""Column of a table with one column per detector, in lower case → the detector."""

NO_COUNTS = ("shared_likelihood", "ngram_accuracy")
"""Quantities that are no k of n items: a p-value, and a mean over several places of each item."""

ACCURACY = ("accuracy", "all", "filtered", "full", "kept", "original")
"""Names of a single percentage that is the accuracy on the original items, or on some of them."""


@dataclass(frozen=True)
class PublishedResult:
    """A row of a published table; percentages as printed, with all digits.

    Attributes
    ----------
    line, file : int, str
        Where the row is.
    n_original, n_perturbed : int or None
        Number of items behind each percentage: ``n`` of the row, or ``765/440``.
    original, perturbed, delta, value : Decimal or None
        In percent and percentage points; ``value`` is a single percentage, ``k`` its count if the
        table has one.
    quantity : str
        What is measured; "perturbed" (a single percentage: "accuracy") if the table does not state
        it. "shared_likelihood" is a p-value, all others are percentages.
    mark : str
        A printed verdict: 1 (right), 0 (wrong) or empty.
    """

    line: int
    file: str = ""
    table: str = ""
    model: str = ""
    bench: str = ""
    regime: str = ""
    strategy: str = ""
    epoch: int | None = None
    n_original: int | None = None
    n_perturbed: int | None = None
    original: Decimal | None = None
    perturbed: Decimal | None = None
    delta: Decimal | None = None
    value: Decimal | None = None
    k: int | None = None
    quantity: str = "perturbed"
    mark: str = ""

    @property
    def clean(self) -> bool:
        """Whether the model was not contaminated on purpose."""
        return self.epoch == 0 or self.strategy.lower() == "clean"

    @property
    def label(self) -> str:
        """How the model was trained: strategy and epoch."""
        epoch = "" if self.epoch is None or self.clean else f" epoch {self.epoch}"
        return f"{self.strategy}{epoch}".strip()

    @property
    def where(self) -> str:
        """Line, table, model and condition, for messages."""
        quantity = self.quantity if self.value is not None and self.quantity != "accuracy" else ""
        parts = (self.table, self.model, self.bench, quantity, self.label)
        file = f"{self.file}, " if self.file else ""
        return f"{file}line {self.line} ({', '.join(part for part in parts if part)})"


def read_published(path: Path) -> list[PublishedResult]:
    """Read a CSV of published results.

    Either *long*: columns ``orig`` and ``pert`` (percentages), ``n`` (or ``N``; ``765/440`` if
    they were measured on different items) and, optionally, ``delta_printed``, ``table``,
    ``model``, ``bench``, ``regime``, ``strategy``, ``epoch``; or ``value`` (and ``k``) for single
    percentages, with ``quantity`` for what they measure (``MMStar_filtered`` if there is no
    ``bench``); or a column for each of several detectors (a key of `MEASURES`). Or *wide*: a column
    ``metric`` whose rows are ``original``, the variants (``perturbed``, …), their
    ``delta_<variant>`` and ``success_<variant>``, and one column per model state: ``clean``, and
    names that end in the epoch (``lora1``).

    Raises
    ------
    DataError
        If a column is missing or a cell is not a number; the message names line and column.
    """
    header, rows = numbered_rows(path)
    if "metric" in header:
        return list(_wide(path, header, rows))
    columns = {
        meaning: next((name for name in names if name in header), "")
        for meaning, names in ALIASES.items()
    }
    measures = {name: MEASURES[name.lower()] for name in header if name.lower() in MEASURES}
    if measures and not (columns["value"] or columns["original"]):
        return [
            replace(_long(path, line, row, columns | {"value": name}), quantity=quantity)
            for line, row in rows
            for name, quantity in measures.items()
        ]
    if not columns["value"]:
        for meaning in ("original", "perturbed"):
            check_columns([columns[meaning] or meaning], header, str(path))
    return [_long(path, line, row, columns) for line, row in rows]


def _long(
    path: Path, line: int, row: Mapping[str, str], columns: Mapping[str, str]
) -> PublishedResult:
    def text(meaning: str) -> str:
        return row.get(columns[meaning], "").strip() if columns[meaning] else ""

    def figure(meaning: str) -> Decimal | None:
        return _number(text(meaning), path, line, columns[meaning])

    n_original, n_perturbed = _sizes(text("n"), path, line)
    texts: dict[str, Any] = {m: text(m) for m in ("table", "model", "bench", "regime", "strategy")}
    figures: dict[str, Any] = {m: figure(m) for m in ("original", "perturbed", "delta", "value")}
    quantity = text("quantity") or ("accuracy" if figures["value"] is not None else "perturbed")
    if not columns["bench"] and "_" in quantity:
        texts["bench"], _, quantity = quantity.rpartition("_")
    return PublishedResult(
        line=line,
        file=path.name,
        quantity=quantity,
        epoch=_whole(text("epoch"), path, line),
        n_original=n_original,
        n_perturbed=n_perturbed,
        k=_whole(text("k"), path, line),
        **texts,
        **figures,
    )


def _wide(
    path: Path, header: Sequence[str], rows: Sequence[tuple[int, Mapping[str, str]]]
) -> Iterator[PublishedResult]:
    about = ("table", "model", "bench", "N", "n", "metric")
    states = [name for name in header if name not in about]
    blocks: dict[tuple[str, ...], dict[str, tuple[int, Mapping[str, str]]]] = {}
    for line, row in rows:
        key = tuple(row.get(name, "") for name in about if name != "metric")
        blocks.setdefault(key, {})[row["metric"]] = (line, row)
    for metrics in blocks.values():
        if "original" not in metrics:
            line = next(iter(metrics.values()))[0]
            raise DataError(f"{path}, line {line}: this model has no row for the metric 'original'")
        original = metrics["original"][1]
        not_variants = ("original", "delta_", "success_", "leak_")
        for name in [m for m in metrics if not m.startswith(not_variants)]:
            line, row = metrics[name]
            n = _sizes(row.get("N") or row.get("n") or "", path, line)[0]
            for state in states:
                delta = metrics.get(f"delta_{name}", (line, {}))[1].get(state, "")
                mark = metrics.get(f"success_{name}", (line, {}))[1].get(state, "").strip()
                yield PublishedResult(
                    line=line,
                    file=path.name,
                    table=row.get("table", ""),
                    model=row.get("model", ""),
                    bench=row.get("bench", ""),
                    strategy=re.sub(r"\d+$", "", state),
                    epoch=int(re.sub(r"\D+", "", state) or 0),
                    n_original=n,
                    n_perturbed=n,
                    original=_number(original[state], path, line, state),
                    perturbed=_number(row[state], path, line, state),
                    delta=_number(delta, path, line, state),
                    quantity=name,
                    mark="" if mark == "-" else mark,
                )


def _number(text: str, path: Path, line: int, column: str) -> Decimal | None:
    clean = text.strip().replace("−", "-").rstrip("%").strip()
    if clean in ("", "-", "–"):
        return None
    try:
        value = Decimal(clean)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite():
        raise DataError(f"{path}, line {line}, column {column!r}: {text!r} is not a number")
    return value


def _sizes(text: str, path: Path, line: int) -> tuple[int | None, int | None]:
    sizes = [part.strip().rstrip("?") for part in text.split("/") if part.strip()]
    if not sizes:
        return None, None
    if len(sizes) > 2 or not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise DataError(f"{path}, line {line}: n is {text!r}; write 440, or 765/440 if they differ")
    return int(sizes[0]), int(sizes[-1])


def _whole(text: str, path: Path, line: int) -> int | None:
    if not text:
        return None
    if not text.isdigit():
        raise DataError(f"{path}, line {line}: {text!r} is not a whole number")
    return int(text)
