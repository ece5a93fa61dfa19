"""Labels of published rows: conflicting values of one quantity, and figures under two labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal

from .consistency import possible_counts
from .tables import ACCURACY, NO_COUNTS, PublishedResult

Odd = tuple[PublishedResult, str]
_Key = tuple[object, ...]
_Printed = list[tuple[Decimal, PublishedResult]]


def cells(rows: Sequence[PublishedResult]) -> dict[_Key, _Printed]:
    """Return every printed figure by what it is a figure of, whatever table it is in.

    A clean model's figure depends on model, benchmark and items only; a trained one's also on
    regime, strategy and epoch. A single percentage without a strategy is a clean model's.
    """
    groups: dict[_Key, _Printed] = {}
    for row in rows:
        for name in ("original", "perturbed", "value"):
            value: Decimal | None = getattr(row, name)
            labelled = row.strategy or name == "value" and row.n_original
            if value is None or not (row.model and row.bench and labelled):
                continue
            what = "original" if name == "original" or row.quantity in ACCURACY else row.quantity
            n = row.n_perturbed if name == "perturbed" else row.n_original
            is_clean = row.clean or not row.strategy
            trained = ("clean",) if is_clean else (row.regime, row.strategy.casefold(), row.epoch)
            groups.setdefault((row.model, row.bench, n, what, *trained), []).append((value, row))
    return groups


def conflicts(rows: Sequence[PublishedResult]) -> Iterator[Odd]:
    """Yield rows whose figure differs from what most rows print for the same cell.

    A percentage that no count gives is outvoted by a possible one. A row without a
    regime differs only if no regime prints its figure.
    """
    groups = cells(rows)
    regimes: dict[_Key, _Printed] = {}
    for key, printed in groups.items():
        if _is_trained(key) and key[4]:
            regimes.setdefault((*key[:4], *key[5:]), []).extend(printed)
    for key, printed in groups.items():
        what = str(key[3])
        yield from _minority(what, printed)
        known = regimes.get((*key[:4], *key[5:]), []) if _is_trained(key) and not key[4] else []
        for value, row in printed:
            if known and value not in {other for other, _ in known}:
                other, example = known[0]
                yield row, f"{what} is {value} here, and {other} at {example.where}"


def _is_trained(key: _Key) -> bool:
    return len(key) > 5


def _minority(what: str, printed: _Printed) -> Iterator[Odd]:
    counts = Counter(value for value, _ in printed)
    if len(counts) < 2:
        return
    usual = max(counts, key=lambda value: (_is_possible(value, what, printed), counts[value]))
    example = next(row for value, row in printed if value == usual)
    for value, row in printed:
        if value != usual:
            places = "place" if counts[usual] == 1 else "places"
            others = f"{usual} in {counts[usual]} other {places}, the first {example.where}"
            yield row, f"{what} is {value} here, and {others}"


def _is_possible(value: Decimal, what: str, printed: _Printed) -> bool:
    """Return whether a whole number of items gives this percentage, if the number is known."""
    row = printed[0][1]
    n = row.n_original if what == "original" or row.value is not None else row.n_perturbed
    return n is None or what in NO_COUNTS or bool(possible_counts(value, n))


def duplicates(rows: Sequence[PublishedResult]) -> Iterator[Odd]:
    """Yield rows whose figures are the same as another condition's in the same table."""
    seen: dict[_Key, PublishedResult] = {}
    for row in _trained(rows):
        key = (row.file, row.table, row.regime, *_figures(row))
        first = seen.setdefault(key, row)
        if first.label != row.label:
            yield row, f"{row.original} and {row.perturbed} are also printed at {first.where}"


