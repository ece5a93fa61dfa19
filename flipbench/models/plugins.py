"""User implementations: built from an import path and checked against their protocol."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from flipbench.core.errors import ConfigError, shorten
from flipbench.core.images import ImageStore
from flipbench.core.records import Probe, Response, content_id
from flipbench.core.registry import load_target
from flipbench.models.protocols import VLM, Capability


def build_target(target: str, arguments: Mapping[str, Any], protocol: type) -> Any:
    """Return an object of the class at an import path, which is checked before it is called.

    Parameters
    ----------
    target : str
        A class: ``my_pkg.mod:MyEditor``.
    arguments : mapping
        Its keyword arguments.
    protocol : type
        The protocol of its objects: `Captioner`, `Editor`, `Judge` or `VLM`.

    Raises
    ------
    ConfigError
        If there is no such target, or it or its object does not satisfy the protocol.
    """
    cls = load_target(target)
    if not isinstance(cls, type):
        raise ConfigError(f"target: {target!r} is not a class, but {shorten(repr(cls))}")
    _check_methods(cls, protocol, target)
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"arguments: {target} does not accept them: {error}") from error
    except ValueError:
        pass  # some classes written in C have no signature
    return check_protocol(cls(**arguments), protocol, target)


def _check_methods(cls: type, protocol: type, target: str) -> None:
    """Raise unless a class has the protocol's methods, and they take its arguments."""
    for name in _methods(protocol):
        method = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
        if not callable(method):
            raise ConfigError(
                f"target: {target} has no method {name}, which a {protocol.__name__} needs"
                " (flipbench/models/protocols.py)"
            )
        parameters = list(inspect.signature(getattr(protocol, name)).parameters)
        try:
            inspect.signature(method).bind(*parameters)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"target: {name} of {target} does not take ({', '.join(parameters)}), as that of a"
                f" {protocol.__name__} does ({error})"
            ) from error


def _methods(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if name == "__call__" or not name.startswith("_")]


def check_protocol(thing: Any, protocol: type, label: str) -> Any:
    """Return ``thing`` after checking that it is an object with all that a protocol requires."""
    absent = [
        name
        for name in dict.fromkeys([*protocol.__annotations__, *_methods(protocol)])
        if not (callable(thing) if name == "__call__" else hasattr(thing, name))
    ]
    if isinstance(thing, type):
        raise ConfigError(f"{label}: {thing.__name__} is a class; pass an instance")
    if absent:
        raise ConfigError(
            f"{label}: {type(thing).__name__} has no {', '.join(absent)}, which a"
            f" {protocol.__name__} needs (flipbench/models/protocols.py)"
        )
    return thing


class UserPart:
    """A user's captioner or judge, with other values of some attributes."""

    def __init__(self, part: Any, **attributes: Any) -> None:
        self.part = part
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        if name == "part":  # not set yet, in a copy
            raise AttributeError(name)
        return getattr(self.part, name)

    def __call__(self, *arguments: Any) -> Any:
        """Call the user's part."""
        return self.part(*arguments)


class PythonVLM:
    """A user's model; target and arguments are part of its fingerprint."""

    def __init__(self, target: str, arguments: Mapping[str, Any], name: str) -> None:
        self.vlm: VLM = build_target(target, arguments, VLM)
        self.name = name
        self.fingerprint = content_id(self.vlm.fingerprint, target, arguments)
        self.can: frozenset[Capability] = frozenset(self.vlm.can)

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        """Answer a batch, in order."""
        about = {"model": self.name, "model_fingerprint": self.fingerprint}
        return [
            answer if isinstance(answer, Exception) else answer.revised(**about)
            for answer in self.vlm.ask(probes, images)
        ]
