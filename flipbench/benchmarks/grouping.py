"""Which rows of a table belong together: they share a picture, or are one question rotated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

GROUP_COLUMNS = ("g_index", "group", "group_id")
"""Columns that say so outright."""
IMAGE_COLUMNS = ("image_id", "img_id", "image_hash", "image_path", "image_file", "image_name")
"""Columns that name a row's picture."""
SETS = (("set_id", ("category", "subcategory", "l2-category")), ("figure_id", ("category",)))
"""Columns that number sets of edited pictures (HallusionBench), within those that name their kind.

A set is all versions of one figure, so its rows share more than a picture.
"""
ROTATION = 1_000_000
"""VLMEvalKit adds multiples of this to the index of a question whose options it has rotated."""


def group_of(cells: Mapping[str, Any], *, has_images: bool = False) -> str:
    """Return what a row shares with others, as its columns say; empty if they do not.

    ``has_images``: the pictures themselves are known, and compared by content.

    >>> group_of({"set_id": 3, "figure_id": 1, "category": "VD"})
    'set_id VD/3'
    >>> group_of({"image_path": "a.jpg"}), group_of({"image_path": "a.jpg"}, has_images=True)
    ('a.jpg', '')
    """
    lower = {str(name).lower(): value for name, value in cells.items()}
    for name in (*GROUP_COLUMNS, *(() if has_images else IMAGE_COLUMNS)):
        if value := _text(lower.get(name)):
            return value
    for name, kinds in SETS:
        if value := _text(lower.get(name)):
            within = [kind for column in kinds if (kind := _text(lower.get(column)))]
            return f"{name} {'/'.join([*within, value])}"
    return ""


def rotated_groups(ids: Sequence[str]) -> dict[str, str]:
    """Return the groups of ids that VLMEvalKit's rotation of options makes, by id.

    >>> rotated_groups(["7", "1000007", "2000007", "8"])
    {'7': '7', '1000007': '7', '2000007': '7'}
    """
    known_ids, groups = set(ids), dict[str, str]()
    for name in ids:
        if not name.isdigit() or (number := int(name)) < ROTATION:
            continue
        if (base := str(number % ROTATION)) in known_ids:
            groups |= {base: base, name: base}
    return {name: groups[name] for name in ids if name in groups}


def _text(value: Any) -> str:
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
