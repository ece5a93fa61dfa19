"""A small table of texts, as Markdown for people and as CSV for programs."""

from __future__ import annotations

import contextlib
import csv
import io
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from statsmodels.stats.proportion import proportion_confint

from flipbench.core.errors import DataError
from flipbench.core.records import Interval

LEVEL = 0.95


@dataclass(frozen=True)
class Rate:
    """A fraction k/n with its Wilson interval.

    >>> str(Rate(253, 294)), str(Rate(0, 0))
    ('86.1 % (253/294) [81.6, 89.6]', '– (0/0)')
    """

    k: int
    n: int

    def __post_init__(self) -> None:
        """Refuse what is no fraction."""
        if not 0 <= self.k <= self.n:
            raise ValueError(f"k/n must be a fraction, not {self.k}/{self.n}")

    @property
    def value(self) -> float | None:
        """The fraction; None without cases."""
        return self.k / self.n if self.n else None

    @property
    def interval(self) -> Interval | None:
        """The Wilson interval at 95 %; None without cases."""
        if not self.n:
            return None
        low, high = proportion_confint(self.k, self.n, alpha=1 - LEVEL, method="wilson")
        return Interval(low=float(low), high=float(high), level=LEVEL)

    def __str__(self) -> str:
        """Return percent, count and interval."""
        if self.interval is None:
            return f"– ({self.k}/{self.n})"
        low, high = 100 * self.interval.low, 100 * self.interval.high
        return f"{100 * self.k / self.n:.1f} % ({self.k}/{self.n}) [{low:.1f}, {high:.1f}]"


@dataclass(frozen=True)
class Table:
    """Rows of texts under headers. ``key`` is its name in files."""

    key: str
    caption: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        """Refuse rows of another length than the headers'."""
        for row in self.rows:
            if len(row) != len(self.headers):
                raise ValueError(f"{self.key}: {row} does not fit {self.headers}")

    def markdown(self) -> str:
        """Return the table as GitHub-flavoured Markdown, its caption above it."""
        lines = [_line(self.headers), "|" + "---|" * len(self.headers)]
        return f"{self.caption}\n\n" + "\n".join([*lines, *map(_line, self.rows)]) + "\n"

    def csv(self) -> str:
        """Return the table as CSV with a header line."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerows([self.headers, *self.rows])
        return buffer.getvalue()


def write_tables(tables: Sequence[Table], folder: Path, page: str, title: str) -> Path:
    """Write each table as ``<key>.csv`` and all of them on one Markdown page; return its path.

    Raises
    ------
    DataError
        Where the folder cannot be written.
    """
    for table in tables:
        write_text(folder / f"{table.key}.csv", table.csv())
    body = "\n".join(table.markdown() for table in tables)
    return write_text(folder / page, f"# {title}\n\n{body}")


def write_text(path: Path, text: str) -> Path:
    """Write a file that is there as a whole or not at all.

    Raises
    ------
    DataError
        Where it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise DataError(
            f"{path}: cannot be written ({error.strerror}); make room and run the command again"
        ) from error
    return path


def number(value: float | None, interval: Interval | None = None, digits: int = 3) -> str:
    """Return a number with its interval; "undefined" for None.

    >>> number(0.42399, Interval(low=0.36, high=0.48))
    '0.424 [0.360, 0.480]'
    """
    if value is None:
        return "undefined"
    text = f"{value:.{digits}f}"
    if interval is None:
        return text
    return f"{text} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(text: str) -> str:
    text = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("<", "&lt;").replace("[", "\\[").replace("`", "\\`")
