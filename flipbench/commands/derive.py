"""Commands made of functions: arguments, options, defaults and help are those of the function."""

from __future__ import annotations

import builtins
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from flipbench.api.options import Option
from flipbench.core.errors import ConfigError

_SIMPLE = (bool, int, float, Path, str)
"""The types that a command line has, the preferred one of a union first."""
_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)


class _UnimportedType(type):
    """Attributes and unions of a type that only type checkers import."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, _: object) -> type:
        return cls


class _Unimported(metaclass=_UnimportedType):
    """Stands for a type that only type checkers import, so that help imports nothing heavy."""


class _Names(dict[str, Any]):
    """A module's names; those that it imports for type checkers only are `_Unimported`."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name, _Unimported)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function, and how it is written on the command line."""

    name: str
    annotation: Any
    default: Any
    is_argument: bool
    option: Option
    is_many: bool
    is_mapping: bool
    help: str

    @classmethod
    def of(cls, parameter: inspect.Parameter, names: _Names, help: str) -> Parameter:
        """Return a parameter of a function of a module with these ``names``."""
        annotation = parameter.annotation
        if isinstance(annotation, str):
            annotation = eval(annotation, {}, names)  # as typing.get_type_hints does
        option = Option()
        if get_origin(annotation) is Annotated:
            annotation, *metadata = get_args(annotation)
            option = next((m for m in metadata if isinstance(m, Option)), option)
        members = _members(annotation)
        sequences = [m for m in members if get_origin(m) in (list, Sequence)]
        is_many = bool(sequences) and not option.is_single
        is_text = bool({str, Path} & {*members})
        is_mapping = not (is_text or is_many) and any(get_origin(m) is Mapping for m in members)
        elements = [a for m in sequences for a in get_args(m)] if is_many else []
        simple = _simple([*members, *elements], elements)
        return cls(
            parameter.name,
            list[str] if is_mapping else list[simple] if is_many else simple,  # type: ignore[valid-type]
            parameter.default,
            parameter.kind is not inspect.Parameter.KEYWORD_ONLY
            and not any(name.startswith("-") for name in option.names),
            option,
            is_many or is_mapping,
            is_mapping,
            option.help or help,
        )

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    def typer_parameter(self) -> inspect.Parameter:
        """Return the parameter that typer reads."""
        option, annotation = self.option, self.annotation
        default = False if option.is_off else self.default
        if default in (None, "", ()) or (self.is_many and not self.is_required):
            annotation, default = annotation | None, None
        info: Any
        if self.is_argument:
            metavar = option.metavar or self.name.upper()
            info = typer.Argument(metavar=metavar, help=self.help)
        else:
            names = option.names or (f"--{self.name.replace('_', '-')}",)
            info = typer.Option(*names, metavar=option.metavar, min=option.min, help=self.help)
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=Annotated[annotation, info],
            default=default,
        )

    def value(self, typed: Any) -> Any:
        """Return what the function is given for what was typed."""
        if typed is None or (self.is_many and not typed):
            return self.default
        if self.is_mapping:
            return dict(self._pair(text) for text in typed)
        if parse := self.option.parse:
            return [parse(text) for text in typed] if self.is_many else parse(typed)
        return not typed if self.option.is_off else typed

    def _pair(self, text: str) -> tuple[str, str]:
        if "=" not in text:
            raise ConfigError(f"{self.option.names[0]}: write {self.option.metavar}, e.g. id=qid")
        key, _, value = text.partition("=")
        return key, value


def _members(annotation: Any) -> tuple[Any, ...]:
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return get_args(annotation) if is_union else (annotation,)


def _simple(members: Sequence[Any], elements: Sequence[Any]) -> Any:
    """Return the type of a union that a command line can give."""
    flat = [m for member in members for m in _members(member)]
    for member in flat:
        if get_origin(member) is Literal:
            return member
        if get_origin(member) is tuple and member in elements:
            return str  # which its option parses
    return next((simple for simple in _SIMPLE if simple in flat), str)


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """Return a function's or class's parameters, with their help."""
    helps = parameter_helps(inspect.getdoc(function) or "")
    code: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    names = _Names(inspect.unwrap(code).__globals__)
    parameters = inspect.signature(function).parameters.values()
    return [
        Parameter.of(parameter, names, helps.get(parameter.name, ""))
        for parameter in parameters
        if parameter.name != "self"
    ]


def parameter_helps(docstring: str) -> dict[str, str]:
    r"""Return the first paragraph on each parameter of a numpydoc docstring.

    >>> parameter_helps("F.\n\nParameters\n----------\na, b : int\n    How ``many``.\n")
    {'a': 'how many', 'b': 'how many'}
    """
    helps: dict[str, str] = {}
    sections = _SECTION.split(docstring)
    text = dict(zip(sections[1::2], sections[2::2], strict=True)).get("Parameters", "")
    for entry in re.split(r"\n(?=\S)", text.strip("\n")) if text else ():
        head, _, body = entry.partition("\n")
        paragraph = " ".join(inspect.cleandoc(body).split("\n\n")[0].split())
        for name in head.split(" : ")[0].split(","):
            helps[name.strip(" *")] = _as_help(paragraph)
    return helps


def _as_help(text: str) -> str:
    """Return a sentence as help is written: no full stop, no capital, no quotes of code."""
    text = text.replace("``", "").removesuffix(".")
    is_word = text[:2].istitle() or text[1:2] == " "
    return text[:1].lower() + text[1:] if is_word else text


def summary(docstring: str) -> str:
    """Return what a docstring says before its sections, without the quotes of code."""
    return _SECTION.split(docstring)[0].strip().replace("``", "`")
