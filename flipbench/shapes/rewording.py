"""Paraphrases of the embedded world's questions, from its templates."""

from __future__ import annotations

from flipbench.core.records import Item
from flipbench.shapes.benchmark import is_shapes_item
from flipbench.shapes.questions import PHRASINGS, Family


def reword(item: Item, text: str) -> list[str]:
    """Return ``text`` with the item's question in its other phrasings; none for other items."""
    if not is_shapes_item(item) or item.question not in text:
        return []
    question = Family.from_json(item.extra["family"]).question
    others = [question.text(i) for i in range(1, len(PHRASINGS[question.kind]))]
    return [text.replace(item.question, other, 1) for other in others]
