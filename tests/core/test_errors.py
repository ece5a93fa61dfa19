"""What an error says to install: every ``need(module, extra)`` names an extra that brings it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SOURCES = ("flipbench", "generate", "filters", "contaminate", "evaluate")
INSTALLED = metadata.packages_distributions()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RENAMED = {
    "cv2": "opencv-python-headless",
    "open_clip": "open-clip-torch",
    "sklearn": "scikit-learn",
}


def calls(source: str) -> Iterator[tuple[str, str]]:
    """Yield module and extra of each call of ``need``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "need":
            module, extra = (ast.literal_eval(argument) for argument in node.args)
            yield module, extra


def found() -> list[tuple[str, str, str]]:
    """Return file, module and extra of all calls in the product."""
    return [
        (path.relative_to(ROOT).as_posix(), module, extra)
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "need(" in (source := path.read_text())
        for module, extra in calls(source)
    ]


def packages(requirements: list[str]) -> set[str]:
    """Return the names of requirements, as the package index writes them."""
    return {normal(re.split(r"[^\w.-]", requirement)[0]) for requirement in requirements}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def package_of(module: str) -> str:
    top = module.partition(".")[0]
    installed = INSTALLED.get(top, [top])
    return normal(RENAMED.get(top, installed[0]))


def test_calls_are_found_wherever_they_stand() -> None:
    source = "def f():\n    x = need('a.b', 'extra').c(need)\n    errors.need('d', 'other')\n"
    assert set(calls(source)) == {("a.b", "extra"), ("d", "other")}
    assert {module for _, module, _ in found()} >= {"openai", "peft", "cv2", "sklearn"}


@pytest.mark.parametrize(("file", "module", "extra"), found())
def test_an_extra_brings_the_package_that_is_needed(file: str, module: str, extra: str) -> None:
    assert extra in PROJECT["optional-dependencies"], file
    assert package_of(module) in packages(PROJECT["optional-dependencies"][extra]), file
    assert package_of(module) not in packages(PROJECT["dependencies"]), "it is always there"


def test_a_wrong_extra_would_be_noticed() -> None:
    assert package_of("scipy.stats") in packages(PROJECT["dependencies"])
    assert package_of("openai") not in packages(PROJECT["optional-dependencies"]["diffusion"])
