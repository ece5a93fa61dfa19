"""The error classes. A message says what went wrong, where, and what to do next."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class FlipbenchError(Exception):
    """Base of every error that flipbench raises on purpose; the command line exits with 2."""


class ConfigError(FlipbenchError):
    """An invalid configuration or command line."""


class DataError(FlipbenchError):
    """An invalid file, row, image or record."""


class LicenceError(FlipbenchError):
    """An action that a source's licence forbids."""


class PrerequisiteError(FlipbenchError):
    """A missing package, program, device or checkpoint; the message says how to get it."""


class ServiceError(FlipbenchError):
    """A server that refuses, fails or sends an invalid reply."""


def result_or_error(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | DataError:
    """Return the result of a call, or the `DataError` it raises: a failure of one item alone.

    >>> def half(n): raise DataError(f"{n} is odd")
    >>> result_or_error(half, 3)
    DataError('3 is odd')
    """
    try:
        return function(*args, **kwargs)
    except DataError as error:
        return error


def need(module: str, extra: str) -> Any:
    """Import an optional package.

    Raises
    ------
    PrerequisiteError
        If the package is not installed; the message names the extra that installs it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise PrerequisiteError(
            f"this needs the package {error.name!r}: pip install 'flipbench[{extra}]'"
        ) from error


def shorten(text: str, max_length: int = 120) -> str:
    """Return a text on one line of at most ``max_length`` characters, for a message.

    >>> shorten("two  words"), shorten("a" * 99, 7)
    ('two words', 'aaaa...')
    """
    line = " ".join(text[: 4 * max_length].split())
    is_whole = len(line) <= max_length and len(text) <= 4 * max_length
    return line if is_whole else line[: max_length - 3] + "..."


def nearest(word: str, names: list[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known word, or an empty string.

    >>> nearest("epoch", ["epochs", "seed"])
    "; did you mean 'epochs'?"
    """
    close = get_close_matches(word[:100], names[:20_000], n=1, cutoff=0.75)
    return f"; did you mean {close[0]!r}?" if close else ""
