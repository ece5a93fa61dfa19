"""Find implementations in a package, by import path, or through entry points."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module, metadata
from importlib.resources import files
from inspect import getmodulename
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from flipbench.core.errors import ConfigError, nearest

__all__ = ["discover", "entry_points", "load_target"]


def discover(package: str) -> list[ModuleType]:
    """Import every module of a package and its subpackages, in alphabetical order.

    A package's own modules come before those of its subpackages. ``pkgutil.walk_packages`` would
    skip folders without an ``__init__.py``.

    >>> [module.__name__ for module in discover("json")]
    ['json.decoder', 'json.encoder', 'json.scanner', 'json.tool']
    """
    names: set[str] = set()
    folders: set[str] = set()
    for entry in files(package).iterdir():
        name = entry.name if entry.is_dir() else getmodulename(entry.name)
        if name and name.isidentifier() and not name.startswith("__"):
            (folders if entry.is_dir() else names).add(f"{package}.{name}")
    modules = [import_module(name) for name in sorted(names)]
    return [*modules, *(module for name in sorted(folders) for module in discover(name))]


def load_target(target: str, setting: str = "target") -> Any:
    """Return the object at an import path such as ``my_pkg.mod:MyDetector``.

    Its module is installed, or in a folder of ``PYTHONPATH``; importing it runs it.

    Parameters
    ----------
    setting : str
        The configuration key that holds the path, for messages.

    Raises
    ------
    ConfigError
        If the path does not have this form, or there is no such module or attribute.

    Examples
    --------
    >>> load_target("flipbench.core.errors:nearest").__name__
    'nearest'
    """
    module_name, colon, attribute = target.partition(":")
    if not (colon and all(part.isidentifier() for part in [*module_name.split("."), attribute])):
        raise ConfigError(
            f"{setting}: {target!r} is not an import path such as 'my_pkg.mod:MyClass'"
        )
    module = _import(module_name, setting)
    try:
        return getattr(module, attribute)
    except AttributeError:
        close = nearest(attribute, [name for name in vars(module) if not name.startswith("_")])
        raise ConfigError(
            f"{setting}: module {module_name!r} has no {attribute!r}{close}"
        ) from None


def entry_points(group: str) -> dict[str, Callable[[], Any]]:
    """Return a loader for each name that installed packages register in an entry point group.

    Raises
    ------
    ConfigError
        If two packages register the same name; also from a loader whose target does not exist.

    Examples
    --------
    >>> entry_points("flipbench.no_such_group")
    {}
    """
    loaders: dict[str, Callable[[], Any]] = {}
    for entry in sorted(metadata.entry_points(group=group), key=lambda entry: entry.name):
        if entry.name in loaders:
            raise ConfigError(f"two installed packages register {entry.name!r} as {group}")
        target = f"{entry.module}:{entry.attr}"
        loaders[entry.name] = partial(load_target, target, f"entry point {group}")
    return loaders


def _import(name: str, setting: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        absent = error.name or name
    if name != absent and not name.startswith(f"{absent}."):
        raise ConfigError(f"{setting}: {name!r} needs the package {absent!r}, which is missing")
    parent = absent.rpartition(".")[0]
    paths = getattr(import_module(parent), "__path__", []) if parent else sys.path
    close = nearest(absent, [f"{parent}.{m.name}".lstrip(".") for m in iter_modules(paths)])
    if not parent and (Path(f"{absent}.py").exists() or Path(absent).is_dir()):
        close = "; the current folder is not searched: install it, or set PYTHONPATH=. to allow it"
    raise ConfigError(f"{setting}: no module {absent!r}{close}")
