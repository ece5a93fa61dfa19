"""A tiny LLaVA, and a copy that a test may spoil."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fixtures.tiny_families import save


@pytest.fixture(scope="session")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny LLaVA with the processor classes of the published LLaVA-1.5."""
    return save("llava", tmp_path_factory.mktemp("llava"))


@pytest.fixture
def copy(llava: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llava, tmp_path / "copy"))
