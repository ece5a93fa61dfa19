"""The prompt of a question: one template for training and evaluation."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Literal

from flipbench.core.records import ImageRef, Item, Probe, Value

LETTERS = string.ascii_uppercase
NUMBERS = "123456789"
LETTER_INSTRUCTION = "Answer with the option letter only."
OPEN_INSTRUCTION = "Answer with a single word or phrase."


def choice_prompt(
    question: str,
    options: Sequence[str],
    instruction: str = LETTER_INSTRUCTION,
    labels: str = LETTERS,
) -> str:
    r"""Return question, lettered options and instruction, one per line.

    ``labels`` are the options' labels, one character each.

    >>> choice_prompt("What color is the star?", ["red", "blue"])
    'What color is the star?\nA. red\nB. blue\nAnswer with the option letter only.'
    """
    if len(options) > len(labels):
        kind = "letters" if labels == LETTERS else "labels"
        raise ValueError(f"{len(options)} options, but there are only {len(labels)} {kind}")
    lines = [f"{label}. {text}" for label, text in zip(labels, options, strict=False)]
    return "\n".join([question, *lines, instruction])


def open_prompt(question: str, instruction: str = OPEN_INSTRUCTION) -> str:
    """Return a free-form question and its instruction."""
    return f"{question}\n{instruction}"


class PromptSettings(Value):
    """How multiple-choice questions are asked.

    ``choose`` compares the next-token log-probabilities of the option letters; ``generate`` lets
    the model write up to ``max_new_tokens`` tokens, parsed by `flipbench.prompting.parsing`.
    """

    ask: Literal["choose", "generate"] = "choose"
    instruction: str = LETTER_INSTRUCTION
    max_new_tokens: int = 16

    def probe(
        self,
        item: Item,
        variant: str,
        *,
        options: Sequence[str] | None = None,
        images: Sequence[ImageRef] | None = None,
        question: str | None = None,
        labels: str = "",
    ) -> Probe:
        """Return the probe that asks ``item``, with other options, images or question if given.

        With other ``labels``, a "letter" in the instruction becomes a "number".

        Raises
        ------
        ValueError
            If neither the item nor the caller gives options.
        """
        choices = options if options is not None else item.options
        if choices is None:
            raise ValueError(f"{item.subject} is free-form: it has no options to choose from")
        stem = question if question is not None else item.question
        instruction = number_instruction(self.instruction) if labels else self.instruction
        return Probe(
            item_id=item.id,
            variant=variant,
            images=tuple(item.images if images is None else images),
            prompt=choice_prompt(stem, choices, instruction, labels or LETTERS),
            ask=self.ask,
            options=tuple(choices),
            n_options=len(choices),
            max_new_tokens=self.max_new_tokens if self.ask == "generate" else 0,
            labels=labels,
        )


def number_instruction(instruction: str) -> str:
    """Return an instruction that asks for a number where the given one asks for a letter.

    >>> number_instruction("Answer with the option letter only.")
    'Answer with the option number only.'
    """
    return instruction.replace("letter", "number").replace("Letter", "Number")