def relabelled(rows: Sequence[PublishedResult]) -> Iterator[Odd]:
    """Yield rows whose figures appear in other tables, but only under another label.

    A pair of figures with the same label in another table is an excerpt, which is fine; case is
    ignored, and a row without a regime may be of any. Of two tables that disagree, the one with
    fewer rows is reported. Files may call a strategy differently: a label that the other file does
    not have is not compared with it (see `ambiguous_names`).
    """
    trained = list(_trained(rows))
    places = _places(trained)
    lengths = Counter((row.file, row.table) for row in trained)
    named = _named(trained)
    for row in trained:
        others = _elsewhere(row, places)
        if any(_same_label(row, o) for o in others):
            continue
        others = [
            o for o in others if o.file == row.file or row.strategy.casefold() in named[o.file]
        ]
        if not others:
            continue
        other = others[0]
        if lengths[row.file, row.table] > lengths[other.file, other.table]:
            continue
        regime = f", {other.regime}" if other.regime not in ("", row.regime) else ""
        printed = f"what {other.where}{regime} prints for {other.label!r}"
        yield row, f"{row.original} and {row.perturbed} are {printed}"


def ambiguous_names(rows: Sequence[PublishedResult]) -> Iterator[Odd]:
    """Yield a row of each strategy that another file does not name, but splits into several."""
    trained = list(_trained(rows))
    places, named = _places(trained), _named(trained)
    meanings: dict[_Key, dict[str, Odd]] = {}
    for row in trained:
        for other in _elsewhere(row, places):
            is_known = row.strategy.casefold() in named[other.file]
            if other.file != row.file and other.epoch == row.epoch and not is_known:
                key = (row.file, row.model, row.strategy, other.file)
                meanings.setdefault(key, {}).setdefault(other.strategy, (row, other.where))
    for by_strategy in meanings.values():
        if len(by_strategy) > 1:
            first = next(iter(by_strategy.values()))[0]
            parts = [
                f"of {strategy!r} in {row.table or row.bench} ({where})"
                for strategy, (row, where) in by_strategy.items()
            ]
            yield first, f"{first.strategy!r} has the figures {' and '.join(parts)}"


def mixed_regimes(rows: Sequence[PublishedResult]) -> Iterator[Odd]:
    """Yield a row of each series without a regime that has not the figures of its file's usual one.

    The usual regime is the one whose figures most series of the file have elsewhere.
    """
    trained = list(_trained(rows))
    places = _places(trained)
    by_file: dict[str, dict[_Key, tuple[PublishedResult, PublishedResult]]] = {}
    for row in trained:
        others = [o for o in _elsewhere(row, places) if o.regime and o.epoch == row.epoch]
        if others and not row.regime:
            series = (row.table, row.model, row.bench, row.strategy)
            by_file.setdefault(row.file, {}).setdefault(series, (row, others[0]))
    for by_series in by_file.values():
        usual = Counter(other.regime for _, other in by_series.values()).most_common(1)[0][0]
        for row, other in by_series.values():
            if other.regime != usual:
                figures = f"{row.original} and {row.perturbed} are those of {other.regime!r}"
                most = f"most series of this file have those of {usual!r}"
                yield row, f"{figures} ({other.where}), but {most}"


def _trained(rows: Sequence[PublishedResult]) -> Iterator[PublishedResult]:
    for row in rows:
        if row.strategy and not row.clean and None not in (row.original, row.perturbed):
            yield row


def _places(trained: Sequence[PublishedResult]) -> dict[_Key, list[PublishedResult]]:
    places: dict[_Key, list[PublishedResult]] = {}
    for row in trained:
        places.setdefault(_figures(row), []).append(row)
    return places


def _named(trained: Sequence[PublishedResult]) -> dict[str, set[str]]:
    """Return the strategies that each file names, in lower case."""
    named: dict[str, set[str]] = {}
    for row in trained:
        named.setdefault(row.file, set()).add(row.strategy.casefold())
    return named


def _elsewhere(
    row: PublishedResult, places: dict[_Key, list[PublishedResult]]
) -> list[PublishedResult]:
    """Return the rows of other tables with the same figures."""
    return [o for o in places[_figures(row)] if (o.file, o.table) != (row.file, row.table)]


def _same_label(row: PublishedResult, other: PublishedResult) -> bool:
    same = row.label.casefold() == other.label.casefold()
    return same and (row.regime == other.regime or not row.regime or not other.regime)


def _figures(row: PublishedResult) -> _Key:
    return (row.model, row.bench, row.n_original, row.quantity, row.original, row.perturbed)
