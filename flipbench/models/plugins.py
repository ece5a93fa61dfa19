"""Objects of your own in the place of ours: by import path, and held to the protocol."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from flipbench.core.errors import ConfigError
from flipbench.core.images import ImageStore
from flipbench.core.records import JsonDict, Probe, Response, content_id
from flipbench.core.registry import load_target
from flipbench.models.protocols import VLM, Capability


def build_target(target: str, arguments: Mapping[str, Any], protocol: type) -> Any:
    """Call what an import path names, and return what it made.

    Parameters
    ----------
    target : str
        A class or factory: ``my_pkg.mod:MyEditor``.
    arguments : mapping
        What it is called with, by name.
    protocol : type
        `Captioner`, `Editor`, `Judge` or `VLM`: what it must make.

    Raises
    ------
    ConfigError
        Where there is no such target, it takes other arguments, or what it makes lacks an attribute
        of the protocol.
    """
    factory = load_target(target)
    if not callable(factory):
        raise ConfigError(f"target: {target!r} is no class or factory, but {factory!r}")
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"arguments: {target} cannot be called with them: {error}") from error
    except ValueError:
        pass  # some classes written in C do not tell their signature
    return keep_protocol(factory(**arguments), protocol, target)


def keep_protocol(thing: Any, protocol: type, what: str) -> Any:
    """Return ``thing``, which must have every attribute and method of a protocol.

    Raises
    ------
    ConfigError
        Where it lacks one; ``what`` names it in the message.
    """
    methods = [name for name in vars(protocol) if name == "__call__" or not name.startswith("_")]
    lacking = [
        name
        for name in dict.fromkeys([*protocol.__annotations__, *methods])
        if not (callable(thing) if name == "__call__" else hasattr(thing, name))
    ]
    if isinstance(thing, type):
        raise ConfigError(f"{what}: {thing.__name__} is a class; give an object of it")
    if lacking:
        raise ConfigError(
            f"{what}: {type(thing).__name__} has no {', '.join(lacking)}; every"
            f" {protocol.__name__} does (flipbench/models/protocols.py)"
        )
    return thing


class PythonVLM:
    """A model of your own, whose answers are kept under its target and arguments too."""

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
        mine: JsonDict = {"id": "", "model": self.name, "model_fingerprint": self.fingerprint}
        return Response(**{**answer.__dict__, **mine})
