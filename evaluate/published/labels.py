"""Labels of published rows: conflicting values of one quantity, and figures under two labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal

from .tables import PublishedResult

Odd = tuple[PublishedResult, str]
_Key = tuple[object, ...]


def conflicts(rows: Sequence[PublishedResult]) -> Iterator[Odd]:
    """Yield rows whose figure differs from what most rows print for the same quantity.

    A clean model's figure depends on model, benchmark and items only; a trained one's also on
    regime, strategy and epoch.
    """
    for name in ("original", "perturbed"):
        groups: dict[_Key, list[tuple[Decimal, PublishedResult]]] = {}
        for row in rows:
            value: Decimal | None = getattr(row, name)
            if value is None or not (row.model and row.bench and row.strategy):
                continue
            n = row.n_original if name == "original" else row.n_perturbed
            trained = ("clean",) if row.clean else (row.regime, row.strategy, row.epoch)
            what = "original" if name == "original" else row.quantity
            groups.setdefault((row.model, row.bench, n, what, *trained), []).append((value, row))
        for key, printed in groups.items():
            yield from _minority(str(key[3]), printed)


def _minority(what: str, printed: Sequence[tuple[Decimal, PublishedResult]]) -> Iterator[Odd]:
    counts = Counter(value for value, _ in printed)
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    example = next(row for value, row in printed if value == usual)
    for value, row in printed:
        if value != usual:
            places = "place" if counts[usual] == 1 else "places"
            others = f"{usual} in {counts[usual]} other {places}, the first {example.where}"
            yield row, f"{what} is {value} here, and {others}"


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

    A pair of figures with the same label in another table is an excerpt, which is fine. Of two
    tables that disagree, the one with fewer rows is reported.
    """
    places: dict[_Key, list[PublishedResult]] = {}
    lengths: Counter[_Key] = Counter()
    for row in _trained(rows):
        places.setdefault(_figures(row), []).append(row)
        lengths[row.file, row.table] += 1
    for row in _trained(rows):
        others = [o for o in places[_figures(row)] if (o.file, o.table) != (row.file, row.table)]
        if not others or any((o.label, o.regime) == (row.label, row.regime) for o in others):
            continue
        other = others[0]
        if lengths[row.file, row.table] > lengths[other.file, other.table]:
            continue
        regime = f", {other.regime}" if other.regime != row.regime else ""
        printed = f"what {other.where}{regime} prints for {other.label!r}"
        yield row, f"{row.original} and {row.perturbed} are {printed}"


def _trained(rows: Sequence[PublishedResult]) -> Iterator[PublishedResult]:
    for row in rows:
        if row.strategy and not row.clean and None not in (row.original, row.perturbed):
            yield row


def _figures(row: PublishedResult) -> _Key:
    return (row.model, row.bench, row.n_original, row.quantity, row.original, row.perturbed)
