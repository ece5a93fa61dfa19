"""The detectors by name, discovered rather than listed.

A detector is a class with ``about``, ``probes`` and ``score`` (or ``score_grid``) that needs no
arguments. Detectors come from the folders beside this file, from the entry point group
``flipbench.detectors`` of installed packages, and from import paths in a configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flipbench.core.errors import ConfigError, nearest
from flipbench.core.registry import discover, entry_points, load_target

from ..protocol.detector import About, AnyDetector, HelpedDetector, Helpers

GROUP = "flipbench.detectors"
_HERE = __name__.rpartition(".")[0]

DETECTORS: dict[str, AnyDetector] = {}
"""Every known detector by name, with default parameters."""


def add_detector(cls: Any, origin: str) -> str:
    """Register a detector class under its name, and return the name.

    Raises
    ------
    ConfigError
        If it is not a detector class, or another detector has its name; the message starts with
        ``origin``.
    """
    try:
        detector = cls() if _is_detector(cls) else None
    except TypeError as error:
        raise ConfigError(f"{origin}: {cls.__name__} needs arguments ({error})") from error
    if detector is None or not isinstance(detector.about, About):
        raise ConfigError(
            f"{origin}: {cls!r} is not a detector: a class with 'about' (an About), 'probes', and"
            " 'score' or 'score_grid'"
        )
    name: str = detector.about.name
    registered = DETECTORS.setdefault(name, detector)
    if type(registered) is not cls:
        raise ConfigError(
            f"{origin}: the detector {name!r} exists already ({import_path(registered)}); choose"
            " another name in 'about'"
        )
    return name


def names_of(detectors: Iterable[str], key: str) -> list[str]:
    """Return the names of detectors given by name or by import path (``my_pkg.mod:MyDetector``).

    Raises
    ------
    ConfigError
        If there is no such detector; the message starts with ``key``.
    """
    names = []
    for name in detectors:
        if ":" in name:
            names.append(add_detector(load_target(name, key), key))
        elif name in DETECTORS:
            names.append(name)
        else:
            raise ConfigError(f"{key}: no detector {name!r}{nearest(name, list(DETECTORS))}")
    return names


def make_detector(name: str, helpers: Helpers | None = None) -> AnyDetector:
    """Return a new detector, with the helpers it uses."""
    detector = type(DETECTORS[name])()
    if helpers is not None and isinstance(detector, HelpedDetector):
        return detector.with_helpers(helpers)
    return detector


def default_rule(detector: AnyDetector | str) -> str:
    """Return the default decision rule of a detector or of its name.

    >>> default_rule("perturbation_gap")
    'mcnemar'
    """
    return (DETECTORS[detector] if isinstance(detector, str) else detector).about.default_rule


def import_path(detector: AnyDetector) -> str:
    """Return the import path of a detector's class.

    >>> import_path(DETECTORS["codec"]).removeprefix("flipbench.")
    'evaluate.detectors.likelihood.codec:CoDeC'
    """
    return f"{type(detector).__module__}:{type(detector).__qualname__}"


def is_plug_in(name: str) -> bool:
    """Return whether a detector comes from outside flipbench."""
    return not import_path(DETECTORS[name]).startswith(f"{_HERE}.")


def markdown_table(names: Iterable[str]) -> str:
    """Return the table of docs/papers.md."""
    header = (
        "method", "paper", "file", "access", "rules", "clean model", "evidence", "caveat",
        "differs from the paper in",
    )  # fmt: skip
    rows = [header, ("---",) * len(header)]
    for name in names:
        about, module = DETECTORS[name].about, type(DETECTORS[name]).__module__
        file = f"`{module.removeprefix('flipbench.').replace('.', '/')}.py`"
        needs = ", ".join(sorted(about.needs))
        rows.append(
            (about.title, about.paper, file, needs, about.variant, about.clean_model,
             about.evidence or "–", about.caveat or "–", about.deviates_from_paper)
        )  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _is_detector(value: Any) -> bool:
    has_scores = hasattr(value, "score") or hasattr(value, "score_grid")
    has_facts = hasattr(value, "about") and hasattr(value, "probes")
    return isinstance(value, type) and has_scores and has_facts


for _module in discover(_HERE):
    for _value in [*vars(_module).values()]:
        if _is_detector(_value) and _value.__module__ == _module.__name__:
            add_detector(_value, _module.__name__)
for _name, _load in entry_points(GROUP).items():
    add_detector(_load(), f"entry point {GROUP}: {_name}")
