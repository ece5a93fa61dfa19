"""Replies that reason before they answer: how they are asked for and read."""

from __future__ import annotations

import re

from flipbench.core.records import Item, Probe, Response
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import choice_prompt, open_prompt
from flipbench.prompting.wrappers import split_wrapped

from .text_match import words

MAX_NEW_TOKENS = 256
"""Default limit of a reply: that of the statistics kept of its tokens."""
MIN_WORDS = 10
"""Words before the answer from which on a reply counts as reasoned."""
_STEPS = "Think step by step about what the picture shows."
_CHOICE = f'{_STEPS} Then write "Answer:" and the letter of the right option.'
_OPEN = f'{_STEPS} Then write "Answer:" and the answer in a few words.'
_ANSWER = re.compile(r"\banswer\b", re.IGNORECASE)


def reasoning_probe(
    item: Item,
    variant: str,
    *,
    max_new_tokens: int = MAX_NEW_TOKENS,
    token_statistics: bool = False,
) -> Probe:
    """Return the probe that asks for reasoning, then an answer; the reply is free text."""
    return Probe(
        item_id=item.id,
        variant=variant,
        images=item.images,
        prompt=(
            choice_prompt(item.question, item.options, _CHOICE)
            if item.options
            else open_prompt(item.question, _OPEN)
        ),
        ask="generate",
        max_new_tokens=max_new_tokens,
        token_statistics=token_statistics,
    )


def split_reply(reply: str) -> tuple[str, str]:
    """Return a reply's reasoning and its answer, either of which may be empty.

    The answer follows what is marked as reasoning (`flipbench.prompting.wrappers`), and within
    that begins with the last "answer"; without that word, it is the whole text.

    >>> split_reply("The cat is left of the dog, so it is A or B. Answer: B")
    ('The cat is left of the dog, so it is A or B. ', 'Answer: B')
    >>> split_reply("<think>Two cats.</think> C"), split_reply("<think>Two")
    (('<think>Two cats.</think>', ' C'), ('<think>Two', ''))
    """
    begin = split_wrapped(reply).start
    for match in _ANSWER.finditer(reply, begin):
        begin = match.start()
    return reply[:begin], reply[begin:]


def is_reasoned(reply: Response) -> bool:
    """Return whether a reply has thoughts before it, or `MIN_WORDS` words before its answer.

    Thoughts are what is marked as reasoning, or what a server reports without showing it.
    """
    if reply.reasoned or split_wrapped(reply.text).reasoning:
        return True
    reasoning, answer = split_reply(reply.text)
    unlabelled = not reasoning.strip()  # no "Answer:", so the whole reply may be reasoning
    return len(words(answer if unlabelled else reasoning)) >= MIN_WORDS


def reasoned_choice(reply: Response, item: Item) -> bool | None:
    """Return whether the answer of a reply is right; None if it names no option."""
    choice = parse_choice(split_reply(reply.text)[1], item.options or ())
    return None if choice < 0 else choice == item.answer
