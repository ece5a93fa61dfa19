"""Files and folders that are there as a whole or not at all, even where a writer is killed."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from flipbench.core.errors import DataError


def write_atomically(path: Path, data: str | bytes) -> Path:
    """Write a file, on disk when this returns; make its folder where it is missing.

    Readers see the old content or the new. Text is written as UTF-8, line ends as they are.

    Raises
    ------
    DataError
        Where it cannot be written; what was there before stays.
    """
    with whole_file(path) as partial:
        partial.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; the file takes its name when the block ends without an error.

    Raises
    ------
    DataError
        Where it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        _flush(partial)
        partial.replace(path)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}); make room and run the same"
            " command again"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    _flush_folder(path.parent)


def replace_folder(partial: Path, final: Path) -> None:
    """Give a folder that is finished its name, in place of a file or an empty folder.

    Raises
    ------
    OSError
        Where it cannot be renamed.
    """
    for path in partial.rglob("*"):
        if path.is_file():
            _flush(path)
    os.replace(partial, final)
    _flush_folder(final.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every network file system can
        _flush(folder)
