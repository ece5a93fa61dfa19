"""Atomic writes, and text that no terminal, spreadsheet or page may take for a command.

A file or folder is complete or absent, even if the writer is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

from flipbench.core.errors import DataError

PRIVATE = 0o600
"""The permissions of a file that only its user may read."""

_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠﹢﹣﹦﹫]|[\t\r]")
"""What a spreadsheet may evaluate: it skips white space, and may read full-width signs as ASCII."""

_NUMBERS = re.compile(r"[+-][\d.,:;%±<>\[\]() –−+/-]*")  # "-0.3 [-0.5, -0.1]": calls nothing
_STEERING = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line end, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f"  # directions, line separators
    "\xad\u034f\u115f\u1160\u180e\u200b\u2060-\u2065\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e007f"
    "\ud800-\udfff]"  # halves of characters, which no file can hold
    # joiners shape emoji and the letters of many scripts; elsewhere they only hide
    "|(?<![^\0-\x7f\u2000-\u206f])[\u200c\u200d]|[\u200c\u200d](?![^\0-\x7f\u2000-\u206f])"
)
_ESCAPE = re.compile(
    r"\\(?=(x[0-9a-f]{2}|u(?!d[89a-f])[0-9a-f]{4}|U00(?:0[0-9a-f]|10)[0-9a-f]{4}))"
)


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


def printable(text: str) -> str:
    r"""Return a text with what steers a terminal, or hides, written as an escape.

    These are the control characters C0 and C1 (but tab and line end), the ones that set the
    direction of writing, and those without width.

    >>> printable("\x1b[2J caf\xe9 \u202egnp.exe")
    '\\x1b[2J café \\u202egnp.exe'
    """
    return _STEERING.sub(lambda match: _escaped(match[0]), text)


def printable_json(text: str) -> str:
    r"""Return a JSON text that means the same, with such characters as JSON writes them.

    >>> printable_json('{"a": "\x9b2J"}')
    '{"a": "\\u009b2J"}'
    """
    return _STEERING.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _escaped(character: str) -> str:
    n = ord(character)
    return f"\\x{n:02x}" if n < 0x100 else f"\\u{n:04x}" if n < 0x10000 else f"\\U{n:08x}"


def spreadsheet_cell(text: str) -> str:
    r"""Return a text for a CSV cell that is no formula, and `printable`.

    An apostrophe comes before either; `plain_cell` gives the text back. Numbers with a sign stay as
    they are.

    >>> [spreadsheet_cell(text) for text in ("=1+1", " ＝cmd", "\x1b[2J", "-0.5 [-1.0, +2.0]")]
    ["'=1+1", "' ＝cmd", "'\\x1b[2J", '-0.5 [-1.0, +2.0]']
    """
    is_formula = _FORMULA.match(text) and not _NUMBERS.fullmatch(text)
    if not (is_formula or _STEERING.search(text) or _is_guarded(text)):
        return text
    return "'" + printable(_ESCAPE.sub(lambda _: _escaped("\\"), text))


def plain_cell(text: str) -> str:
    """Return the text of a cell that `spreadsheet_cell` wrote.

    >>> plain_cell("'=1+1"), plain_cell("'quoted'")
    ('=1+1', "'quoted'")
    """
    if not _is_guarded(text):
        return text
    return re.sub(_ESCAPE.pattern + r"\1", lambda match: chr(int(match[1][1:], 16)), text[1:])


def _is_guarded(text: str) -> bool:
    if not text.startswith("'"):
        return False
    return bool(_FORMULA.match(text.lstrip("'")) or _ESCAPE.search(text))


def markdown_text(text: str) -> str:
    r"""Return a `printable` text for a line of Markdown, which ends no cell and starts no markup.

    >>> markdown_text("a*b |\n<script> p <.001")
    'a\\*b \\| &lt;script> p <.001'
    """
    line = printable(" ".join(text.split()))
    return without_html(re.sub(r"([\\|`*])", r"\\\1", line).replace("](", "]\\("))


def without_html(document: str) -> str:
    """Return a `printable` Markdown document in which no text starts an HTML tag.

    ``<.001`` stays readable.
    """
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", printable(document))
