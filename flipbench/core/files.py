"""Atomic writes, and text in files that no program may take for a formula or markup.

A file or folder is complete or absent, even if the writer is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

from flipbench.core.errors import DataError

PRIVATE = 0o600
"""The permissions of a file that only its user may read."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBERS = re.compile(r"[+-][\d.,:;%±<>\[\]() –−+/-]*")  # "-0.3 [-0.5, -0.1]": calls nothing


def write_atomically(path: Path, data: str | bytes, mode: int = 0o666) -> Path:
    """Write a file and flush it to disk; create its folder if needed.

    Readers see either the old or the new content. Text is encoded as UTF-8; line ends are kept.
    The file gets the permissions ``mode``, less those that the umask withholds.

    Raises
    ------
    DataError
        If it cannot be written; the old content stays.
    """
    with atomic_file(path) as partial:
        partial.touch(mode)
        partial.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it is renamed to ``path`` if the block succeeds.

    Raises
    ------
    DataError
        If it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        make_folder(path.parent)
        yield partial
        _flush(partial)
        partial.replace(path)
    except OSError as error:
        is_taken = isinstance(error, (IsADirectoryError, NotADirectoryError, FileExistsError))
        remedy = "choose another path" if is_taken else "free some disk space"
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}); {remedy} and run the same"
            " command again"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    flush_folder(path.parent)


def remove_partials(folder: Path) -> None:
    """Remove what killed writers left beside a folder's files; nobody may be writing them now."""
    for path in folder.glob(".*"):
        name, _, suffix = path.name[1:].rpartition(".")
        if re.fullmatch("[0-9a-f]{8}", suffix) and (folder / name).is_file():
            path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, and flush their entries to disk.

    Raises
    ------
    OSError
        If it cannot be created.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        flush_folder(folder.parent)


def replace_folder(partial: Path, final: Path) -> None:
    """Rename a finished folder to its final name, replacing an empty folder.

    Raises
    ------
    OSError
        If it cannot be renamed.
    """
    for path in (partial, *partial.rglob("*")):
        if path.is_file():
            _flush(path)
        elif path.is_dir():
            flush_folder(path)
    os.replace(partial, final)
    flush_folder(final.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that new names survive a power failure."""
    with contextlib.suppress(OSError):  # some network file systems cannot flush folders
        _flush(folder)


def spreadsheet_cell(text: str) -> str:
    """Return a text for a CSV cell: an apostrophe is put before what would be a formula.

    `plain_cell` takes it away again. Numbers with a sign stay as they are.

    >>> [spreadsheet_cell(text) for text in ("=1+1", "-cmd", "-0.5 [-1.0, +2.0]", "a = b")]
    ["'=1+1", "'-cmd", '-0.5 [-1.0, +2.0]', 'a = b']
    """
    if text.startswith("'"):
        return "'" + text if text.lstrip("'").startswith(_FORMULA) else text
    return "'" + text if text.startswith(_FORMULA) and not _NUMBERS.fullmatch(text) else text


def plain_cell(text: str) -> str:
    """Return the text of a cell that `spreadsheet_cell` wrote.

    >>> plain_cell("'=1+1"), plain_cell("'quoted'")
    ('=1+1', "'quoted'")
    """
    guarded = text.startswith("'") and text.lstrip("'").startswith(_FORMULA)
    return text[1:] if guarded else text


def markdown_text(text: str) -> str:
    r"""Return a text for a line of Markdown, with what would end a cell or start markup escaped.

    >>> markdown_text("a*b |\n<script> p <.001")
    'a\\*b \\| &lt;script> p <.001'
    """
    text = re.sub(r"([\\|`*])", r"\\\1", " ".join(text.split())).replace("](", "]\\(")
    return without_html(text)


def without_html(document: str) -> str:
    """Return a Markdown document in which no text starts an HTML tag; ``<.001`` stays readable."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", document)
