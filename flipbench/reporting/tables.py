"""A table, free of any file format: built once, then written as Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from flipbench.core.rates import Rate
from flipbench.core.records import Interval
from flipbench.reporting import formats


@dataclass(frozen=True)
class Cell:
    """What stands in a cell: an optional mark, a text, and a second, smaller text."""

    text: str
    small: str = ""
    mark: str = ""

    def plain(self) -> str:
        """Return the cell on one line.

        >>> Cell("62.7", "276/440").plain(), Cell("contaminated", mark="✓").plain()
        ('62.7 (276/440)', '✓ contaminated')
        """
        text = f"{self.mark} {self.text}".strip()
        if not self.small:
            return text
        return f"{text} {self.small}" if self.small.startswith("[") else f"{text} ({self.small})"


@dataclass(frozen=True)
class Column:
    """A column's header, the group it stands under, and whether it holds numbers."""

    header: str
    group: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Row:
    """A row's header and its cells, one for each column."""

    header: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A table whose rows come in groups, named or one without a name.

    ``key`` is its name in files and links.
    """

    key: str
    caption: str
    stub: str
    columns: tuple[Column, ...]
    groups: tuple[tuple[str, tuple[Row, ...]], ...]

    def __post_init__(self) -> None:
        """Refuse a row that has not one cell for each column."""
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"{self.key}: {row} does not fit {self.columns}")

    @property
    def rows(self) -> list[Row]:
        """The rows of all groups."""
        return [row for _, rows in self.groups for row in rows]

    def column_groups(self) -> list[tuple[str, int]]:
        """Return the group headers from left to right with the number of columns under each."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and spans[-1][0] == column.group:
                spans[-1] = (column.group, spans[-1][1] + 1)
            else:
                spans.append((column.group, 1))
        return spans


def rate_cell(found: Rate) -> Cell:
    """Return percent and count, the interval in small.

    >>> rate_cell(Rate.wilson(9, 12)).plain(), rate_cell(Rate.wilson(0, 0)).plain()
    ('75.0 (9/12) [46.8, 91.1]', '– (0/0)')
    """
    share = formats.NOTHING if found.value is None else formats.percent(found.value)
    return Cell(f"{share} ({found.k}/{found.n})", formats.interval(found.interval, formats.percent))


def estimate_cell(value: float | None, interval: Interval | None, digits: int = 3) -> Cell:
    """Return a statistic with its interval in small; "undefined" for None.

    >>> estimate_cell(0.42399, Interval(low=0.36, high=0.48)).plain()
    '0.424 [0.360, 0.480]'
    """
    if value is None:
        return Cell("undefined")
    form = partial(formats.decimals, digits=digits)
    return Cell(form(value), formats.interval(interval, form))
