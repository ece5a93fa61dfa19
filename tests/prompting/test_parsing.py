"""Golden replies (tests/prompting/golden/parsing.json) and properties of the reply parser."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import LETTERS

GOLDEN = json.loads((Path(__file__).parent / "golden" / "parsing.json").read_text())
CASES = [
    pytest.param(group["options"], reply, index, id=f"{name}: {reply!r}")
    for name, group in GOLDEN.items()
    for reply, index in group["cases"]
]
FORMS = [
    "{}",
    " {} ",
    "({})",
    "[{}]",
    "{}.",
    "{})",
    "**{}**",
    "The answer is {}.",
    "The answer is {} because of this.",
    "answer: {}",
    "Option {}",
    "I choose ({}), as can be seen in this picture here",
    "Looking at it, I say {}",
    "{}. something",
]


@pytest.mark.parametrize(("options", "reply", "index"), CASES)
def test_golden_cases(options: list[str], reply: str, index: int) -> None:
    assert parse_choice(reply, options) == index


@given(st.integers(2, 10).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k - 1))))
def test_every_form_of_every_letter_parses_back(k_and_index: tuple[int, int]) -> None:
    k, index = k_and_index
    options = [f"word{j}" for j in range(k)]
    for form in FORMS:
        assert parse_choice(form.format(LETTERS[index]), options) == index, form


@given(st.integers(1, 9), st.sampled_from(FORMS))
def test_letters_beyond_the_options_are_not_parsed(k: int, form: str) -> None:
    assert parse_choice(form.format(LETTERS[k]), [f"word{j}" for j in range(k)]) == -1


@given(
    st.lists(
        st.text(alphabet=".*+?^$()[]{}|\\-/ab1 ", min_size=2).map(str.strip).filter(bool),
        min_size=1,
        max_size=6,
    ),
    st.text(max_size=60),
)
def test_any_text_parses_safely_and_repeatably(options: list[str], reply: str) -> None:
    index = parse_choice(reply, options)
    assert -1 <= index < len(options)
    assert parse_choice(reply, options) == index


@given(
    st.lists(st.sampled_from(["C++", "a|b", "(x)y", "x*", "[q]r", "p^2"]), unique=True, min_size=1)
)
def test_a_text_full_of_regular_expression_characters_is_found(options: list[str]) -> None:
    for index, option in enumerate(options):
        assert parse_choice(f"that would be {option} to me as it were", options) == index


@given(st.text(alphabet="kmnpqrst ,", max_size=40))
def test_a_reply_that_names_nothing_is_never_given_an_option(reply: str) -> None:
    assert parse_choice(reply, ["red", "blue", "a cat", "dog"]) == -1


@pytest.mark.parametrize(
    ("reply", "index"),
    [
        ("Yes", 0),
        ("no.", 1),
        ("No, there is no fracture.", 1),
        ("A fracture is seen: yes", 0),
        ("(B)", -1),
        ("I cannot tell; it may be yes or no", -1),
        ("", -1),
    ],
)
def test_yes_and_no_are_read_as_words(reply: str, index: int) -> None:
    assert parse_choice(reply, ["yes", "no"], "yes no") == index
