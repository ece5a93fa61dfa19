from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flipbench.models.vlm.huggingface import (
    HuggingFaceVLM,
)
from studies.tiny_models.tiny import FAMILIES


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def vlm(family: str, tiny_vlm: Callable[[str], HuggingFaceVLM]) -> HuggingFaceVLM:
    return tiny_vlm(family)


@pytest.fixture
def folder(family: str, tiny_folders: dict[str, Path], tmp_path: Path) -> Path:
    """Return a copy of the family's checkpoint that a test may change."""
    return Path(shutil.copytree(tiny_folders[family], tmp_path / family))
