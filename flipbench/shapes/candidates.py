"""The ground truth of a candidate of the embedded world."""

from __future__ import annotations

from flipbench.core.errors import DataError
from flipbench.core.paired import Candidate
from flipbench.shapes.benchmark import is_shapes_item
from flipbench.shapes.questions import Family
from flipbench.shapes.scene import Scene


def scene_of(candidate: Candidate) -> Scene:
    """Return the scene of a shapes item."""
    family = family_of(candidate)
    return family.scenes[family.options.index(candidate.item.answer_text)]


def family_of(candidate: Candidate) -> Family:
    """Return the family of a shapes item.

    Raises
    ------
    DataError
        If the item belongs to another benchmark.
    """
    if not is_shapes_item(candidate.item):
        raise DataError(f"{candidate.subject}: not an item of the shapes world")
    return Family.from_json(candidate.item.extra["family"])
