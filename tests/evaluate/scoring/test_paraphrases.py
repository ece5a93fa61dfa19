"""Wordings that may ask something else are left out, by rules, and counted."""

from __future__ import annotations

import pytest

from flipbench.core.records import Item, Source
from flipbench.evaluate.scoring.paraphrases import Doubt, doubt, paraphrases_of
from flipbench.shapes.benchmark import reword


def question(text: str, options: tuple[str, ...] = ("red", "dark blue")) -> Item:
    return Item(
        benchmark="b",
        name="1",
        question=text,
        options=options,
        answer=0,
        answer_text=options[0],
        source=Source(dataset="d"),
    )


@pytest.mark.parametrize(
    ("own", "wording", "expected"),
    [
        ("What colour is the star?", "What colour is a star", "identical"),
        ("What colour is the star?", "Which colour does the star have?", ""),
        ("Are there 3 stars?", "Are there 4 stars?", "numbers"),
        ("Are there two stars?", "Do you see two stars?", ""),
        ("Are there two stars?", "Do you see stars?", "numbers"),
        ("What colour is the star?", "Is the star dark blue or another colour?", "names an option"),
        ("Is the red star left?", "Does the red star stand left?", ""),
        ("Is there a fracture?", "Is there no fracture?", "negation"),
        ("Is there a fracture?", "Can a fracture be ruled out?", "negation"),
        ("Is there a fracture?", "Isn't there a fracture?", ""),
        ("Is there a fracture?", "There is a fracture, isn't there?", ""),
        ("Which star is not red?", "Which star isn’t of red colour?", ""),
        ("Is a fracture absent?", "Is there no fracture?", ""),
    ],
)
def test_doubts(own: str, wording: str, expected: Doubt) -> None:
    assert doubt(question(own), wording) == expected


def test_wordings_are_counted_and_cut() -> None:
    item = question("What colour is the star?")
    texts = ["which colour has it?", "Which colour has it", "Colour of the star?", "Its colour?"]
    asked, left_out = paraphrases_of(item, lambda *_: texts, 2)
    assert [one.text for one in asked] == [texts[0], texts[2]]
    assert left_out == {"repeated": 1}
    assert not paraphrases_of(item, lambda *_: [], 2)[0]


def test_no_phrasing_of_the_embedded_world_is_doubted(shapes_items: list[Item]) -> None:
    for item in shapes_items[:60]:
        asked, left_out = paraphrases_of(item, reword, 5)
        assert len(asked) == 2 and not left_out, item.question
