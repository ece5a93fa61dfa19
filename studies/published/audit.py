"""Published tables of comparisons between models, recomputed: corrections, shares, overlaps.

The tables are those of Xu, Wu, Ryu, arXiv 2606.10066 (Tables 2 to 5), one CSV each; a file is
recognised by its columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from flipbench.benchmarks.tables import numbered_rows
from flipbench.core.errors import DataError
from flipbench.evaluate.cohort.tail_enrichment import FLAG_SHARE, LEVELS
from flipbench.evaluate.cohort.top_k import K, chance_overlap, overlap_p
from flipbench.evaluate.published.consistency import possible_counts, unit
from flipbench.evaluate.statistics.paired import adjust_p_values

SIZES = {"PathVQA": 6_719, "SLAKE-En": 1_061, "VQA-RAD": 451}
"""Items of the benchmarks whose tables do not say it."""
EXTERNAL = ("blip2", "blip-2", "instructblip")
"""How the names of models begin that cannot have seen the benchmarks, in lower case."""
N_PERMUTATIONS = 10_000
FLOOR = 1 / (N_PERMUTATIONS + 1)
FAMILY_LEVEL = 0.05
NOISE_LEVEL = 1e-3
"""Two Monte Carlo p-values of one test are called different below this probability."""


@dataclass(frozen=True)
class AuditRow:
    """A row of an audit's table: its cells as printed, and where it is."""

    file: str
    line: int
    cells: Mapping[str, str]

    @property
    def bench(self) -> str:
        """The benchmark."""
        return self.cells.get("bench") or self.cells.get("benchmark", "")

    @property
    def model(self) -> str:
        """The model, or the pair of models."""
        return self.cells.get("model") or self.cells.get("pair", "")

    @property
    def external(self) -> bool:
        """Whether the model cannot have seen the benchmark."""
        return self.model.lower().startswith(EXTERNAL)

    def number(self, column: str) -> Decimal | None:
        """Return a cell with its digits; None if it is empty."""
        text = self.cells.get(column, "").strip()
        try:
            value = Decimal(text) if text else None
        except ArithmeticError:
            value = Decimal("NaN")
        if value is not None and not value.is_finite():
            place = f"{self.file}, line {self.line}, column {column!r}"
            raise DataError(f"{place}: {text!r} is not a number")
        return value


class AuditIssue(NamedTuple):
    """A printed figure that cannot be true (``wrong``), or that a reader should know about."""

    row: AuditRow
    kind: str
    what: str
    wrong: bool = True

    def __str__(self) -> str:
        row = self.row
        return f"{row.file}, line {row.line} ({row.model}, {row.bench}): {self.kind}: {self.what}"


Check = Callable[[Sequence[AuditRow]], Iterator[AuditIssue]]


def read_audit(path: Path) -> list[AuditRow]:
    """Return the rows of an audit's table."""
    header, rows = numbered_rows(path)
    if not _checks(header):
        raise DataError(f"{path}: no table of the audit; for others, run `flipbench doctor`")
    return [AuditRow(path.name, line, row) for line, row in rows]


def examine_audit(tables: Sequence[Sequence[AuditRow]]) -> list[AuditIssue]:
    """Return every finding in tables of an audit, table by table.

    Kinds: ``correction`` (a corrected p-value that does not follow from p), ``order`` (a sorted
    order with the p-values of the release order, or with the smallest p for every model),
    ``baseline`` (an external model is significant), ``impossible`` (no count gives this
    percentage), ``tail`` (quantiles, maximum, shares and flag contradict each other), ``overlap``
    (Jaccard, chance or lift), ``rounding`` (a half, rounded down), ``lift`` (a lift above 10 or
    below it that the exact test does not bear out), ``cohort`` (a model's maximum depends on which
    others there are).
    """
    issues = [
        issue
        for rows in tables
        if rows
        for check in _checks(list(rows[0].cells))
        for issue in check(rows)
    ]
    return issues + list(_cohorts(tables))


