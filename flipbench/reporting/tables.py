"""A table: built once, then written as Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeVar

from flipbench.core.rates import Rate
from flipbench.core.records import Interval
from flipbench.reporting import formats

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """A cell's content: an optional mark, a text, and a second, smaller text.

    ``opens`` is the key of what a page shows behind the cell; empty if nothing.
    """

    text: str
    small: str = ""
    mark: str = ""
    opens: str = ""

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
    """A column's header, the header of its group, and whether it holds numbers."""

    header: str
    group: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Row:
    """A row's header and its cells, one for each column; a page links it to the table ``about``."""

    header: str
    cells: tuple[Cell, ...]
    about: str = ""


@dataclass(frozen=True)
class Table:
    """A table whose rows come in groups: several named ones, or one without a name.

    ``key`` is its name in files and links; ``stub`` is the header of the row headers.
    """

    key: str
    caption: str
    stub: str
    columns: tuple[Column, ...]
    groups: tuple[tuple[str, tuple[Row, ...]], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(f"{self.key}: {row} does not fit {self.columns}")

    @property
    def rows(self) -> list[Row]:
        """The rows of all groups."""
        return [row for _, rows in self.groups for row in rows]

    def column_groups(self) -> list[tuple[str, int]]:
        """Return the group headers from left to right with the number of columns under each."""
        runs = groupby(self.columns, key=lambda column: column.group)
        return [(group, len(list(columns))) for group, columns in runs]


Content = Cell | Rate | str | int | None
"""What a column's function returns: None and "" become a dash."""


def text_column(header: str, group: str = "") -> Column:
    """Return a column of words."""
    return Column(header, group, numeric=False)


def build_table(
    key: str,
    caption: str,
    stub: str,
    columns: Sequence[tuple[Column | str, Callable[[T], Content]]],
    groups: Mapping[str, Iterable[tuple[str, T]]],
    about: Callable[[T], str] = lambda row: "",
) -> Table:
    """Return a table from column specifications: each has a header and the content of a row.

    Parameters
    ----------
    groups : mapping of str to iterable of (str, T)
        Rows with their headers, by the name of their group; empty groups are left out.
    about : callable
        Returns the table that a row links to.

    Examples
    --------
    >>> table = build_table("k", "", "n", [("double", lambda n: 2 * n)], {"": [("one", 1)]})
    >>> table.rows[0]
    Row(header='one', cells=(Cell(text='2', small='', mark='', opens=''),), about='')
    """
    filled = {
        name: tuple(
            Row(header, tuple(as_cell(content(row)) for _, content in columns), about(row))
            for header, row in rows
        )
        for name, rows in groups.items()
    }
    return Table(
        key,
        caption,
        stub,
        tuple(Column(column) if isinstance(column, str) else column for column, _ in columns),
        tuple((name, rows) for name, rows in filled.items() if rows),
    )


def as_cell(content: Content) -> Cell:
    """Return a cell with a text, a number, or a rate; a dash for None and "".

    >>> as_cell(""), as_cell(3).plain()
    (Cell(text='–', small='', mark='', opens=''), '3')
    """
    if isinstance(content, Cell):
        return content
    if isinstance(content, Rate):
        return rate_cell(content)
    return Cell(formats.NOTHING if content in (None, "") else str(content))


def rate_cell(rate: Rate) -> Cell:
    """Return percent and count, with the interval as small text.

    >>> rate_cell(Rate.wilson(9, 12)).plain(), rate_cell(Rate.wilson(0, 0)).plain()
    ('75.0 (9/12) [46.8, 91.1]', '– (0/0)')
    """
    share = formats.NOTHING if rate.value is None else formats.percent(rate.value)
    return Cell(f"{share} ({rate.k}/{rate.n})", formats.interval(rate.interval, formats.percent))


def estimate_cell(value: float | None, interval: Interval | None, digits: int = 3) -> Cell:
    """Return a statistic with its interval as small text; "undefined" for None.

    >>> estimate_cell(0.42399, Interval(low=0.36, high=0.48)).plain()
    '0.424 [0.360, 0.480]'
    """
    if value is None:
        return Cell("undefined")
    form = partial(formats.decimals, digits=digits)
    return Cell(form(value), formats.interval(interval, form))
