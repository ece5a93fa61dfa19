"""Closed questions: options by letter, and yes/no questions without options."""

from __future__ import annotations

import pytest

from flipbench.core.records import Item, Source
from flipbench.models.chat.log_probs import letter_log_probs
from flipbench.prompting.prompts import PromptSettings, right_option, split_labels, yes_no


def question(answer: str, options: tuple[str, ...] | None = None) -> Item:
    return Item(
        benchmark="b",
        name="1",
        question="Is it red?",
        options=options,
        answer=None if options is None else options.index(answer),
        answer_text=answer,
        source=Source(dataset="d"),
    )


@pytest.mark.parametrize(
    ("answer", "words", "right"),
    [
        ("yes", ("yes", "no"), 0),
        ("No.", ("Yes", "No"), 1),
        ("NO", ("YES", "NO"), 1),
        ("yes, it is", None, None),
        ("red", None, None),
    ],
)
def test_yes_no_questions(answer: str, words: tuple[str, str] | None, right: int | None) -> None:
    item = question(answer)
    assert (yes_no(item), right_option(item)) == (words, right)


def test_a_free_form_question_is_not_closed() -> None:
    with pytest.raises(ValueError, match="free-form"):
        PromptSettings().closed_probe(question("red"), "original")


def test_questions_with_options_keep_their_probe() -> None:
    item = question("no", ("yes", "no"))
    assert yes_no(item) is None and right_option(item) == 1
    settings = PromptSettings(ask="generate")
    assert settings.closed_probe(item, "v") == settings.probe(item, "v")
    assert settings.closed_probe(item, "v", question="Red?").prompt.startswith("Red?\nA. yes")
    written = settings.closed_probe(question("no"), "v", images=())
    assert (written.prompt, written.max_new_tokens, written.labels) == (
        "Is it red?\nAnswer with a single word or phrase.",
        16,
        "yes no",
    )


def test_a_server_s_first_tokens_count_in_any_case() -> None:
    tokens = [("Yes", -0.5), (" yes", -2.0), ("NO", -3.0), ("Y", -4.0)]
    yes, no = letter_log_probs(tokens, 2, split_labels("yes no"))
    assert yes == pytest.approx(-0.2986, abs=1e-4) and no == -3.0
    assert letter_log_probs([("a", -1.0)], 1) == [None]  # a letter is a capital
