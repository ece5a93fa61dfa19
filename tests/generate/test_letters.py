"""New answers whose letters are as frequent as those of the old answers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from flipbench.core.records import Flip, Item, Source
from flipbench.generate.flip import MATCHED, FlipStage
from flipbench.generate.letters import drawable_options, matched_letters
from flipbench.prompting.undrawable import why_undrawable


def items(golds: str, *options: str, answers: tuple[str, ...] = ()) -> list[Item]:
    """Return items whose right options are ``golds``, or free-form ones with ``answers``."""
    return [
        Item(
            benchmark="b",
            name=str(i),
            question=f"Q{i}?",
            options=options or None,
            answer="ABCD".index(gold) if options else None,
            answer_text=options["ABCD".index(gold)] if options else answers[i],
            source=Source(dataset="d"),
        )
        for i, gold in enumerate(golds)
    ]


@pytest.mark.parametrize("golds", ["AABBBBCD" * 20, "AAAABCDD" * 20, "ABCD" * 3, "AB", "ABBA"])
def test_new_letters_are_a_permutation_without_fixed_points(golds: str) -> None:
    asked = items(golds, "one", "two", "three", "four")
    letters = matched_letters(asked, seed=0)
    assert Counter(letters.values()) == Counter(item.answer for item in asked)
    assert all(letters[item.id] != item.answer for item in asked)
    assert letters == matched_letters(asked[::-1], seed=0), "the order of items does not matter"
    assert len(golds) < 5 or letters != matched_letters(asked, seed=1)


@pytest.mark.parametrize(
    ("golds", "options", "n_left_out"),
    [("A" * 60 + "B" * 40, ("yes", "no"), 20), ("A" * 70 + "BCD" * 10, ("1", "2", "3", "4"), 40)],
)
def test_a_letter_that_is_right_in_most_items_has_to_be_balanced(
    golds: str, options: tuple[str, ...], n_left_out: int
) -> None:
    asked = items(golds, *options)
    letters = matched_letters(asked, seed=0)
    kept = [item for item in asked if letters[item.id] is not None]
    assert len(asked) - len(kept) == n_left_out
    assert Counter(letters[i.id] for i in kept) == Counter(i.answer for i in kept)
    stage = FlipStage(0, {}, letters)
    assert sum(map(stage.leaves_out, asked)) == n_left_out
    assert not FlipStage(0).leaves_out(asked[0])


def test_yes_and_no_without_options_are_balanced() -> None:
    asked = items("A" * 30, answers=("Yes",) * 18 + ("No",) * 12)
    letters = matched_letters(asked, seed=0)
    assert list(letters.values()).count(None) == 6
    flips = FlipStage(0, {}, letters)([i for i in asked if letters[i.id] is not None])
    texts = [flip.new_text for flip in flips if isinstance(flip, Flip)]
    assert Counter(texts) == {"Yes": 12, "No": 12}
    assert {flip.method for flip in flips if isinstance(flip, Flip)} == {MATCHED}


def test_yes_and_no_are_balanced_as_words_whatever_their_letters() -> None:
    asked = items("A" * 30 + "B" * 10, "Yes", "No") + items("A" * 10 + "B" * 10, "no", "yes")
    asked = [i.revised(name=str(n)) for n, i in enumerate(asked)]
    letters = matched_letters(asked, seed=0)
    kept = [(i, letter) for i in asked if (letter := letters[i.id]) is not None]
    assert len(kept) == 40, "40 yes and 20 no"
    assert Counter((i.options or ())[letter].casefold() for i, letter in kept) == {
        "yes": 20,
        "no": 20,
    }


def test_of_few_items_none_is_left_out() -> None:
    for asked in (
        items("A", "1", "2", "3", "4"),
        items("AAB", "1", "2"),
        items("AAAB", "1", "2", "3"),
    ):
        letters = matched_letters(asked, seed=0)
        assert None not in letters.values()
        assert all(letters[item.id] != item.answer for item in asked)


def test_a_few_more_items_change_few_draws() -> None:
    asked = items("AABACDADB" * 40, "one", "two", "three", "four")
    letters, fewer = matched_letters(asked, 0), matched_letters(asked[:-9], 0)
    assert sum(letters[item_id] != letter for item_id, letter in fewer.items()) <= 18
    alone = [flip for flip in FlipStage(0)(asked) if isinstance(flip, Flip)]
    assert sum(flip.new_answer != letters[flip.item_id] for flip in alone) < 0.4 * len(asked)


UNDRAWABLE = (
    "None of the above",
    "all of these options.",
    "Cannot be determined",
    "can't tell",
    "It is impossible to tell",
    "Not enough information to answer",
    "Both A and B",
    "A and C",
    "<image 2>",
    "[image1]",
    "Unknown",
    "N/A",
    "I don't know",
    "以上都不是",
    "无法确定",
    "A, B and C",
    "None are correct",
    "all are correct",
    "None of the given options",
    "all the above",
    "No correct answer",
    "Both options",
    "Not determinable",
    "not visible",
    "The answer cannot be determined",
    "b.png",
)
DRAWABLE = ("none", "both", "two", "Both a cat and a dog", "A cat", "neither", "unknown soldier")
DRAWABLE += ("the man cannot see the road", "all of the options on the menu", "all the cats")


@pytest.mark.parametrize("text", UNDRAWABLE)
def test_an_option_that_no_picture_shows_is_never_drawn(text: str) -> None:
    assert why_undrawable(text)
    asked = items("AAAABBBBCCCC", "red", "blue", "green", text)
    for seed in range(5):
        letters = matched_letters(asked, seed)
        uniform = [flip for flip in FlipStage(seed)(asked) if isinstance(flip, Flip)]
        assert 3 not in letters.values() and text not in {flip.new_text for flip in uniform}
    (only,) = items("A", "red", text)
    assert drawable_options(only) == [] and only.id not in matched_letters([only], 0)
    (error,) = FlipStage(0)([only])
    assert "that a picture could show" in str(error)


@pytest.mark.parametrize("text", DRAWABLE)
def test_other_options_may_be_drawn(text: str) -> None:
    assert not why_undrawable(text)


def test_a_model_that_prefers_a_letter_gains_nothing_by_it() -> None:
    """Who always says A is right as often on the new answers as on the old ones."""
    rng = np.random.default_rng(0)
    golds = "".join(rng.choice(list("ABCD"), 400, p=[0.45, 0.2, 0.2, 0.15]))
    asked = items(golds, "one", "two", "three", "four")
    letters = matched_letters(asked, seed=3)
    assert sum(letter == 0 for letter in letters.values()) == golds.count("A")
    uniform = [flip.new_answer for flip in FlipStage(3)(asked) if isinstance(flip, Flip)]
    assert uniform.count(0) < 0.6 * golds.count("A")
