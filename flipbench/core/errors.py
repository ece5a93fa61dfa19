"""What can go wrong, as one small tree. A message says what, where, and what to do next."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any


class FlipbenchError(Exception):
    """Base of every error that flipbench raises on purpose; the command line exits with 2."""


class ConfigError(FlipbenchError):
    """A configuration or a command line that cannot mean anything."""


class DataError(FlipbenchError):
    """A file, row, image or record that is not what it should be."""


class LicenceError(FlipbenchError):
    """Something a source's licence does not allow."""


class PrerequisiteError(FlipbenchError):
    """A package, program, device or checkpoint that is missing; the message says how to get it."""


class ServiceError(FlipbenchError):
    """A server that refuses, fails or answers nonsense."""


def need(module: str, extra: str) -> Any:
    """Import an optional package, or say which extra of flipbench installs it.

    Raises
    ------
    PrerequisiteError
        Where the package is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise PrerequisiteError(
            f"this needs the package {error.name!r}: pip install 'flipbench[{extra}]'"
        ) from error


def nearest(word: str, known: list[str]) -> str:
    """Return ``"; did you mean 'x'?"`` with the nearest known word, or an empty string.

    >>> nearest("epoch", ["epochs", "seed"])
    "; did you mean 'epochs'?"
    """
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
