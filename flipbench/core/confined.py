"""Open files that data name: inside a folder, regular, and of bounded size.

A row of a benchmark, a corpus, predictions, a recipe or a run is written by others. Its paths may
be absolute, climb with ``..``, follow links out of their folder, or name a pipe or device on which
a read never ends. Every such path is opened here.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from flipbench.core.errors import DataError, shorten
from flipbench.core.limits import FILE_BYTES

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"))


class UnsafePathError(DataError):
    """A path that leads out of its folder, is no regular file, or is too large.

    Attributes
    ----------
    problem, remedy : str
        The two halves of the message.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem, self.remedy = problem, remedy


def confined_path(path: str | Path, root: str | Path, *, name: str = "", setting: str = "") -> Path:
    """Return the real path of a file that lies inside a folder.

    Parameters
    ----------
    path : str or Path
        As the data name it; a relative one is below ``root``.
    root : str or Path
        The folder that the user trusts. Files of a Hugging Face snapshot are links to ``blobs``
        beside ``snapshots``, which count as inside.
    name : str, optional
        The path as the message shows it, if not like ``path``.
    setting : str, optional
        The setting that names another folder, for the message.

    Raises
    ------
    UnsafePathError
        If its real path, all links followed, is outside; the file is not touched.
    OSError
        If the path cannot be followed.
    """
    folder = Path(root).resolve()
    try:
        real = (folder / path).resolve()
    except (ValueError, RuntimeError) as error:  # a NUL byte; a loop of links before Python 3.13
        raise _no_path(name or path, error) from error
    if not any(real.is_relative_to(place) for place in (folder, *_blobs(folder))):
        widen = f"move the file there, or set {setting}" if setting else "move the file there"
        raise UnsafePathError(f"{_shown(name or path)} leads out of the folder {root}", widen)
    return real


def open_confined(
    path: str | Path,
    root: str | Path | None,
    *,
    max_bytes: int | None = None,
    name: str = "",
    setting: str = "",
) -> BinaryIO:
    """Open a regular file for reading, without waiting for a pipe or touching a device.

    Parameters
    ----------
    path, name, setting : str or Path, str, str
        As for `confined_path`.
    root : str, Path or None
        The folder that the file must lie in; None for a path that the user named, which may lie
        anywhere and is still checked for kind and size.
    max_bytes : int, optional
        The largest size allowed; by default ``FILE_BYTES``.

    Raises
    ------
    UnsafePathError
        If it leads out of ``root``, is no regular file, or is larger than ``max_bytes``.
    OSError
        If there is no such file, or it cannot be opened.
    """
    max_bytes = max_bytes or FILE_BYTES.value
    try:
        if root is None:
            real = Path(path).resolve()
        else:
            real = confined_path(path, root, name=name, setting=setting)
        _check_regular(os.stat(real), name or path, max_bytes)
        descriptor = os.open(real, os.O_RDONLY | _FLAGS)
    except (ValueError, RuntimeError) as error:
        raise _no_path(name or path, error) from error
    try:
        _check_regular(os.fstat(descriptor), name or path, max_bytes)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_confined(
    path: str | Path,
    root: str | Path | None,
    *,
    name: str = "",
    setting: str = "",
) -> bytes:
    """Return the content of a file; parameters and errors as for `open_confined`."""
    max_bytes = FILE_BYTES.value
    with open_confined(path, root, max_bytes=max_bytes, name=name, setting=setting) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:  # it grew, or its size is not told (/proc)
        raise _too_large(name or path, max_bytes)
    return data


def _check_regular(about: os.stat_result, path: str | Path, max_bytes: int) -> None:
    if not stat.S_ISREG(about.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(about.st_mode)), "no file")
        raise UnsafePathError(f"{_shown(path)} is {kind}, not a regular file", "fix the path")
    if about.st_size > max_bytes:
        raise _too_large(path, max_bytes)


def _no_path(path: str | Path, error: Exception) -> UnsafePathError:
    return UnsafePathError(f"{_shown(path)} is not a path ({shorten(str(error))})", "fix the path")


def _too_large(path: str | Path, max_bytes: int) -> UnsafePathError:
    raised = f", or raise {FILE_BYTES.variable}" if max_bytes == FILE_BYTES.value else ""
    problem = f"{_shown(path)} is larger than {max_bytes:,} bytes"
    return UnsafePathError(problem, f"make it smaller{raised}")


def _blobs(folder: Path) -> list[Path]:
    """Return where the links of a Hugging Face snapshot lead to; empty for other folders."""
    return [
        repository / "blobs"
        for snapshots in (folder, *folder.parents)
        if snapshots.name == "snapshots"
        and (repository := snapshots.parent).name.startswith(("datasets--", "models--", "spaces--"))
    ]


def _shown(path: str | Path) -> str:
    text = str(path)
    return repr(text if len(text) <= 120 else "..." + text[-117:])  # its name comes last
