"""Commands are derived from functions: nothing about a parameter is written twice."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from typer.main import get_command

import flipbench as fb
from flipbench.api.options import Limit, Option, Progress
from flipbench.cli import app
from flipbench.commands.derive import Parameter, parameter_helps, parameters_of, summary
from flipbench.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from nowhere import Thing  # type: ignore[import-not-found]


def job(
    source: Thing | str | Path,
    rest: Annotated[Sequence[str], Option(metavar="[REST]...")] = (),
    *,
    kind: Literal["a", "b"] = "a",
    share: Annotated[float | None, Option("--percent", parse=lambda value: value / 100)] = None,
    columns: Annotated[Mapping[str, str] | None, Option("--column", metavar="NAME=COLUMN")] = None,
    models: Annotated[Thing | Sequence[Thing], Option("--model")] = (),
    names: Annotated[str | Sequence[str], Option("--names", is_single=True)] = (),
    frame: pd.DataFrame | None = None,
    limit: Limit = None,
    progress: Progress = True,
    deep: bool = False,
) -> None:
    """Do ``something`` long.

    More about it.

    Parameters
    ----------
    source : Thing, str or Path
        A file, or ``more``.

        In Python also a Thing.
    rest, names : sequence of str
        The rest.
    share : float, optional
        CSV files show it in percent.
    """


@pytest.fixture
def parameters() -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in parameters_of(job)}


def test_arguments_and_options_are_those_of_the_signature(
    parameters: dict[str, Parameter],
) -> None:
    assert [name for name, p in parameters.items() if p.is_argument] == ["source", "rest"]
    assert parameters["source"].annotation is Path and parameters["source"].is_required
    assert parameters["rest"].annotation == list[str]
    assert parameters["kind"].annotation == Literal["a", "b"]
    assert parameters["models"].is_many and not parameters["names"].is_many
    assert parameters["frame"].annotation is str and not parameters["frame"].is_required
    assert parameters["deep"].typer_parameter().default is False
    assert parameters["progress"].typer_parameter().default is False


def test_help_is_the_first_paragraph_of_a_description(parameters: dict[str, Parameter]) -> None:
    assert parameters["source"].help == "a file, or more"
    assert parameters["names"].help == parameters["rest"].help == "the rest"
    assert parameters["share"].help == "CSV files show it in percent"
    assert parameters["progress"].help == "no progress bars"
    assert summary(inspect.getdoc(job) or "") == "Do `something` long.\n\nMore about it."
    assert parameter_helps("No sections.") == {}


@pytest.mark.parametrize(
    ("name", "typed", "value"),
    [
        ("share", 30.0, 0.3),
        ("share", None, None),
        ("columns", ["id=qid", "a=b=c"], {"id": "qid", "a": "b=c"}),
        ("columns", [], None),
        ("models", ["x", "y"], ["x", "y"]),
        ("models", None, ()),
        ("names", None, ()),
        ("progress", True, False),
        ("deep", True, True),
    ],
)
def test_what_is_typed_is_what_python_would_be_given(
    parameters: dict[str, Parameter], name: str, typed: Any, value: Any
) -> None:
    assert parameters[name].value(typed) == value


def test_a_pair_that_is_none_is_named(parameters: dict[str, Parameter]) -> None:
    with pytest.raises(ConfigError, match="--column: write NAME=COLUMN"):
        parameters["columns"].value(["qid"])


def test_every_job_of_the_command_line_is_one_of_python() -> None:
    jobs = {name for name in dir(fb) if name.islower()} - {"read_benchmark"}
    methods = {name for name in vars(fb.Experiment) if not name.startswith("_")}
    names = {"import": "read_benchmark"}
    commands = getattr(get_command(app), "commands", {})
    assert {names.get(name, name) for name in commands} <= jobs | methods
    for name, command in commands.items():
        function = getattr(fb.Experiment, names.get(name, name), None)
        function = function or getattr(fb, names.get(name, name))
        listed = {parameter.name for parameter in command.params}
        assert {parameter.name for parameter in parameters_of(function)} <= listed
        assert ("dry_run" in listed) == getattr(function, "has_dry_run", False)
