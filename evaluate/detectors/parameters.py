"""The parameters of a detector that a configuration may set: its counts and fractions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from flipbench.core.errors import ConfigError, nearest

from ..protocol.detector import AnyDetector
from ..scoring.conditions import Settings

_PLAIN = (int, float, bool, tuple[float, ...], int | None)


def parameters_of(detector: AnyDetector) -> dict[str, Any]:
    """Return the parameters of a detector and their values: its own, then those of its tests.

    >>> from flipbench.evaluate.detectors.likelihood.codec import CoDeC
    >>> list(parameters_of(CoDeC()))
    ['n_context', 'n_draws', 'alpha', 'n_bootstrap', 'n_permutations', 'max_items']
    """
    of_tests = _plain(vars(detector).get("settings"))
    return _plain(detector) | {k: v for k, v in of_tests.items() if k != "seed"}


def with_parameters(
    detector: AnyDetector, parameters: Mapping[str, Any], key: str = "parameters"
) -> AnyDetector:
    """Return the detector with these parameters.

    Raises
    ------
    ConfigError
        If a name or a value is not valid; the message starts with ``key``.
    """
    defaults = parameters_of(detector)
    values = {}
    for name, value in parameters.items():
        if name not in defaults:
            raise ConfigError(
                f"{key}.{name}: {detector.about.name} has no such parameter; it has"
                f" {', '.join(defaults)}{nearest(name, list(defaults))}"
            )
        values[name] = _validated(type(defaults[name]), value, f"{key}.{name}")
    of_tests = {f.name for f in fields(Settings)} & values.keys() - _plain(detector).keys()
    changes = {name: value for name, value in values.items() if name not in of_tests}
    try:
        if of_tests:
            tests = {name: values[name] for name in of_tests}
            changes["settings"] = replace(vars(detector)["settings"], **tests)
        return cast(AnyDetector, replace(cast(Any, detector), **changes)) if values else detector
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


def _plain(instance: Any) -> dict[str, Any]:
    if not is_dataclass(instance):
        return {}
    hints = get_type_hints(type(instance))
    return {f.name: getattr(instance, f.name) for f in fields(instance) if hints[f.name] in _PLAIN}


def _validated(kind: type, value: Any, key: str) -> Any:
    field_type: Any = {tuple: tuple[float, ...], type(None): int | None}.get(kind, kind)
    try:
        valid: Any = TypeAdapter(field_type).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{key}: {value!r}: {error.errors()[0]['msg']}") from error
    numbers = valid if isinstance(valid, tuple) else (valid,)
    if kind is not bool and not (numbers and all(n is None or n > 0 for n in numbers)):
        raise ConfigError(f"{key}: {value!r}: must be above 0")
    return valid
