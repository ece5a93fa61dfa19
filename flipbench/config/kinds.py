"""Parts of a configuration that are chosen by ``kind``: captioners, editors and judges.

The settings class of a kind is next to its implementation, where the registry finds it, so a new
kind is one new file. Installed packages add theirs through entry points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, get_origin

from pydantic import BaseModel, Field, GetCoreSchemaHandler, JsonValue, SerializationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from flipbench.config.trust import KeyPath
from flipbench.core.errors import ConfigError, nearest
from flipbench.core.records import JsonDict, Value
from flipbench.core.registry import discover, entry_points


@dataclass(frozen=True)
class Context:
    """What a backend is built with besides its settings.

    Attributes
    ----------
    folder : Path
        Folder for the state of Batch API requests.
    seed : int
        Seed for sampling on this machine.
    """

    folder: Path
    seed: int = 0


class PartSettings(Protocol):
    """The settings of one kind: a pydantic model whose ``kind`` is a literal with a default."""

    @property
    def kind(self) -> str:
        """The name in the configuration."""

    def build(self, context: Context) -> Any:
        """Return the captioner, editor or judge (`flipbench.models.protocols`)."""


class PythonTarget(Value):
    """Your own object, by import path; path and arguments are part of the ids of its records."""

    target: str
    """A class, e.g. my_pkg.mod:MyEditor."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Its keyword arguments."""

    def needs_trust(self) -> tuple[KeyPath, ...]:
        """Return both: they are what is called."""
        return (("target",), *([("arguments",)] if self.arguments else []))

    def as_settings(self) -> JsonDict:
        """Return both, for a record's settings."""
        return {"target": self.target, "arguments": self.arguments}


@dataclass(frozen=True)
class ByKind:
    """Validate a field by the settings class of its ``kind``; ``shapes`` is ``{kind: shapes}``.

    Attributes
    ----------
    package : str
        The package whose modules define the settings classes.
    group : str
        Entry point group for further ones; an entry point's name is the kind.
    """

    package: str
    group: str

    def classes(self) -> Iterator[type[BaseModel]]:
        """Yield every settings class, those of installed packages last."""
        yield from _classes_in(self.package).values()
        for name in entry_points(self.group):
            yield self._installed(name)

    def validate(self, value: Any) -> Any:
        """Return settings from a name, a mapping, or settings, which are returned unchanged."""
        if _is_settings(type(value)):
            return value
        data = {"kind": value} if isinstance(value, str) else value
        if not isinstance(data, Mapping):
            raise PydanticCustomError(
                "kind", "Input should be a kind or a mapping with the key kind"
            )
        if "kind" not in data:
            raise PydanticCustomError(
                "kind", "kind is missing; choose {known}", {"known": ", ".join(self._kinds())}
            )
        return self._class_of(str(data["kind"])).model_validate(data)

    def _kinds(self) -> list[str]:
        return sorted({*_classes_in(self.package), *entry_points(self.group)})

    def _class_of(self, kind: str) -> type[BaseModel]:
        if kind in (shipped := _classes_in(self.package)):
            return shipped[kind]
        if kind in (kinds := self._kinds()):
            return self._installed(kind)
        raise PydanticCustomError(
            "kind",
            "unknown kind '{kind}' (known: {known}){close}",
            {"kind": kind, "close": nearest(kind, kinds), "known": ", ".join(kinds)},
        )

    def _installed(self, name: str) -> type[BaseModel]:
        cls = entry_points(self.group)[name]()
        if not _is_settings(cls) or cls.model_fields["kind"].default != name:
            raise ConfigError(
                f"entry point {self.group}: {name!r} is not a settings class of that kind (a"
                f" pydantic model with 'kind: Literal[{name!r}] = {name!r}' and a method build)"
            )
        settings: type[BaseModel] = cls
        return settings

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        """Make pydantic validate with `validate` and serialize by the settings' own class."""
        return core_schema.no_info_plain_validator_function(
            self.validate,
            serialization=core_schema.plain_serializer_function_ser_schema(_dump, info_arg=True),
        )


def _dump(settings: BaseModel, info: SerializationInfo) -> Any:
    return settings.model_dump(mode=info.mode)


@cache
def _classes_in(package: str) -> dict[str, type[BaseModel]]:
    return {
        cls.model_fields["kind"].default: cls
        for module in discover(package)
        for cls in vars(module).values()
        if _is_settings(cls) and cls.__module__ == module.__name__
    }


def _is_settings(cls: Any) -> bool:
    return (
        isinstance(cls, type)
        and issubclass(cls, BaseModel)
        and "kind" in cls.model_fields
        and get_origin(cls.model_fields["kind"].annotation) is Literal
        and callable(getattr(cls, "build", None))
    )


def is_plug_in(spec: PartSettings) -> bool:
    """Return whether a part is the user's own or an installed package's; a dry run builds none."""
    return isinstance(spec, PythonTarget) or not type(spec).__module__.startswith("flipbench.")


CaptionerSpec = Annotated[
    PartSettings, ByKind("flipbench.generate.captioners", "flipbench.captioners")
]
EditorSpec = Annotated[PartSettings, ByKind("flipbench.generate.editors", "flipbench.editors")]
JudgeSpec = Annotated[PartSettings, ByKind("flipbench.filters.judges", "flipbench.judges")]