def bonferroni_and_q(rows: Sequence[AuditRow]) -> list[tuple[float, float]]:
    """Return the corrected p-values of the rows as one family, in their order."""
    p_values = [float(row.number("p") or 0) for row in rows]
    return list(
        zip(
            adjust_p_values(p_values, "bonferroni"),
            adjust_p_values(p_values, "benjamini-hochberg"),
            strict=True,
        )
    )


def same_p(p_value: float, other_p_value: float, n_permutations: int = N_PERMUTATIONS) -> bool:
    """Return whether two Monte Carlo p-values may be of the same test.

    Their difference is compared with what two independent sets of permutations give.

    >>> same_p(0.6892, 0.6856), same_p(0.0034, 0.0001)
    (True, False)
    """
    mean = max((p_value + other_p_value) / 2, FLOOR)
    se = math.sqrt(2 * mean * (1 - min(mean, 1.0)) / n_permutations)
    return math.erfc(abs(p_value - other_p_value) / (se or FLOOR) / math.sqrt(2)) > NOISE_LEVEL


def maxima(
    rows: Sequence[AuditRow], grown_rows: Sequence[AuditRow]
) -> list[tuple[AuditRow, Decimal, Decimal]]:
    """Return (row, maximum, maximum with one more model) of the models that both tables have."""
    grown = {(row.bench, row.model): row.number("max_delta") for row in grown_rows}
    matches = ((row, row.number("max"), grown.get((row.bench, row.model))) for row in rows)
    return [(row, a, b) for row, a, b in matches if a is not None and b is not None]


def _checks(header: Sequence[str]) -> list[Check]:
    columns = set(header)
    return [check for needed_columns, check in _CHECKS if needed_columns <= columns]


def _agrees(number: Decimal | None, value: float, slack: float = 0.0) -> bool:
    return number is None or abs(float(number) - value) <= float(unit(number)) / 2 + slack + 1e-9


def _corrections(rows: Sequence[AuditRow]) -> Iterator[AuditIssue]:
    m = len(rows)
    for row, (bonferroni, q) in zip(rows, bonferroni_and_q(rows), strict=True):
        p = row.number("p") or Decimal(0)
        slack = m * float(unit(p)) / 2
        for column, value in (("bonf", bonferroni), ("q", q)):
            if not _agrees(row.number(column), value, slack):
                number = row.number(column)
                text = f"{column} of p = {p} among {m} tests is {value:.4f}, printed {number}"
                yield AuditIssue(row, "correction", text)
        if row.external and bonferroni < FAMILY_LEVEL:
            text = f"an external model has p = {bonferroni:.4f} after Bonferroni over {m} tests"
            yield AuditIssue(row, "baseline", text, wrong=False)


def _orders(rows: Sequence[AuditRow]) -> Iterator[AuditIssue]:
    orders = [name for name in rows[0].cells if name.startswith("abl_") and name != "abl_release"]
    by_bench: dict[str, list[AuditRow]] = {}
    for row in rows:
        by_bench.setdefault(row.bench, []).append(row)
    for bench_rows in by_bench.values():
        for order in orders:
            pairs = [
                (float(a), float(b))
                for row in bench_rows
                if (a := row.number("abl_release")) is not None
                and (b := row.number(order)) is not None
            ]
            if pairs and all(same_p(a, b) for a, b in pairs):
                text = (
                    f"{order} has the p-values of the release order for all {len(pairs)} models:"
                    " the sort key was probably constant"
                )
                yield AuditIssue(bench_rows[0], "order", text, wrong=False)
            elif pairs and all(b < 1.5 * FLOOR for _, b in pairs):
                text = (
                    f"{order} has the smallest possible p for all {len(pairs)} models, external"
                    " ones included: the statistic responds to the key"
                )
                yield AuditIssue(bench_rows[0], "order", text, wrong=False)


