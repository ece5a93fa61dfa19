"""The standard streams of a command: closed ones, and ones whose reader has gone away.

Below ``cron``, after ``>&-`` and before ``| head``, a command does its work and ends with its own
status; output that nobody can read is dropped.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
import warnings
from traceback import format_exception
from typing import Any

from flipbench.core.files import printable

_NAMES = ("stdin", "stdout", "stderr")
_format_warning = warnings.formatwarning


class PrintableFormatter(logging.Formatter):
    """Formats log records as text that steers no terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as `printable` text."""
        return printable(super().format(record))


def print_traceback(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Print an unexpected error as Python does, but `printable`; for ``sys.excepthook``."""
    print(printable("".join(format_exception(kind, error, trace))), end="", file=sys.stderr)


def printable_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Return a warning as Python words it, but `printable`; for ``warnings.formatwarning``."""
    return printable(_format_warning(message, category, filename, lineno, line))


class _Output(io.FileIO):
    """A descriptor for writing; without a reader, whatever is written is dropped.

    So are messages that the disk has no room for; results that it has no room for are an error.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EPIPE and self.fileno() != 2:
                raise
            drop_output(self.fileno())
            return len(data)


def open_closed_streams() -> None:
    """Open standard streams that are closed on the null device.

    A file that is opened later would get the descriptor of a closed one, and messages or the output
    of a library would be written into it.
    """
    for descriptor, name in enumerate(_NAMES):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))


def outlive_readers() -> None:
    """Let writes to standard output and error succeed after their reader has gone away.

    What the streams' encoding cannot represent is escaped. Streams that a caller has replaced stay.
    """
    for name in _NAMES[1:]:
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__") or not isinstance(stream, io.TextIOWrapper):
            continue
        stream.flush()
        lasting = io.TextIOWrapper(
            io.BufferedWriter(_Output(stream.fileno(), "w", closefd=False)),
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=name == "stderr" or stream.isatty(),
        )
        setattr(sys, name, lasting)
        setattr(sys, f"__{name}__", lasting)  # which also keeps the interpreter from the old one


def drop_output(descriptor: int) -> None:
    """Let a descriptor write to the null device."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def flush_output() -> None:
    """Flush standard output; where it cannot be written, drop the rest before it is reported.

    Raises
    ------
    OSError
        If it cannot be written, as on a full disk.
    """
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            drop_output(sys.stdout.fileno())
        raise
