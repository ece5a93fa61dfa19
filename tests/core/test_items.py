"""An item's answer is one of its options, or it has none."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from flipbench.core.records import Item, Source

FIELDS: dict[str, Any] = {
    "benchmark": "made-up",
    "name": "q1",
    "question": "What color is the star?",
    "options": ("red", "blue", "red"),
    "answer": 0,
    "answer_text": "red",
    "source": Source(dataset="made-up", row=3),
}


def test_a_valid_item_is_accepted() -> None:
    assert Item(**FIELDS).answer_text == "red"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answer": None}, "go together"),
        ({"options": None}, "go together"),
        ({"answer": 3}, "answer 3 is not one of 3 options"),
        ({"answer": -1}, "answer -1 is not one of 3 options"),
        ({"answer": 1}, "answer_text 'red' is not option 'blue'"),
        ({"answer_text": "Red"}, "answer_text 'Red' is not option 'red'"),
        ({"options": ()}, "answer 0 is not one of 0 options"),
    ],
)
def test_an_item_whose_answer_is_not_an_option_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        Item(**FIELDS | changes)
