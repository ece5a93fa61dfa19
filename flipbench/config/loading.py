"""Read a configuration as one mapping: ``extends:``, ``key=value`` overrides, renamed keys."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from flipbench.config.kinds import ByKind
from flipbench.config.trust import artefact_of, check_trust, settings_to_trust
from flipbench.config.yaml_text import MAX_DEPTH, explain, parse_yaml, read_yaml
from flipbench.core.confined import UnsafePathError, confined_path, read_confined
from flipbench.core.errors import ConfigError, nearest, shorten

log = logging.getLogger(__name__)
Model = TypeVar("Model", bound=BaseModel)
PACKAGE = Path(__file__).parents[1]
_TAGS = ("kind", "format")

OLD_KEYS: dict[str, str] = {
    "evaluate.asking": "evaluate.prompt",
    "filter.judges.*.asking": "filter.judges.*.prompt",
}
"""Renamed keys, old to new, as dotted paths; the old names are still read.

In the part that both paths have in common, ``*`` matches any key or list element, as in
``models.*.base_url``.
"""


def find_config(name: str | Path, folder: Path = Path()) -> Path:
    """Return a file below ``folder``, or the one of this name shipped with flipbench.

    ``configs/…`` and ``../flipbench/shapes/demo.yaml`` work from any folder.
    """
    path, shipped = folder / name, _shipped(name)
    try:
        return shipped if shipped.is_file() and not path.exists() else path
    except OSError:  # too long a name: reading it says so
        return path


def _shipped(name: str | Path) -> Path:
    """Return the path that a file of this name would have if it were shipped with flipbench."""
    steps = [step for step in Path(name).parts if step not in ("..", "flipbench")]
    return PACKAGE.joinpath(*steps) if steps[:1] in (["configs"], ["shapes"]) else Path(name)


def read_trusted(
    cls: type[Model],
    source: Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    trust: bool = False,
) -> Model:
    """Return a configuration as a ``cls``, unless an artefact's part of it names code.

    Raises
    ------
    ConfigError
        As `read_mapping`, `validated` and `flipbench.config.trust.check_trust`.
    """
    where = "configuration" if isinstance(source, Mapping) else source
    data = read_mapping(source, overrides)
    settings = validated(cls, data, where)
    if any(True for _ in settings_to_trust(settings)):
        artefacts: set[Path] = set()
        own_data = read_mapping(source, overrides, artefacts)
        if artefacts:
            check_trust(settings, data, own_data, artefacts, where, trust=trust)
    return settings


def read_mapping(
    source: Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    artefacts: set[Path] | None = None,
) -> dict[str, Any]:
    """Return a file merged with those it extends and with overrides, under current keys.

    A mapping in the place of a file may extend files, too.

    Parameters
    ----------
    artefacts : set of Path, optional
        If given, files that are part of an artefact are left out, and its folder is added here.

    Raises
    ------
    ConfigError
        If a file is missing or not YAML, or an override is not ``key=value``.
    DataError
        If a file of an artefact extends one outside of it.
    """
    if isinstance(source, Mapping):
        data = _extended(deepcopy(dict(source)), None, (), artefacts)
    else:
        data = _read(source, (), artefacts)
    overridden: set[tuple[str, ...]] = set()
    for override in overrides:
        key, equals, value = override.partition("=")
        short = shorten(override)
        if not equals or not key:
            raise ConfigError(f"{short!r}: overrides have the form key=value, e.g. seed=1")
        keys = key.split(".")
        if len(keys) > MAX_DEPTH:
            raise ConfigError(f"{short!r}: a key has at most {MAX_DEPTH} parts")
        try:
            _set(data, keys, parse_yaml(value), overridden)
        except yaml.YAMLError as error:
            raise ConfigError(f"{short!r}: the value is not YAML ({explain(error)})") from error
        rename_keys(data, short)
    return data


def rename_keys(data: dict[str, Any], source: str) -> None:
    """Move values under `OLD_KEYS` to the new ones, with a warning for each.

    A value under an old key replaces one under the new key, since overrides are applied on top of
    files. ``where`` is the file or override, for the warning.
    """
    for old, new in OLD_KEYS.items():
        if _move(data, old.split("."), new.split(".")):
            log.warning("%s: %s is now %s; the old name is still read", source, old, new)


def _move(node: Any, old_path: Sequence[str], new_path: Sequence[str]) -> bool:
    if len(old_path) > 1 and len(new_path) > 1 and old_path[0] == new_path[0]:
        if isinstance(node, list):
            inner = node if old_path[0] == "*" else []
        elif isinstance(node, dict):
            inner = list(node.values()) if old_path[0] == "*" else [node.get(old_path[0])]
        else:
            inner = []
        return any([_move(child, old_path[1:], new_path[1:]) for child in inner])
    parent = node
    for key in old_path[:-1]:
        parent = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(parent, dict) or old_path[-1] not in parent:
        return False
    value = parent.pop(old_path[-1])
    for key in reversed(new_path):
        value = {key: value}
    _merge(node, value)
    return True


def _read(path: Path, extended_by: tuple[Path, ...], artefacts: set[Path] | None) -> dict[str, Any]:
    if artefacts is not None and (folder := artefact_of(path)):
        artefacts.add(folder)
        return {}
    try:
        if path.resolve() in extended_by:
            raise ConfigError(f"{path}: circular 'extends'")
        data = read_yaml(read_confined(path, None, name=path.name).decode(), str(path))
    except FileNotFoundError as error:
        folders = (path.parent, _shipped(path).parent)
        close = nearest(path.name, [p.name for folder in folders for p in folder.glob("*.yaml")])
        by = f" (extended by {extended_by[-1]})" if extended_by else ""
        raise ConfigError(f"{path}: no such configuration file{by}{close}") from error
    except (OSError, ValueError, UnsafePathError) as error:
        reason = shorten(str(error))
        if isinstance(error, UnsafePathError) and path.is_dir():
            reason = "a folder; give the YAML file"
        elif isinstance(error, UnicodeDecodeError):
            reason = "not text in UTF-8; give a YAML file"
        raise ConfigError(f"{shorten(str(path))}: cannot be read ({reason})") from error
    if not isinstance(data, dict):
        type_name = "nothing" if data is None else type(data).__name__
        raise ConfigError(f"{path}: a configuration must be a mapping of keys, not {type_name}")
    return _extended(data, path, (*extended_by, path.resolve()), artefacts)


def _extended(
    data: dict[str, Any],
    path: Path | None,
    extended_by: tuple[Path, ...],
    artefacts: set[Path] | None,
) -> dict[str, Any]:
    """Return what the file ``path`` holds on top of the files it extends."""
    where = path or "configuration"
    extends = data.pop("extends", [])
    bases = [extends] if isinstance(extends, str) else extends
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        shown_value = shorten(repr(extends))
        raise ConfigError(
            f"{where}: 'extends' must be a file or a list of files, not {shown_value}"
        )
    combined: dict[str, Any] = {}
    artefact = artefact_of(path) if path and bases else None
    for base in bases:
        extended = find_config(base, path.parent if path else Path())
        if artefact and not Path(os.path.abspath(extended)).is_relative_to(PACKAGE):
            confined_path(extended.absolute(), artefact)
        _merge(combined, _read(extended, extended_by, artefacts))
    rename_keys(data, str(where))
    _merge(combined, data)
    return combined


def _merge(into: dict[str, Any], data: dict[str, Any]) -> None:
    for key, value in data.items():
        base = into.get(key)
        if isinstance(value, dict) and isinstance(base, dict) and not _replaces(base, value):
            _merge(base, value)
        else:
            into[key] = value


def _replaces(base: dict[str, Any], data: dict[str, Any]) -> bool:
    """Return whether ``data`` has another kind or format than ``base`` and so replaces it."""
    return any(tag in data and data[tag] != base.get(tag) for tag in _TAGS)


def _set(
    data: dict[str, Any], keys: list[str], value: Any, overridden: set[tuple[str, ...]]
) -> None:
    for key in keys[:-1]:
        inner = data.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                f"{'.'.join(keys)}: {key} is {shorten(repr(inner))}, which has no keys"
            )
        data = inner
    *parents, last_key = keys
    is_tag = last_key in _TAGS and isinstance(value, str) and parents[-1:] != ["control"]
    if is_tag and data.get(last_key, value) != value:
        # another format has other keys: keep only those that were set by overrides
        for key in [key for key in data if (*parents, key) not in overridden]:
            del data[key]
    data[last_key] = value
    overridden |= {tuple(keys[: n + 1]) for n in range(len(keys))}


def validated(cls: type[Model], data: Any, where: str | Path) -> Model:
    """Return ``data`` as a ``cls``.

    Raises
    ------
    ConfigError
        One message lists all problems, with the closest known name for each unknown key.
    """
    try:
        model = cls.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}:\n" + "\n".join(_explain(error, data, cls))) from error
    if bad_values := list(_not_numbers(data, model, "")):
        lines = [f"  {key}: a number, not {value_text}" for key, value_text in bad_values]
        raise ConfigError(f"{where}:\n" + "\n".join(lines))
    return model


def _not_numbers(data: Any, value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield the keys with true or false that became 1 or 0, and those with no finite number."""
    if isinstance(data, bool) and isinstance(value, int | float) and not isinstance(value, bool):
        yield key, str(data).lower()
    elif isinstance(value, float) and not math.isfinite(value):
        yield key, str(value)
    elif isinstance(data, Mapping) and isinstance(value, BaseModel | Mapping):
        for name, inner in data.items():
            inner_value = (
                value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
            )
            yield from _not_numbers(inner, inner_value, f"{key}.{name}".lstrip("."))
    elif isinstance(data, list) and isinstance(value, list | tuple):
        for number, (inner, inner_value) in enumerate(zip(data, value, strict=False)):
            yield from _not_numbers(inner, inner_value, f"{key}.{number}")


