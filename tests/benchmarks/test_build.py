from __future__ import annotations

import pytest

from flipbench.benchmarks.build import find_answer
from flipbench.benchmarks.tables import RowError

ABC = [("A", "red"), ("B", "green"), ("C", "blue")]


@pytest.mark.parametrize("cell", ["B", "(B)", "B.", "B)", "B:", " B ", "green", " green"])
def test_letters_and_option_texts_are_matched(cell: str) -> None:
    assert find_answer(cell, ABC) == (1, [])


@pytest.mark.parametrize("cell", ["D", "(F)", "b", "Green", "Other Answers", "AB", "1"])
def test_anything_else_is_refused(cell: str) -> None:
    with pytest.raises(RowError) as caught:
        find_answer(cell, ABC)
    assert caught.value.kind == "answer"
    assert "A, B, C" in caught.value.what


def test_the_text_of_two_options_is_refused_but_its_letter_is_not() -> None:
    twins = [("A", "red"), ("B", "blue"), ("C", "red")]
    with pytest.raises(RowError, match="options A and C"):
        find_answer("red", twins)
    assert find_answer("C", twins)[0] == 2


def test_a_letter_that_is_also_an_option_text() -> None:
    markers = [("A", "B"), ("B", "A")]
    with pytest.raises(RowError, match="set answer_is"):
        find_answer("A", markers, "auto")
    found, odd = find_answer("A", markers, "letter")
    assert (found, [o.kind for o in odd]) == (0, ["answer"])
    assert find_answer("A", markers, "text") == (1, [])
    assert find_answer("A", [("A", "A"), ("B", "B")], "auto") == (0, [])


def test_a_missing_option_shifts_positions_not_letters() -> None:
    gap = [("A", "x"), ("C", "y"), ("D", "z")]
    assert find_answer("C", gap) == (1, [])
    assert find_answer("3", gap, "index") == (2, [])
    for cell, answer_is in (("B", "auto"), ("1", "index"), ("4", "index"), ("-1", "index")):
        with pytest.raises(RowError):
            find_answer(cell, gap, answer_is)  # type: ignore[arg-type]
