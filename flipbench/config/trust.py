"""Trust has an origin: code that the user's own configuration names runs, another's does not.

A configuration may name code (``kind: python``, a detector's import path, a program, shell lines)
or say where a key is sent. One that lies in an artefact (a run directory, a recipe, a checkpoint,
an exported benchmark) came with it, and is somebody else's unless flipbench noted otherwise: when a
run is made, or trusted with ``--trust``, the values are noted outside of it, in the user's state
folder, by the directory's real path. A copy from elsewhere has no such note.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from pydantic import BaseModel

from flipbench.core.errors import ConfigError
from flipbench.core.files import PRIVATE, write_atomically

log = logging.getLogger(__name__)

KeyPath = tuple[str | int, ...]
"""The keys and positions that lead to a value."""

_MARKS = (
    ("environment.json", "config.yaml"),  # a run directory
    *((f"{kind}/*.jsonl",) for kind in ("flips", "captions", "edits", "verdicts")),
    ("expected.jsonl",),  # a recipe
    ("flipbench_card.json",),  # a checkpoint
    ("benchmark.json", "pairs.jsonl"),  # a paired benchmark, and its exports by format
    ("original/items.jsonl", "perturbed/items.jsonl"),
    ("original/test.parquet", "perturbed/test.parquet"),
    ("original.parquet", "perturbed.parquet"),
    ("original.jsonl", "perturbed.jsonl"),
    ("*_original_????????.tsv", "*_perturbed_????????.tsv"),
    ("*_open-original_????????.tsv", "*_open-perturbed_????????.tsv"),
)
_MOST_SHOWN = 1_000


@runtime_checkable
class NeedsTrust(Protocol):
    """Settings of which some name code or send a key."""

    def needs_trust(self) -> Iterable[KeyPath]:
        """Return where those are, below these settings; empty if none does."""


def artefact_of(path: Path) -> Path | None:
    """Return the innermost artefact that a file is part of, links followed; None if there is none.

    An artefact is a run directory, a recipe, a checkpoint or an exported benchmark.
    """
    with contextlib.suppress(OSError, RuntimeError):
        for folder in path.resolve().parents:
            if any(all(any(folder.glob(name)) for name in names) for names in _MARKS):
                return folder
    return None


def is_loopback(url: str | None) -> bool:
    """Return whether a server's address is that of this machine, or there is none.

    >>> is_loopback("http://localhost:8000/v1"), is_loopback("http://127.0.0.1.evil.org/v1")
    (True, False)
    """
    host = urlsplit(url or "//localhost").hostname or ""
    with contextlib.suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def settings_to_trust(settings: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Yield every value in settings that names code or sends a key, with its place."""
    for group in _groups(settings, ()):
        yield from group


def _groups(settings: Any, at: KeyPath) -> Iterator[list[tuple[KeyPath, Any]]]:
    """Yield the values of each part that has some; they mean something together."""
    if isinstance(settings, BaseModel):
        if isinstance(settings, NeedsTrust):
            yield [((*at, *p), _plain(value_at(settings, p))) for p in settings.needs_trust()]
        for name in type(settings).model_fields:
            yield from _groups(getattr(settings, name), (*at, name))
    elif isinstance(settings, Mapping):
        for key, value in settings.items():
            yield from _groups(value, (*at, key))
    elif isinstance(settings, list | tuple):
        for number, value in enumerate(settings):
            yield from _groups(value, (*at, number))


def value_at(settings: Any, path: KeyPath) -> Any:
    """Return a value in nested settings, mappings and lists.

    Raises
    ------
    KeyError
        If a mapping on the way lacks a key: the value is a default.
    TypeError
        If something on the way is neither.
    """
    for step in path:
        if isinstance(settings, BaseModel):
            settings = getattr(settings, str(step))
        elif isinstance(settings, Mapping):
            settings = settings[step]
        elif isinstance(settings, list | tuple) and isinstance(step, int):
            settings = settings[step] if step < len(settings) else None
        else:
            raise TypeError(f"no {step} in {type(settings).__name__}")
    return settings


