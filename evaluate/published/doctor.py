"""What is wrong or odd in tables of published results; every finding names its line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from ..protocol.rules import ALPHA
from .consistency import (
    delta_verdict,
    fitting_sizes,
    least_p,
    possible_counts,
    unit,
    unpaired_se,
)
from .labels import (
    ambiguous_names,
    cells,
    conflicts,
    duplicates,
    mixed_regimes,
    relabelled,
)
from .tables import NO_COUNTS, PublishedResult, read_published
from .verdicts import requirements_of, wrong_marks

_LEAST_VALUES = 4
"""Blocks with fewer percentages than this are no evidence on the number of items."""
_MOST_ITEMS = 3_000
"""Unstated numbers of items are sought up to this one."""
_CHANCE = 0.001
"""Expected number of numbers of items that fit by chance, above which none is named."""


@dataclass(frozen=True)
class TableIssue:
    """Something a reader of the table should know.

    Attributes
    ----------
    kind : str
        One word to group by.
    wrong : bool
        True if the printed figures cannot all be true; False if they can but are odd.
    """

    row: PublishedResult
    kind: str
    what: str
    wrong: bool = True

    def __str__(self) -> str:
        return f"{self.row.where}: {self.kind}: {self.what}"


def examine(rows: Sequence[PublishedResult]) -> list[TableIssue]:
    """Return every finding in tables of published results, in the order of their lines.

    Kinds: ``impossible`` (no count gives this percentage of n), ``count`` (the printed count gives
    another percentage), ``items`` (most percentages fit another n, or fit one that is not the
    stated one of other rows), ``delta`` and ``rounding`` (a
    gap that is not the difference of its figures), ``unpaired`` and ``swapped`` (the two figures
    are of different items), ``conflict`` (one quantity printed with different values),
    ``duplicate`` (two conditions with the same figures), ``relabelled`` (another table has these
    figures under another label, or a label has those of several), ``mark`` (a printed verdict that
    does not follow from its rule), ``margin`` (a gap of so few items that no paired table makes it
    significant).
    """
    issues: list[TableIssue] = []
    for check in (_impossible, _items, _unstated_items, _deltas, _unpaired, _margins):
        issues += check(rows)
    for kind, label_check, is_wrong in (
        ("conflict", conflicts, True),
        ("duplicate", duplicates, False),
        ("relabelled", relabelled, False),
        ("relabelled", ambiguous_names, False),
        ("relabelled", mixed_regimes, False),
        ("mark", wrong_marks, True),
    ):
        issues += [TableIssue(row, kind, text, is_wrong) for row, text in label_check(rows)]
    return sorted(issues, key=lambda issue: (issue.row.file, issue.row.line, not issue.wrong))


def examination(paths: Sequence[Path]) -> tuple[str, bool]:
    """Return the output of `flipbench doctor TABLE.csv …`, and whether anything is wrong.

    First come the figures that cannot be true, then those that are odd, then the requirements of
    each detector, recomputed from the printed figures by the paper's rules. Several tables are also
    compared with each other.
    """
    paths = list({path.resolve(): path for path in paths}.values())
    n_of_name, rows = Counter(path.name for path in paths), []
    for path in paths:  # files of one name are told apart by their folders
        file = path.name if n_of_name[path.name] == 1 else str(path)
        rows += [replace(row, file=file) for row in read_published(path)]
    issues = examine(rows)
    n_figures = sum(len(_figures(row)) for row in rows)
    lines = [f"rows: {len(rows)}; percentages of a known number of items: {n_figures}"]
    repeated = [
        values
        for values in cells(rows).values()
        if len({(row.file, row.table) for _, row in values}) > 1
    ]
    if repeated:
        n_same = sum(len({value for value, _ in values}) == 1 for values in repeated)
        lines.append(f"cells printed in several tables: {len(repeated)}; the same in all: {n_same}")
    for name, is_wrong in (("cannot all be true", True), ("odd, but possible", False)):
        texts = [f"  {issue}" for issue in issues if issue.wrong == is_wrong]
        lines += [
            "",
            f"{len(texts)} {'finding' if len(texts) == 1 else 'findings'}: {name}",
            *texts,
        ]
    for r in requirements_of(rows):
        counts = {
            "contaminated models detected": r.reliability,
            "series monotone": r.consistency_weak,
            "strictly": r.consistency_strict,
            "clean models not flagged": r.specificity,
        }
        fractions = [f"{name} {hit}/{total}" for name, (hit, total) in counts.items() if total]
        if fractions:
            lines += ["", f"recomputed, {r.detector} by rule {r.rule!r}: {', '.join(fractions)}"]
            lines += [f"  missed: {name}" for name in r.misses]
            lines += [f"  not monotone: {name}" for name in r.violations]
            lines += [f"  flagged though clean: {name}" for name in r.false_alarms]
    return "\n".join(lines) + "\n", any(issue.wrong for issue in issues)


def _figures(row: PublishedResult) -> list[tuple[str, Decimal, int]]:
    """Return (name, percentage, n) of the row's figures whose n is known."""
    figures = (
        ("original", row.original, row.n_original),
        (row.quantity, row.perturbed, row.n_perturbed),
        ("value", row.value, row.n_original),
    )
    return [
        (name, value, n)
        for name, value, n in figures
        if value is not None and n is not None and row.quantity not in NO_COUNTS
    ]


