"""Checks that every file of rows needs before its first row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flipbench.core.errors import DataError, nearest


def check_file(path: Path) -> None:
    """Refuse what is no file with something in it.

    Raises
    ------
    DataError
        Where ``path`` is missing, a folder, or empty.
    """
    if path.is_dir():
        raise DataError(f"{path}: this is a folder; name the file in it")
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; mend the path")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; get it again")


def check_columns(needed: Sequence[str], found: Sequence[str], where: str) -> None:
    """Refuse a table without a needed column.

    Raises
    ------
    DataError
        Naming the missing column, those found, and the nearest of them.
    """
    for column in needed:
        if column not in found:
            like = {name.lower(): name for name in found}
            guess = (
                f"; did you mean {like[column.lower()]!r}?"
                if column.lower() in like
                else nearest(column, list(found))
            )
            raise DataError(
                f"{where}: there is no column {column!r} (found: {', '.join(found)}){guess};"
                f" name one column {column!r}, or map it"
            )


def not_utf8(path: Path) -> DataError:
    """Return the error that names the first line of ``path`` that is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return DataError(
                    f"{path}, line {number}: not UTF-8 (byte {error.object[error.start]:#04x} at"
                    f" position {error.start}); save the file as UTF-8, e.g. with iconv"
                )
    return DataError(f"{path}: not UTF-8; save the file as UTF-8, e.g. with iconv")
