"""Labels of published rows: conflicting values of one quantity, and figures under two labels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from decimal import Decimal

from .consistency import possible_counts
from .tables import ACCURACY, NO_COUNTS, PublishedResult

Odd = tuple[PublishedResult, str]
_Key = tuple[object, ...]
_Values = list[tuple[Decimal, PublishedResult]]


def cells(rows: Sequence[PublishedResult]) -> dict[_Key, _Values]:
    """Return every printed figure by what it is a figure of, whatever table it is in.

    A clean model's figure depends on model, benchmark and items only; a trained one's also on
    regime, strategy and epoch. A single percentage without a strategy is a clean model's.
    """
    values = defaultdict(list)
    for row in rows:
        for name in ("original", "perturbed", "value"):
            value: Decimal | None = getattr(row, name)
            labelled = row.strategy or name == "value" and row.n_original
            if value is None or not (row.model and row.bench and labelled):
                continue
            is_accuracy = name == "original" or row.quantity in ACCURACY
            quantity = "original" if is_accuracy else row.quantity
            n = row.n_perturbed if name == "perturbed" else row.n_original
            state: _Key = ("clean",)
            if row.strategy and not row.clean:
                state = (row.regime, row.strategy.casefold(), row.epoch)
            values[row.model, row.bench, n, quantity, *state].append((value, row))
    return dict(values)


def conflicts(rows: Sequence[PublishedResult]) -> Iterator[Odd]:
    """Yield rows whose figure differs from what most rows print for the same cell.

    A percentage that no count gives is outvoted by a possible one. A row without a
    regime differs only if no regime prints its figure.
    """
    by_cell = cells(rows)
    in_any_regime: dict[_Key, _Values] = defaultdict(list)
    for key, values in by_cell.items():
        if len(key) > 5 and key[4]:  # of a trained model, with a regime
            in_any_regime[*key[:4], *key[5:]] += values
    for key, values in by_cell.items():
        quantity = str(key[3])
        yield from _minority(quantity, values)
        no_regime = len(key) > 5 and not key[4]
        elsewhere = in_any_regime.get((*key[:4], *key[5:]), []) if no_regime else []
        for value, row in values:
            if elsewhere and value not in {figure for figure, _ in elsewhere}:
                usual, example = elsewhere[0]
                yield row, f"{quantity} is {value} here, and {usual} at {example.where}"


def _minority(quantity: str, values: _Values) -> Iterator[Odd]:
    counts = Counter(value for value, _ in values)
    if len(counts) < 2:
        return
    row = values[0][1]
    n = row.n_original if quantity == "original" or row.value is not None else row.n_perturbed

    def rank(value: Decimal) -> tuple[bool, int]:
        is_possible = n is None or quantity in NO_COUNTS or bool(possible_counts(value, n))
        return is_possible, counts[value]

    usual = max(counts, key=rank)
    example = next(row for value, row in values if value == usual)
    places = "place" if counts[usual] == 1 else "places"
    for value, row in values:
        if value != usual:
            elsewhere = f"{usual} in {counts[usual]} other {places}, the first {example.where}"
            yield row, f"{quantity} is {value} here, and {elsewhere}"


class TrainedRows:
    """The rows of trained models with a pair of figures, and where else these are printed."""

    def __init__(self, rows: Sequence[PublishedResult]) -> None:
        self.rows = [
            row
            for row in rows
            if row.strategy and not row.clean and None not in (row.original, row.perturbed)
        ]
        self.strategies: dict[str, set[str]] = defaultdict(set)
        """By file, in lower case."""
        self._by_figures = defaultdict(list)
        for row in self.rows:
            self.strategies[row.file].add(row.strategy.casefold())
            self._by_figures[_figures(row)].append(row)

    def elsewhere(self, row: PublishedResult) -> list[PublishedResult]:
        """Return the rows of other tables with the same figures."""
        copies = self._by_figures[_figures(row)]
        return [copy for copy in copies if (copy.file, copy.table) != (row.file, row.table)]

    def names(self, row: PublishedResult, file: str) -> bool:
        """Return whether another file names the row's strategy."""
        return row.strategy.casefold() in self.strategies[file]


