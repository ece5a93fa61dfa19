"""``import flipbench as fb``: quick, and complete."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import flipbench as fb

pytestmark = pytest.mark.slow

HEAVY = ("torch", "transformers", "datasets", "pandas", "numpy", "pydantic")
STAGES = ("contaminate", "evaluate", "generate")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_flipbench_imports_nothing_heavy() -> None:
    loaded = python(f"import sys, flipbench; print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_reading_the_documentation_imports_nothing_heavy() -> None:
    code = (
        "import sys, flipbench as fb; help(fb.detect); fb.evaluate.__doc__; dir(fb);"
        f"print('loaded', [m for m in {HEAVY} if m in sys.modules])"
    )
    assert python(code).splitlines()[-1] == "loaded []"


def test_stages_that_need_no_model_import_no_torch() -> None:
    stages = "flipbench.pipelines.generation, flipbench.pipelines.filtering"
    assert python(f"import sys, {stages}; print('torch' in sys.modules)").strip() == "False"


def test_every_name_is_there_and_documented() -> None:
    assert {*fb.__all__, "__version__"} == set(dir(fb))
    for name in fb.__all__:
        text = inspect.getdoc(getattr(fb, name)) or ""
        assert "Examples\n" in text or (name[0].isupper() and text), name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fb.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_is_both_a_package_and_a_function(name: str) -> None:
    code = (
        f"import flipbench as fb, flipbench.pipelines.loop, flipbench.{name};"
        f"print(callable(fb.{name}), list(fb.{name}.__path__) != []);"
        f"from flipbench.api import {name}; import inspect;"
        f"print(inspect.signature(fb.{name}) == inspect.signature({name}))"
    )
    assert python(code).split() == ["True"] * 3
