"""What loading gives back: items, and every problem met on the way, by row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pydantic import ValidationError

from flipbench.core.errors import DataError
from flipbench.core.records import Item

_SHOWN_ROWS = 8


@dataclass(frozen=True)
class Problem:
    """Something wrong with, or odd about, one row or (``row`` None) the benchmark.

    Attributes
    ----------
    row : int or None
        RowPlace in release order, from 0.
    name : str
        The row's index, as text.
    where : str
        File, line and row, in words.
    kind : str
        One word to group by, such as ``answer``, ``image``, ``duplicate_options``.
    what, remedy : str
        What is the matter, and what to do.
    fatal : bool
        True where the row did not become an item.
    """

    row: int | None
    name: str
    where: str
    kind: str
    what: str
    remedy: str
    fatal: bool

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}"


@dataclass(frozen=True)
class Benchmark:
    """Items in release order; ``n_rows == len(items) + len(refused)``, always."""

    name: str
    items: list[Item]
    problems: list[Problem]
    n_rows: int

    def __post_init__(self) -> None:
        """Refuse a count that does not add up: no row is dropped quietly."""
        if self.n_rows != len(self.items) + len(self.refused):
            raise DataError(
                f"{self.name}: {self.n_rows} rows, but {len(self.items)} items and"
                f" {len(self.refused)} refused rows; this is a defect of the reader, report it"
            )

    @property
    def refused(self) -> list[Problem]:
        """The problems of rows that did not become items, one for each such row."""
        return [problem for problem in self.problems if problem.fatal]

    @property
    def oddities(self) -> list[Problem]:
        """The problems of rows that did, and of the benchmark."""
        return [problem for problem in self.problems if not problem.fatal]

    def summary(self) -> str:
        """Return the counts, then one line for each kind of problem with its rows."""
        n_options: dict[int, int] = {}
        for item in self.items:
            size = len(item.options or ())
            n_options[size] = n_options.get(size, 0) + 1
        shapes = ", ".join(
            f"{n} with {size} options" if size else f"{n} free-form"
            for size, n in sorted(n_options.items())
        )
        lines = [
            f"{self.name}: {self.n_rows} rows, {len(self.items)} items"
            + (f" ({shapes})" if shapes else "")
            + f", {len(self.refused)} refused, {len(self.oddities)} oddities"
        ]
        groups: dict[tuple[bool, str], list[Problem]] = {}
        for problem in self.problems:
            groups.setdefault((not problem.fatal, problem.kind), []).append(problem)
        for (odd, kind), group in sorted(groups.items()):
            rows = [str(problem.row) for problem in group if problem.row is not None]
            shown = ", ".join(rows[:_SHOWN_ROWS]) + (" …" if len(rows) > _SHOWN_ROWS else "")
            at = f" in row{'s' if len(rows) > 1 else ''} {shown}" if rows else ""
            first = group[0]
            lines.append(
                f"  {'odd' if odd else 'refused'}: {kind} x {len(group)}{at}:"
                f" {first.what}; {first.remedy}"
            )
        return "\n".join(lines)


class RowError(DataError):
    """A row that cannot become an item: what is the matter, what to do, and a kind."""

    def __init__(self, kind: str, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.kind, self.what, self.remedy = kind, what, remedy


@dataclass(frozen=True)
class Oddity:
    """Something odd about a row that still becomes an item."""

    kind: str
    what: str
    remedy: str


@dataclass(frozen=True)
class RowPlace:
    """Where a row stands: its number from 0, its name, and both in words."""

    number: int
    name: str
    where: str


@dataclass
class Collector:
    """Gathers the items and problems of one benchmark while its rows are read.

    Parameters
    ----------
    name : str
        The benchmark's name.
    strict : bool
        True raises the first fatal problem as a `DataError`.
    """

    name: str
    strict: bool
    items: list[Item] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    n_rows: int = 0
    _claimed: dict[tuple[str, str], str] = field(default_factory=dict)

    def claim(self, name: str, where: str, benchmark: str = "") -> None:
        """Take a row's name; the same name twice refuses the whole file.

        Raises
        ------
        DataError
            Naming both rows.
        """
        first = self._claimed.setdefault((benchmark, name), where)
        if first != where:
            raise DataError(
                f"{where}: the index {name!r} stands in two rows, first at {first}; results are"
                " joined by index, so give every row an index of its own"
            )

    @contextmanager
    def row(self, row: RowPlace) -> Iterator[None]:
        """Count a row; what goes wrong inside becomes its one fatal problem."""
        self.n_rows += 1
        try:
            yield
        except RowError as error:
            self._refuse(row, error.kind, error.what, error.remedy)
        except ValidationError as error:
            first = error.errors()[0]
            part = ".".join(str(step) for step in first["loc"]) or "the row"
            self._refuse(row, "text", f"{part}: {first['msg']}", "mend the text")
        except ValueError as error:
            self._refuse(row, "text", str(error), "mend the row")
        except DataError as error:  # from the image store, which says where by itself
            what, _, remedy = str(error).removeprefix(f"{row.where}: ").rpartition("; ")
            self._refuse(row, "image", what or remedy, remedy)

    def keep(self, row: RowPlace, item: Item, oddities: list[Oddity]) -> None:
        """Take an item and what is odd about it."""
        self.items.append(item)
        for odd in oddities:
            self.note(odd, row)

    def note(self, odd: Oddity, row: RowPlace | None = None) -> None:
        """Take an oddity of a row that is an item, or of the benchmark."""
        number, name, where = (row.number, row.name, row.where) if row else (None, "", self.name)
        self.problems.append(Problem(number, name, where, odd.kind, odd.what, odd.remedy, False))

    def finish(self) -> Benchmark:
        """Return the benchmark, problems in row order, the benchmark's own first."""
        order = sorted(self.problems, key=lambda p: -1 if p.row is None else p.row)
        return Benchmark(self.name, self.items, order, self.n_rows)

    def _refuse(self, row: RowPlace, kind: str, what: str, remedy: str) -> None:
        problem = Problem(row.number, row.name, row.where, kind, what, remedy, True)
        if self.strict:
            raise DataError(str(problem))
        self.problems.append(problem)
