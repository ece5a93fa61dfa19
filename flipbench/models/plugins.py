"""User implementations: built from an import path and checked against their protocol."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from flipbench.core.errors import ConfigError
from flipbench.core.images import ImageStore
from flipbench.core.records import Probe, Response, content_id
from flipbench.core.registry import load_target
from flipbench.models.protocols import VLM, Capability


def build_target(target: str, arguments: Mapping[str, Any], protocol: type) -> Any:
    """Call the class or factory at an import path and return its result.

    Parameters
    ----------
    target : str
        A class or factory: ``my_pkg.mod:MyEditor``.
    arguments : mapping
        Its keyword arguments.
    protocol : type
        The protocol of the result: `Captioner`, `Editor`, `Judge` or `VLM`.

    Raises
    ------
    ConfigError
        If there is no such target, it takes other arguments, or its result lacks an attribute of
        the protocol.
    """
    factory = load_target(target)
    if not callable(factory):
        raise ConfigError(f"target: {target!r} is not a class or factory, but {factory!r}")
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"arguments: {target} does not accept them: {error}") from error
    except ValueError:
        pass  # some classes written in C have no signature
    return check_protocol(factory(**arguments), protocol, target)


def check_protocol(thing: Any, protocol: type, what: str) -> Any:
    """Return ``thing`` after checking that it has every attribute and method of a protocol.

    Raises
    ------
    ConfigError
        If it lacks one, or is a class; ``what`` begins the message.
    """
    methods = [name for name in vars(protocol) if name == "__call__" or not name.startswith("_")]
    missing = [
        name
        for name in dict.fromkeys([*protocol.__annotations__, *methods])
        if not (callable(thing) if name == "__call__" else hasattr(thing, name))
    ]
    if isinstance(thing, type):
        raise ConfigError(f"{what}: {thing.__name__} is a class; pass an instance")
    if missing:
        raise ConfigError(
            f"{what}: {type(thing).__name__} has no {', '.join(missing)}, which a"
            f" {protocol.__name__} needs (flipbench/models/protocols.py)"
        )
    return thing


class PythonVLM:
    """A user's model; target and arguments are part of its fingerprint."""

    def __init__(self, target: str, arguments: Mapping[str, Any], name: str) -> None:
        self.vlm: VLM = build_target(target, arguments, VLM)
        self.name = name
        self.fingerprint = content_id(self.vlm.fingerprint, target, arguments)
        self.can: frozenset[Capability] = frozenset(self.vlm.can)

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        """Answer a batch, in order."""
        return [self._named(answer) for answer in self.vlm.ask(probes, images)]

    def _named(self, answer: Response | Exception) -> Response | Exception:
        if isinstance(answer, Exception):
            return answer
        return answer.revised(model=self.name, model_fingerprint=self.fingerprint)