def _shares(rows: Sequence[AuditRow]) -> Iterator[AuditIssue]:
    for row in rows:
        n = SIZES.get(row.bench)
        for column in ("pr50_pct", "pr100_pct"):
            percent = row.number(column)
            if n and percent is not None and not possible_counts(percent, n):
                text = f"{column} {percent} is not a whole number of {n} items"
                yield AuditIssue(row, "impossible", text)


def _tails(rows: Sequence[AuditRow]) -> Iterator[AuditIssue]:
    for row in rows:
        largest = row.number("max")
        quantiles = [x for x in (row.number("q95"), row.number("q99"), largest) if x is not None]
        if quantiles != sorted(quantiles):
            yield AuditIssue(row, "tail", f"q95, q99, max are not in order: {quantiles}")
        shares = row.number("pr50_pct"), row.number("pr100_pct")
        for level, share in zip(LEVELS, shares, strict=True):
            if largest is not None and share is not None and (share > 0) != (largest > level):
                text = f"{share} % of items are above {level:g}, and the maximum is {largest}"
                yield AuditIssue(row, "tail", text)
        if shares[1] is not None:
            flagged = float(shares[1]) > 100 * FLAG_SHARE
            if flagged != ("TAIL" in row.cells["flag"]):
                text = f"Pr[> 100] = {shares[1]} %, printed flag {row.cells['flag']!r}"
                yield AuditIssue(row, "tail", text)


def _overlaps(rows: Sequence[AuditRow]) -> Iterator[AuditIssue]:
    for row in rows:
        inter, n = row.number("inter"), row.number("N") or SIZES.get(row.bench)
        if inter is None or n is None:
            continue
        shared, n_items = int(inter), int(n)
        jaccard, chance = shared / (2 * K - shared), chance_overlap(n_items)
        expectations = {
            "union": float(2 * K - shared),
            "jaccard": jaccard,
            "chance": chance,
            "lift_calc": shared / chance,
            "lift_printed": shared / chance,
        }
        for column, value in expectations.items():
            number = row.number(column)
            if not _agrees(number, value):
                text = f"{column} of {shared} shared items is {value:.4g}, printed {number}"
                yield AuditIssue(row, "overlap", text)
        number = row.number("jaccard")
        half_up = number is not None and Fraction(number) + unit(number) / 2
        if half_up == Fraction(shared, 2 * K - shared):
            text = f"{shared}/{2 * K - shared} = {jaccard:.4f} is rounded down to {number}"
            yield AuditIssue(row, "rounding", text, wrong=False)
        p = overlap_p(n_items, K, shared)
        if "lift_calc" in row.cells and (p < FAMILY_LEVEL) != (shared / chance > 10):
            text = f"a lift of {shared / chance:.1f} has p = {p:.2g}; 10 is no level of a test"
            yield AuditIssue(row, "lift", text, wrong=False)


def _cohorts(tables: Sequence[Sequence[AuditRow]]) -> Iterator[AuditIssue]:
    of_kind = {
        column: [row for rows in tables for row in rows if column in row.cells]
        for column in ("max", "max_delta")
    }
    for row, top, grown_top in maxima(of_kind["max"], of_kind["max_delta"]):
        if 2 * grown_top <= top * Decimal("1.01"):
            text = f"the maximum is {top}, and {grown_top} with one more model in the cohort"
            yield AuditIssue(row, "cohort", text, wrong=False)


_CHECKS: tuple[tuple[frozenset[str], Check], ...] = (
    (frozenset({"model", "p", "bonf", "q"}), _corrections),
    (frozenset({"model", "abl_release"}), _orders),
    (frozenset({"model", "pr100_pct"}), _shares),
    (frozenset({"model", "max", "pr50_pct", "pr100_pct", "flag"}), _tails),
    (frozenset({"inter", "jaccard"}), _overlaps),
)
"""Columns that a table needs for a check → the check."""
