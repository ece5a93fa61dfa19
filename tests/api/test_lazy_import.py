"""``import flipbench as fb``: quick, and complete."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import flipbench as fb

pytestmark = pytest.mark.slow

HEAVY = ("torch", "transformers", "datasets", "pandas", "numpy", "pydantic")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_flipbench_imports_nothing_heavy() -> None:
    loaded = python(f"import sys, flipbench; print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_reading_the_documentation_imports_nothing_heavy() -> None:
    code = (
        "import sys, flipbench as fb; help(fb.detect); fb.Experiment.__doc__; dir(fb);"
        f"print('loaded', [m for m in {HEAVY} if m in sys.modules])"
    )
    assert python(code).splitlines()[-1] == "loaded []"


def test_stages_that_need_no_model_import_no_torch() -> None:
    rooms = ("generation", "filtering", "evaluation", "detection", "audit_corpus")
    stages = ", ".join(f"flipbench.api.stages.{room}" for room in rooms)
    assert python(f"import sys, {stages}; print('torch' in sys.modules)").strip() == "False"


def test_a_run_is_opened_without_heavy_libraries_which_are_quiet_when_they_come() -> None:
    heavy = ("torch", "transformers", "datasets", "diffusers", "pandas")
    code = (
        "import sys; from flipbench.api.stages import assembly;"
        f"print([m for m in {heavy} if m in sys.modules]); assembly.quiet_libraries();"
        "from transformers.utils import logging; import datasets.utils;"
        "print(logging.is_progress_bar_enabled(), logging.get_verbosity() == logging.ERROR,"
        " datasets.utils.are_progress_bars_disabled())"
    )
    for first in ("", "import transformers, datasets; "):
        found = python(first + code).splitlines()
        assert found[1] == "False True True"
        assert (found[0] == "[]") == (not first)


def test_the_list_of_detectors_computes_nothing_and_imports_little() -> None:
    heavy = ("torch", "pandas", "pyarrow", "scipy.stats", "scipy.optimize")
    code = "import sys, flipbench as fb; print(len(fb.detectors().overview().rows));"
    found = python(f"{code} print([m for m in {heavy} if m in sys.modules])").splitlines()
    assert int(found[0]) > 30 and found[1:] == ["[]"]


def test_every_name_is_there_and_documented() -> None:
    assert {*fb.__all__, "__version__"} == set(dir(fb))
    for name in fb.__all__:
        text = inspect.getdoc(getattr(fb, name)) or ""
        assert "Examples\n" in text or (name[0].isupper() and text), name
    with pytest.raises(AttributeError, match=r"'filter'; use flipbench.Experiment\(config\)"):
        _ = fb.filter  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fb.nothing  # type: ignore[attr-defined]


def test_a_stage_is_a_package_and_nothing_else() -> None:
    code = (
        "import flipbench as fb; from flipbench import evaluate;"
        "print(callable(evaluate), evaluate.__class__.__name__, fb.evaluate is evaluate)"
    )
    assert python(code).split() == ["False", "module", "True"]