def _stated_sizes(rows: Sequence[PublishedResult]) -> dict[str, set[int]]:
    """Return the numbers of items that are stated, by benchmark."""
    sizes: dict[str, set[int]] = {row.bench: set() for row in rows}
    for row in rows:
        sizes[row.bench].update(n for n in (row.n_original, row.n_perturbed) if n is not None)
    return sizes


def _impossible(rows: Sequence[PublishedResult]) -> Iterator[TableIssue]:
    sizes, reported = _stated_sizes(rows), set()
    for row in rows:
        for name, value, n in _figures(row):
            counts = possible_counts(value, n)
            if row.k is not None and name == "value" and row.k not in counts:
                yield TableIssue(row, "count", f"{row.k}/{n} is {100 * row.k / n:.3f}, not {value}")
            elif not counts and (row.file, row.line, row.label, name) not in reported:
                reported.add((row.file, row.line, row.label, name))
                near = int(Decimal(n) * value / 100)
                around = ", ".join(
                    f"{k}/{n} = {100 * k / n:.3f}" for k in (near, near + 1) if k <= n
                )
                text = f"{name} {value} % is not a whole number of {n} items ({around})"
                elsewhere = [
                    f"{k[0]}/{m}"
                    for m in sorted(sizes[row.bench] - {n})
                    if (k := possible_counts(value, m))
                ]
                if elsewhere:
                    text = f"{text}; it would be {' or '.join(elsewhere)}"
                yield TableIssue(row, "impossible", text)


