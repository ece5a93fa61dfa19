"""Every reader of replies takes time in proportion to the reply, whatever it repeats."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from flipbench.evaluate.reasoning.judge import sentences_of
from flipbench.evaluate.reasoning.replies import StepVerdict, read_rubric, read_steps, read_verdicts
from flipbench.evaluate.scoring.reasoning import split_reply
from flipbench.evaluate.scoring.text_match import continuation, mentions, rouge_l, without_label
from flipbench.filters.audit.direct_reveal import read_reveal
from flipbench.filters.judges.api import read_verdict
from flipbench.generate.captioners.api import declines
from flipbench.generate.pictures import named_picture
from flipbench.models.chat.answer_judge import read_choice
from flipbench.models.chat.labels import Rubric, read_label
from flipbench.models.chat.scrubbing import Scrubber
from flipbench.prompting.parsing import normalise, parse_choice
from flipbench.prompting.wrappers import answer_text, split_wrapped

SHORTEST = 8_000  # characters
OPTIONS = ["yes", "no", "a cat"]
RUBRIC = Rubric("sure-v1", "Is it?", "{}", ("yes", "no"))
SCRUBBER = Scrubber("q7Zp-3fKx-91Lm-vT")


def unless_malformed(read: Callable[[str], Any]) -> Callable[[str], None]:
    def reader(text: str) -> None:
        with pytest.raises(Exception, match="reader"):
            read(text)

    return reader


READERS: dict[str, Callable[[str], Any]] = {
    "letters": lambda text: parse_choice(text, ["red", "blue", "a cat"]),
    "letters, text first": lambda text: parse_choice(f"so {text}", OPTIONS),
    "yes and no": lambda text: parse_choice(f"so {text}", ["yes", "no"], "yes no"),
    "wrappers": lambda text: split_wrapped(text, split_unknown=True),
    "without reasoning": answer_text,
    "normalised": normalise,
    "reasoning and answer": split_reply,
    "judge": read_verdict,
    "answer judge": read_choice,
    "label": lambda text: read_label(text, RUBRIC),
    "steps": read_steps,
    "step verdicts": lambda text: read_verdicts(text, [1, 2], StepVerdict),
    "rubric": read_rubric,
    "sentences": lambda text: sentences_of({"Outcome": text}),
    "revealed": unless_malformed(lambda text: read_reveal(text, None)),  # type: ignore[arg-type]
    "caption": declines,
    "picture": named_picture,
    "mentions": lambda text: mentions(text, "a cat", ["yes"]),
    "label of an option": without_label,
    "continuation": lambda text: continuation(text, "yes no yes"),
    "ROUGE-L": lambda text: rouge_l("the cat sat on the mat", text),
    "key": SCRUBBER.text,
    "error": SCRUBBER.error,
}
PIECES = (
    "\n", " ", "yes no ", "{", '{"a":', "}", "{}", "[", "<", "<think>", "</think>", "<answer>",
    "<hm>", "<|im_end|>", "<|channel|>", "<|start|>", "\\boxed{", "\\text{", "$", "answer: ",
    "Answer:\n", "not ", "not A or B, ", "A ", "A or ", "A is ", "(A) ", "option ", "A\n", "*", "`",
    "```\n", "\u200b", "é", "不", "。", "答案", ". ", "-", "sk-", "bearer ", "xxxxx", "…",
)  # fmt: skip


def seconds(read: Callable[[str], Any], text: str) -> float:
    start = time.process_time()
    read(text)
    took = time.process_time() - start
    if took < 0.02:
        return took
    start = time.process_time()
    read(text)
    return min(took, time.process_time() - start)


@pytest.mark.parametrize("name", READERS)
def test_time_grows_with_the_reply_and_not_with_its_square(name: str) -> None:
    read = READERS[name]
    slow = []
    for piece in PIECES:
        text = piece * (SHORTEST // len(piece))
        once, twice, four_times = (seconds(read, text * n + "!") for n in (1, 2, 4))
        if four_times > 0.05 and four_times > 8 * once and four_times > 3 * twice:
            slow.append((piece, once, twice, four_times))
    assert not slow


def test_a_letter_is_read_at_once() -> None:
    assert seconds(lambda text: [parse_choice(text, OPTIONS) for _ in range(1000)], "B") < 0.05