def _explain(error: ValidationError, data: Any, cls: type[BaseModel]) -> Iterator[str]:
    for problem in error.errors():
        key = ".".join(_keys(problem["loc"], data))
        if problem["type"] == "extra_forbidden":
            names = sorted(_field_names(cls))
            name = str(problem["loc"][-1])
            candidates = [field for field in names if field != name]  # it may be valid elsewhere
            yield f"  {shorten(key)}: unknown key{nearest(name, candidates)}"
        elif problem["type"] == "missing":
            yield f"  {key}: missing"
        else:
            value_text = shorten(repr(problem["input"]))
            yield f"  {key}: {shorten(problem['msg'], 300)} (got {value_text})"


def _keys(location: Sequence[int | str], data: Any) -> Iterator[str]:
    """Yield the keys to a problem, without the union tags (formats) that pydantic adds."""
    for step in location:
        if isinstance(data, dict) and step not in data and step == data.get("format"):
            continue
        yield str(step)
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            data = None


def _field_names(model: type[BaseModel]) -> set[str]:
    """Return the names of all fields of a model and of the models in it."""
    names: set[str] = set()
    models, visited = [model], {model}
    while models:
        for name, field in models.pop().model_fields.items():
            names.add(name)
            inner = {
                nested
                for part in (field.annotation, *field.metadata)
                for nested in _models_in(part)
            }
            models += inner - visited
            visited |= inner
    return names


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, ByKind):
        yield from annotation.classes()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
