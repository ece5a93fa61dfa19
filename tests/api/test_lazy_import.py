"""``import flipbench as fb``: quick, and complete."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import flipbench as fb

pytestmark = pytest.mark.slow

HEAVY = ("torch", "transformers", "datasets", "pandas", "numpy", "pydantic")


STEPS = {
    "import flipbench as fb": HEAVY,
    "import pydoc; pydoc.render_doc(fb.detect); fb.Experiment.__doc__; dir(fb)": HEAVY,
    "import flipbench.cli": HEAVY,
    "from flipbench import evaluate; assert evaluate.__class__.__name__ == 'module';"
    " assert fb.evaluate is evaluate and not callable(evaluate)": HEAVY,
    "assert len(fb.detectors().overview().rows) > 30": (
        "torch", "pandas", "pyarrow", "scipy.stats", "scipy.optimize",
    ),
    "from flipbench.api.stages import assembly": (
        "torch", "transformers", "datasets", "diffusers", "pandas",
    ),
    "from flipbench.api.stages import generation, filtering, evaluation, detection, audit_corpus": (
        "torch",
    ),
}  # fmt: skip
"""What is done one after the other, and which libraries that imports none of."""
LIBRARIES_ARE_QUIET = """
from transformers.utils import logging; import datasets.utils
assert not logging.is_progress_bar_enabled() and logging.get_verbosity() == logging.ERROR
assert datasets.utils.are_progress_bars_disabled()
"""


def python(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_libraries_are_imported_where_they_are_used_and_are_quiet_when_they_come() -> None:
    checks = (
        f"{step}\nloaded = {{*{heavy}}} & {{*sys.modules}}\nassert not loaded, ({step!r}, loaded)"
        for step, heavy in STEPS.items()
    )
    python("\n".join(["import sys", *checks, "assembly.quiet_libraries()", LIBRARIES_ARE_QUIET]))


def test_libraries_that_were_there_are_quietened() -> None:
    first = "import transformers, datasets\nfrom flipbench.api.stages import assembly"
    python(f"{first}\nassembly.quiet_libraries()\n{LIBRARIES_ARE_QUIET}")


def test_every_name_is_there_and_documented() -> None:
    assert {*fb.__all__, "__version__"} == set(dir(fb))
    for name in fb.__all__:
        text = inspect.getdoc(getattr(fb, name)) or ""
        assert "Examples\n" in text or (name[0].isupper() and text), name
    with pytest.raises(AttributeError, match=r"'filter'; use flipbench.Experiment\(config\)"):
        _ = fb.filter  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fb.nothing  # type: ignore[attr-defined]
