"""The result of loading a benchmark: its items, and every problem by row."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from flipbench.benchmarks.tables import RowError
from flipbench.core.errors import DataError
from flipbench.core.limits import ROWS
from flipbench.core.records import Item

ANSWER_TEXT = "answer_text"
"""An answer that is an option's text; refused only if most of the file's answers are letters."""

_MAX_ROWS = 8
_MAX_TEXT_SHARE = 0.2


@dataclass(frozen=True)
class Problem:
    """An error or oddity of one row or, if ``row`` is None, of the benchmark.

    Attributes
    ----------
    row : int or None
        The row's position in release order, from 0.
    name : str
        The row's index, as text.
    where : str
        File, line and row, for people.
    kind : str
        One word to group by, such as ``answer``, ``image``, ``duplicate_options``.
    what, remedy : str
        The problem, and how to fix it.
    fatal : bool
        Whether the row was refused.
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

    def first(self, n: int) -> Benchmark:
        """Return the first ``n`` items, with the problems and rows of all."""
        part = copy(self)
        vars(part)["items"] = self.items[:n]
        return part

    def __post_init__(self) -> None:
        """Check that no row was dropped without a problem."""
        if self.n_rows != len(self.items) + len(self.refused):
            raise DataError(
                f"{self.name}: {self.n_rows} rows, but {len(self.items)} items and"
                f" {len(self.refused)} refused rows; this is a bug in the reader, please report it"
            )

    @property
    def refused(self) -> list[Problem]:
        """The problems of rows that did not become items, one per row."""
        return [problem for problem in self.problems if problem.fatal]

    @property
    def oddities(self) -> list[Problem]:
        """The problems of rows that did become items, and of the benchmark."""
        return [problem for problem in self.problems if not problem.fatal]

    def summary(self) -> str:
        """Return the counts, then one line per kind of problem."""
        n_options = Counter(len(item.options or ()) for item in self.items)
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
            numbers = ", ".join(rows[:_MAX_ROWS]) + (" …" if len(rows) > _MAX_ROWS else "")
            at = f" in row{'s' if len(rows) > 1 else ''} {numbers}" if rows else ""
            example = group[0]
            lines.append(
                f"  {'odd' if odd else 'refused'}: {kind} x {len(group)}{at}:"
                f" {example.what}; {example.remedy}"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Oddity:
    """Something suspicious about a row that still becomes an item."""

    kind: str
    what: str
    remedy: str


@dataclass(frozen=True)
class RowPlace:
    """A row's position: its number from 0, its name, and both for people."""

    number: int
    name: str
    where: str


@dataclass
class Collector:
    """Collects the items and problems of one benchmark while its rows are read.

    If ``strict``, the first fatal problem is raised as a `DataError`.
    """

    name: str
    strict: bool
    problems: list[Problem] = field(default_factory=list)
    n_rows: int = 0
    max_rows: int = field(default_factory=lambda: ROWS.value)
    _kept: list[tuple[int, Item]] = field(default_factory=list)  # with their rows' numbers
    _claimed: dict[tuple[str, str], str] = field(default_factory=dict)
    _spelled: dict[tuple[str, str], str] = field(default_factory=dict)  # by folded name

    def claim(self, name: str, row: RowPlace, benchmark: str = "") -> None:
        """Register a row's name; one that differs from another's in form only is noted.

        Raises
        ------
        DataError
            If another row has the same name; the message gives both.
        """
        first_place = self._claimed.setdefault((benchmark, name), row.where)
        if first_place != row.where:
            raise DataError(
                f"{row.where}: the index {name!r} is used twice, first at {first_place}; results"
                " are joined by index, so give every row a unique one"
            )
        folded = _folded(name)
        similar_name = self._spelled.get((benchmark, folded), folded)
        if folded != name:
            self._spelled.setdefault((benchmark, folded), name)
        if similar_name != name and (benchmark, similar_name) in self._claimed:
            odd = Oddity(
                "similar_index",
                f"the index {ascii(name)} differs from {ascii(similar_name)}"
                f" ({self._claimed[benchmark, similar_name]}) by case or Unicode form only",
                "other tools may join the two; rename one",
            )
            self.note(odd, row)

    @contextmanager
    def row(self, row: RowPlace) -> Iterator[None]:
        """Count a row; an error inside the block becomes its fatal problem."""
        self.n_rows += 1
        if self.n_rows > self.max_rows:
            ROWS.check(self.n_rows, self.name)
        try:
            yield
        except RowError as error:
            self._refuse(row, error.kind, error.what, error.remedy)
        except ValidationError as error:
            details = error.errors()[0]
            part = ".".join(str(step) for step in details["loc"]) or "the row"
            self._refuse(row, "text", f"{part}: {details['msg']}", "fix the text")
        except ValueError as error:
            self._refuse(row, "text", str(error), "fix the row")
        except DataError as error:  # from the image store, whose message names the row already
            text, _, remedy = str(error).removeprefix(f"{row.where}: ").rpartition("; ")
            self._refuse(row, "image", text or remedy, remedy)

    def keep(self, row: RowPlace, item: Item, oddities: list[Oddity]) -> None:
        """Add an item and its oddities."""
        self._kept.append((row.number, item))
        for odd in oddities:
            self.note(odd, row)

    def note(self, odd: Oddity, row: RowPlace | None = None) -> None:
        """Add an oddity of a row, or of the benchmark."""
        number, name, where = (row.number, row.name, row.where) if row else (None, "", self.name)
        self.problems.append(Problem(number, name, where, odd.kind, odd.what, odd.remedy, False))

    def finish(self) -> Benchmark:
        """Return the benchmark, with its problems in row order, its own first.

        If nearly all answers are letters, rows whose answer is none of them are refused.
        """
        texts = {p.row for p in self.problems if p.kind == ANSWER_TEXT}
        problems = [problem for problem in self.problems if problem.kind != ANSWER_TEXT]
        numbered_items = sorted(self._kept, key=lambda pair: pair[0])
        n_choices = sum(item.options is not None for _, item in numbered_items)
        if len(texts) <= _MAX_TEXT_SHARE * n_choices:
            late_refusals = [replace(p, fatal=True) for p in self.problems if p.kind == ANSWER_TEXT]
            if late_refusals and self.strict:
                raise DataError(str(late_refusals[0]))
            problems = [p for p in problems if p.row not in texts] + late_refusals
            numbered_items = [pair for pair in numbered_items if pair[0] not in texts]
        items = [item for _, item in numbered_items]
        if n_rotated := _n_rotated(items):
            odd = Oddity(
                "rotated",
                f"{n_rotated} rows repeat another row's question and images, with its options in"
                " another order, as in files for circular evaluation",
                "each would be redrawn and counted as a question of its own; keep one row of each"
                " (in VLMEvalKit's files, those with an index below 1,000,000)",
            )
            problems.append(Problem(None, "", self.name, odd.kind, odd.what, odd.remedy, False))
        order = sorted(problems, key=lambda p: -1 if p.row is None else p.row)
        return Benchmark(self.name, items, order, self.n_rows)

    def _refuse(self, row: RowPlace, kind: str, text: str, remedy: str) -> None:
        problem = Problem(row.number, row.name, row.where, kind, text, remedy, True)
        if self.strict:
            raise DataError(str(problem))
        self.problems.append(problem)


def _n_rotated(items: Sequence[Item]) -> int:
    """Return the number of items that differ from an earlier one in their options' order only."""
    options_by_content: dict[object, tuple[str, ...]] = {}
    n_rotated = 0
    for item in items:
        if item.options is not None:
            content = (item.question, item.images, tuple(sorted(item.options)), item.answer_text)
            n_rotated += options_by_content.setdefault(content, item.options) != item.options
    return n_rotated


def _folded(name: str) -> str:
    """Return what names that differ by case or Unicode form only have in common."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
