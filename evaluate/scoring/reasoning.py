"""Replies that reason before they answer: how they are asked for and read."""

from __future__ import annotations

import re

from flipbench.core.records import Item, Probe, Response
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import choice_prompt, open_prompt

from .text_match import words

MAX_NEW_TOKENS = 256
"""Default limit of a reply: that of the statistics kept of its tokens."""
MIN_WORDS = 10
"""Words before the answer from which on a reply counts as reasoned."""
_STEPS = "Think step by step about what the picture shows."
_CHOICE = f'{_STEPS} Then write "Answer:" and the letter of the right option.'
_OPEN = f'{_STEPS} Then write "Answer:" and the answer in a few words.'
_END_OF_THOUGHTS = "</think>"
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

    The answer follows the end of a ``<think>`` block, and within that begins with the last
    "answer"; without that word, it is the whole text.

    >>> split_reply("The cat is left of the dog, so it is A or B. Answer: B")
    ('The cat is left of the dog, so it is A or B. ', 'Answer: B')
    >>> split_reply("<think>Two cats.</think> C"), split_reply("<think>Two")
    (('<think>Two cats.</think>', ' C'), ('<think>Two', ''))
    """
    thoughts, end, rest = reply.rpartition(_END_OF_THOUGHTS)
    if not end and reply.lstrip().startswith("<think>"):
        return reply, ""
    starts = [match.start() for match in _ANSWER.finditer(rest)]
    begin = starts[-1] if starts else 0
    return f"{thoughts}{end}{rest[:begin]}", rest[begin:]


def is_reasoned(reply: Response) -> bool:
    """Return whether a reply has thoughts before it, or `MIN_WORDS` words before its answer.

    Thoughts are a ``<think>`` block, or what a server reports without showing it.
    """
    reasoning, answer = split_reply(reply.text)
    if reply.reasoned or "<think>" in reasoning or _END_OF_THOUGHTS in reasoning:
        return True
    unlabelled = not reasoning.strip()  # no "Answer:", so the whole reply may be reasoning
    return len(words(answer if unlabelled else reasoning)) >= MIN_WORDS


def reasoned_choice(reply: Response, item: Item) -> bool | None:
    """Return whether the answer of a reply is right; None if it names no option."""
    choice = parse_choice(split_reply(reply.text)[1], item.options or ())
    return None if choice < 0 else choice == item.answer
