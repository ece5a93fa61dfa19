"""The examples in the docstrings give what they print."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from flipbench.core.errors import PrerequisiteError

ROOT = Path(__file__).parents[1]
STAGES = ("generate", "filters", "contaminate", "evaluate")


def modules_with_examples() -> list[str]:
    """Return the names of the product modules that have a ``>>>`` in them."""
    names = []
    for top in ("flipbench", "studies", *STAGES):
        for path in sorted((ROOT / top).rglob("*.py")):  # follows no link, so no stage twice
            if ">>> " in path.read_text():
                parts = path.relative_to(ROOT).with_suffix("").parts
                parts = ("flipbench", *parts) if top in STAGES else parts
                names.append(".".join(parts).removesuffix(".__init__"))
    return names


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except PrerequisiteError as error:
        pytest.skip(f"{name} needs an optional package: {error}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("flipbench"):
            raise
        pytest.skip(f"{name} needs an optional package: {error}")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(module, optionflags=flags)
    assert result.attempted > 0
    assert result.failed == 0