def check_trust(
    settings: BaseModel,
    final: Mapping[str, Any],
    user_data: Mapping[str, Any],
    artefacts: Iterable[Path],
    source: Path | str,
    *,
    trust: bool,
) -> None:
    """Refuse settings that came with an artefact and name code or send a key.

    Parameters
    ----------
    settings : BaseModel
        As they would be used.
    final : mapping
        What they were validated from.
    user_data : mapping
        The part of ``final`` that comes from overrides and from files outside of artefacts.
    artefacts : iterable of Path
        Folders of the artefacts that the rest comes from.
    trust : bool
        Log them instead, and note that they are trusted.

    Raises
    ------
    ConfigError
        If there is such a value; the message lists all.
    """
    foreign = [
        pair
        for group in _groups(settings, ())
        if not all(_is_own(path, final, user_data) for path, _ in group)
        for pair in group
    ]
    folders = sorted(set(artefacts))
    if not foreign or _hashes(foreign) <= {h for folder in folders for h in _noted(folder)}:
        return
    lines = "\n".join(f"  {'.'.join(map(str, path))}: {_shown(value)}" for path, value in foreign)
    came_with = f"{source}: came with {', '.join(map(str, folders))}"
    if not trust:
        raise ConfigError(
            f"{came_with}, and says what code to run or where to send a key:\n{lines}\nread that;"
            " add --trust (in Python: load_config(…, trust=True)) if it may, or override it"
        )
    log.warning("%s; trusted (--trust):\n%s", came_with, lines)
    for folder in folders:
        note_trusted(folder, foreign)


def note_trusted(folder: Path, values: Iterable[tuple[KeyPath, Any]]) -> None:
    """Note outside of a run that its configuration may hold these values; older notes are replaced.

    Where the user's state folder cannot be written, ``--trust`` is needed again.
    """
    if hashes := _hashes(values):
        with contextlib.suppress(ConfigError, OSError, RuntimeError):
            note = _note_of(folder)
            content = {"folder": str(folder.resolve()), "values": sorted(hashes)}
            with contextlib.suppress(Exception):
                write_atomically(note, json.dumps(content, indent=2) + "\n", PRIVATE)


def _noted(folder: Path) -> set[str]:
    with contextlib.suppress(OSError, RuntimeError, ValueError, TypeError, KeyError):
        return set(json.loads(_note_of(folder).read_bytes())["values"])
    return set()


def _note_of(folder: Path) -> Path:
    state_home = os.environ.get("XDG_STATE_HOME", "")
    state = Path(state_home) if os.path.isabs(state_home) else Path.home() / ".local" / "state"
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    return state / "flipbench" / "trusted" / f"{name}.json"


def _is_own(path: KeyPath, final: Mapping[str, Any], user_data: Mapping[str, Any]) -> bool:
    """Return whether a value is a default or what the user's own part says."""
    try:
        value = value_at(final, path)
    except KeyError:
        return True
    except TypeError:
        return False
    try:
        return bool(value_at(user_data, path) == value)
    except (KeyError, TypeError):
        return False


def _hashes(values: Iterable[tuple[KeyPath, Any]]) -> set[str]:
    return {
        hashlib.sha256(json.dumps(pair, sort_keys=True, default=str).encode()).hexdigest()
        for pair in values
    }


def _plain(value: Any) -> Any:
    """Return a value as it is in a stored configuration."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return json.loads(json.dumps(value, default=str))


def _shown(value: Any) -> str:
    """Return a value in ASCII, so that it cannot steer a terminal."""
    text = json.dumps(value, default=str)
    left_out = len(text) - _MOST_SHOWN
    return text if left_out <= 0 else f"{text[:_MOST_SHOWN]}… ({left_out:,} more characters)"
