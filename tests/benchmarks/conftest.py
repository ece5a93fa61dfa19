from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from flipbench.core.images import ImageStore

MakePng = Callable[..., bytes]


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store")


@pytest.fixture(scope="session")
def png() -> MakePng:
    """Make a PNG whose bytes differ with ``shade``."""

    def make(shade: int = 0, size: tuple[int, int] = (12, 8)) -> bytes:
        buffer = io.BytesIO()
        Image.new("RGB", size, (shade % 256, shade // 256, 90)).save(buffer, "PNG")
        return buffer.getvalue()

    return make
