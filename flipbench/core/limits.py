"""How much files from elsewhere may unpack to: all limits in one place, and what raises them.

A small file can unpack to any size. A size that a file states is checked before
memory is allocated for it, and what is read is counted.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from typing import IO, Any, AnyStr, NamedTuple

from flipbench.core.errors import ConfigError, DataError


class Limit(NamedTuple):
    """A limit, and the environment variable that raises it.

    Attributes
    ----------
    variable : str
        The environment variable.
    default : int
        The limit where it is not set.
    unit : str
        What is counted.
    """

    variable: str
    default: int
    unit: str

    @property
    def value(self) -> int:
        """The limit.

        Raises
        ------
        ConfigError
            If the variable holds no positive number.
        """
        text = os.environ.get(self.variable, "").strip().replace("_", "") or str(self.default)
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text)):
            number = f"set it to a number of {self.unit}"
            raise ConfigError(f"{self.variable} is {text[:40]!r}; {number}")
        return int(text)

    def excess(self, n: int) -> str:
        """Return what is wrong with ``n``, and the remedy; empty if it is within the limit."""
        if n <= self.value:
            return ""
        return (
            f"{n:,} {self.unit} are more than the limit of {self.value:,}; if you trust the file,"
            f" raise {self.variable}"
        )

    def check(self, n: int, source: object) -> None:
        """Raise a `DataError` about ``source`` if ``n`` is over the limit."""
        if problem := self.excess(n):
            raise DataError(f"{source}: {problem}")


FILE_BYTES = Limit("FLIPBENCH_MAX_FILE_BYTES", 256_000_000, "bytes")
"""Of a picture, an archive's member, a line of text, an unpacked workbook, or a JSON file."""

TABLE_BYTES = Limit("FLIPBENCH_MAX_TABLE_BYTES", 1_000_000_000, "bytes")
"""Of a table that is held in memory, unpacked."""

ROWS = Limit("FLIPBENCH_MAX_ROWS", 2_000_000, "rows")
"""Of a table that is held in memory."""

CELLS = Limit("FLIPBENCH_MAX_CELLS", 20_000_000, "cells")
"""Of a table that is held in memory."""

COLUMNS = Limit("FLIPBENCH_MAX_COLUMNS", 16_384, "columns")
"""Of a table."""

LIMITS = (FILE_BYTES, TABLE_BYTES, ROWS, CELLS, COLUMNS)


def bounded_lines(file: IO[AnyStr], source: object) -> Iterator[AnyStr]:
    """Yield the lines of a file; one that never ends is not read into memory.

    Raises
    ------
    DataError
        If a line is longer than ``FILE_BYTES``.
    """
    longest = FILE_BYTES.value
    number = 0
    while line := file.readline(longest + 1):
        number += 1
        if len(line) > longest:
            FILE_BYTES.check(len(line), f"{source}, line {number}")
        yield line


def check_zip(file: Any, limit: Limit, source: object) -> None:
    """Check what a zip archive, such as a workbook or a log, unpacks to.

    `zipfile` reads no more of a member than the size it tells.

    Raises
    ------
    DataError
        If the sum is over the limit.
    zipfile.BadZipFile, OSError
        If it is no archive.
    """
    with zipfile.ZipFile(file) as archive:
        limit.check(sum(member.file_size for member in archive.infolist()), source)


def check_parquet(file: Any, source: object, *, in_memory: bool = True) -> None:
    """Check what a parquet file says of its rows, cells and bytes.

    Parameters
    ----------
    file : pyarrow.parquet.ParquetFile
        An open file, of which only the end has been read.
    source : object
        Its name, for the message.
    in_memory : bool
        Whether all of it is held in memory; if not, its bytes are not limited.

    Raises
    ------
    DataError
        If there is more than a table may have.
    """
    about = file.metadata
    ROWS.check(about.num_rows, source)
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    CELLS.check(sum(column.num_values for column in columns), source)  # those in lists, too
    if in_memory:
        TABLE_BYTES.check(sum(group.total_byte_size for group in groups), source)