def _items(rows: Sequence[PublishedResult]) -> Iterator[TableIssue]:
    """Find blocks with mostly impossible percentages, and the n that fits them all."""
    groups: dict[tuple[str, str, str, int, str, str | None], dict[Decimal, PublishedResult]] = {}
    for row in rows:
        if row.value is not None:
            continue
        for name, value, n in _figures(row):
            block = (row.table, row.model, row.bench, n)
            for key in ((*block, name, None), (*block, row.strategy, row.regime)):
                groups.setdefault(key, {}).setdefault(value, row)
    reported = set()
    for (*_, n, name, _), rows_by_value in groups.items():
        impossible = [value for value in rows_by_value if not possible_counts(value, n)]
        if len(rows_by_value) < _LEAST_VALUES or 2 * len(impossible) <= len(rows_by_value):
            continue
        row = rows_by_value[impossible[0]]
        sizes = fitting_sizes(rows_by_value, range(n * 3 // 4, n * 5 // 4 + 1))
        fits = ", ".join(map(str, sizes[:5])) if sizes else "no number within a quarter of it"
        text = (
            f"{len(impossible)} of {len(rows_by_value)} percentages ({name}) are"
            f" impossible at n = {n}; all are possible at: {fits}"
        )
        if (row.file, row.line, text) not in reported:
            reported.add((row.file, row.line, text))
            yield TableIssue(row, "items", text)


def _unstated_items(rows: Sequence[PublishedResult]) -> Iterator[TableIssue]:
    """Find the smallest number of items that all percentages of a block without one allow."""
    blocks: dict[tuple[str, ...], list[PublishedResult]] = {}
    for row in rows:
        is_stated = row.n_original is not None or row.n_perturbed is not None
        if row.value is not None and not is_stated and row.bench and row.quantity not in NO_COUNTS:
            blocks.setdefault((row.file, row.table, row.bench, row.quantity), []).append(row)
    stated = _stated_sizes(rows)
    for (*_, bench, quantity), block in blocks.items():
        values = {row.value for row in block if row.value is not None}
        sizes = fitting_sizes(values, range(1, _MOST_ITEMS + 1))
        if len(values) < _LEAST_VALUES or not sizes:
            continue
        last_digit = max(unit(value) for value in values)
        by_chance = sum(float(n * last_digit / 100) ** len(values) for n in range(1, sizes[0] + 1))
        if by_chance <= _CHANCE:
            elsewhere = ", ".join(map(str, sorted(stated[bench]))) or "none"
            text = (
                f"no number of items is stated; {sizes[0]} is the smallest that allows all"
                f" {len(values)} percentages of {quantity} (stated for {bench} elsewhere:"
                f" {elsewhere})"
            )
            yield TableIssue(block[0], "items", text, wrong=False)


def _deltas(rows: Sequence[PublishedResult]) -> Iterator[TableIssue]:
    for row in rows:
        if row.original is None or row.perturbed is None or row.delta is None:
            continue
        sizes = (row.n_original, row.n_perturbed)
        verdict = delta_verdict(row.original, row.perturbed, row.delta, sizes)
        difference = row.perturbed - row.original
        text = f"{row.perturbed} − {row.original} is {difference:+}, printed {row.delta:+}"
        if verdict == "wrong":
            yield TableIssue(row, "delta", text)
        elif verdict == "rounding":
            explained = f"{text}: rounding of the counts explains it"
            yield TableIssue(row, "rounding", explained, wrong=False)


def _unpaired(rows: Sequence[PublishedResult]) -> Iterator[TableIssue]:
    orders = Counter((row.bench, row.n_original, row.n_perturbed) for row in rows)
    for row in rows:
        n, m = row.n_original, row.n_perturbed
        if not n or not m or n == m or row.original is None or row.perturbed is None:
            continue
        se = 100 * unpaired_se([float(row.original) / 100, float(row.perturbed) / 100], (n, m))
        yield TableIssue(
            row,
            "unpaired",
            f"original of {n} items, {row.quantity} of {m}: no paired gap; as independent samples"
            f" {row.perturbed - row.original:+} ± {se:.2f} (standard error)",
        )
        if orders[row.bench, m, n] > orders[row.bench, n, m]:
            yield TableIssue(
                row,
                "swapped",
                f"other rows of {row.bench} have n = {m}/{n}, this one {n}/{m}: if the two figures"
                f" are swapped, the gap is {row.original - row.perturbed:+}",
            )


def _margins(rows: Sequence[PublishedResult]) -> Iterator[TableIssue]:
    """Find gaps of so few items that they would not be significant even with no rises."""
    for row in rows:
        n = row.n_original
        if row.original is None or row.perturbed is None or row.quantity != "perturbed":
            continue
        if n is None or n != row.n_perturbed:
            continue
        counts = possible_counts(row.original, n), possible_counts(row.perturbed, n)
        if list(map(len, counts)) != [1, 1]:
            continue
        n_items = abs(counts[1][0] - counts[0][0])
        p = least_p(n_items)
        if p > ALPHA:
            items = "item" if n_items == 1 else "items"
            gap = f"{row.perturbed - row.original:+} is {n_items} {items} of {n}"
            text = f"the gap of {gap}; no paired table of these totals has p below {p:.3g}"
            yield TableIssue(row, "margin", text, wrong=False)
