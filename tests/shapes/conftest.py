from __future__ import annotations

import pytest

from flipbench.core.images import ImageStore
from flipbench.core.records import Item
from flipbench.shapes.benchmark import shapes_vqa


@pytest.fixture(scope="session")
def all_items(shapes_store: ImageStore) -> list[Item]:
    """Return shapes-vqa, all of it."""
    return shapes_vqa(shapes_store)