def _figures(row: PublishedResult) -> _Key:
    return (row.model, row.bench, row.n_original, row.quantity, row.original, row.perturbed)


def duplicates(rows: Sequence[PublishedResult]) -> Iterator[Odd]:
    """Yield rows whose figures are the same as another condition's in the same table."""
    originals: dict[_Key, PublishedResult] = {}
    for row in TrainedRows(rows).rows:
        original = originals.setdefault((row.file, row.table, row.regime, *_figures(row)), row)
        if original.label != row.label:
            yield row, f"{row.original} and {row.perturbed} are also printed at {original.where}"


def relabelled(rows: Sequence[PublishedResult]) -> Iterator[Odd]:
    """Yield rows whose figures appear in other tables, but only under another label.

    A pair of figures with the same label in another table is an excerpt, which is fine; case is
    ignored, and a row without a regime may be of any. Of two tables that disagree, the one with
    fewer rows is reported. Files may call a strategy differently: a label that the other file does
    not have is not compared with it (see `ambiguous_names`).
    """
    trained_rows = TrainedRows(rows)
    lengths = Counter((row.file, row.table) for row in trained_rows.rows)
    for row in trained_rows.rows:
        copies = trained_rows.elsewhere(row)
        if any(_same_label(row, copy) for copy in copies):
            continue
        copies = [c for c in copies if c.file == row.file or trained_rows.names(row, c.file)]
        if not copies:
            continue
        copy = copies[0]
        if lengths[row.file, row.table] <= lengths[copy.file, copy.table]:
            regime = f", {copy.regime}" if copy.regime not in ("", row.regime) else ""
            label = f"what {copy.where}{regime} prints for {copy.label!r}"
            yield row, f"{row.original} and {row.perturbed} are {label}"


def ambiguous_names(rows: Sequence[PublishedResult]) -> Iterator[Odd]:
    """Yield a row of each strategy that another file does not name, but splits into several."""
    trained_rows = TrainedRows(rows)
    meanings: dict[_Key, dict[str, Odd]] = defaultdict(dict)
    for row in trained_rows.rows:
        for copy in trained_rows.elsewhere(row):
            if copy.file != row.file and copy.epoch == row.epoch:
                if not trained_rows.names(row, copy.file):
                    by_strategy = meanings[row.file, row.model, row.strategy, copy.file]
                    by_strategy.setdefault(copy.strategy, (row, copy.where))
    for by_strategy in meanings.values():
        if len(by_strategy) > 1:
            example = next(iter(by_strategy.values()))[0]
            parts = [
                f"of {strategy!r} in {row.table or row.bench} ({place})"
                for strategy, (row, place) in by_strategy.items()
            ]
            yield example, f"{example.strategy!r} has the figures {' and '.join(parts)}"


def mixed_regimes(rows: Sequence[PublishedResult]) -> Iterator[Odd]:
    """Yield a row of each series without a regime that has not the figures of its file's usual one.

    The usual regime is the one whose figures most series of the file have elsewhere.
    """
    trained_rows = TrainedRows(rows)
    by_file: dict[str, dict[_Key, tuple[PublishedResult, PublishedResult]]] = defaultdict(dict)
    for row in trained_rows.rows:
        copies = [c for c in trained_rows.elsewhere(row) if c.regime and c.epoch == row.epoch]
        if copies and not row.regime:
            series = (row.table, row.model, row.bench, row.strategy)
            by_file[row.file].setdefault(series, (row, copies[0]))
    for by_series in by_file.values():
        usual = Counter(copy.regime for _, copy in by_series.values()).most_common(1)[0][0]
        for row, copy in by_series.values():
            if copy.regime != usual:
                figures = f"{row.original} and {row.perturbed} are those of {copy.regime!r}"
                majority = f"most series of this file have those of {usual!r}"
                yield row, f"{figures} ({copy.where}), but {majority}"


def _same_label(row: PublishedResult, copy: PublishedResult) -> bool:
    is_same = row.label.casefold() == copy.label.casefold()
    return is_same and (row.regime == copy.regime or not row.regime or not copy.regime)
