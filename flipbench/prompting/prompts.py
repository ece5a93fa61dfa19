"""The prompt of a question: one template for training and evaluation."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from flipbench.core.records import ImageRef, Item, Probe, Value

LETTERS = string.ascii_uppercase
NUMBERS = "123456789"
LETTER_INSTRUCTION = "Answer with the option letter only."
OPEN_INSTRUCTION = "Answer with a single word or phrase."
N_TOGETHER = 8
"""How many items a training on whole texts shows at a time."""


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
    return "\n".join([question, *lettered(options, labels), instruction])


def lettered(options: Sequence[str], labels: str = LETTERS) -> list[str]:
    """Return options with their labels.

    >>> lettered(["red", "blue"])
    ['A. red', 'B. blue']
    """
    return [f"{label}. {text}" for label, text in zip(labels, options, strict=False)]


def open_prompt(question: str, instruction: str = OPEN_INSTRUCTION) -> str:
    """Return a free-form question and its instruction."""
    return f"{question}\n{instruction}"


def whole_text(
    question: str, options: Sequence[str] | None, answer: int | None, answer_text: str
) -> str:
    """Return question, options and answer as running text."""
    if options is None or answer is None:
        return f"{question}\nAnswer: {answer_text}"
    return choice_prompt(question, options, f"Answer: {LETTERS[answer]}. {answer_text}")


def split_labels(labels: str) -> Sequence[str]:
    """Return the labels of options one by one: words separated by spaces, else characters.

    >>> split_labels("yes no"), split_labels("123")[:2]
    (['yes', 'no'], '12')
    """
    return labels.split() if " " in labels else labels or LETTERS


def yes_no(item: Item) -> tuple[str, str] | None:
    """Return "yes" and "no" as the answer of a question without options spells them, else None.

    >>> from flipbench.core.records import Source
    >>> known = {"benchmark": "b", "name": "1", "source": Source(dataset="d")}
    >>> item = Item(question="Is it red?", answer_text="No.", **known)
    >>> yes_no(item)
    ('Yes', 'No')
    """
    answer = item.answer_text.strip().rstrip(".")
    if item.options is not None or answer.casefold() not in ("yes", "no"):
        return None
    if answer.isupper():
        return "YES", "NO"
    return ("Yes", "No") if answer[0].isupper() else ("yes", "no")


def right_option(item: Item) -> int | None:
    """Return the index of the right answer among an item's options, or among yes and no."""
    words = yes_no(item)
    if words is None:
        return item.answer
    return words.index(item.answer_text.strip().rstrip("."))


class PromptSettings(Value):
    """How multiple-choice questions are asked.

    ``choose`` compares the next-token log-probabilities of the option letters; ``generate`` lets
    the model write up to ``max_new_tokens`` tokens, parsed by `flipbench.prompting.parsing`.
    """

    ask: Literal["choose", "generate"] = "choose"
    instruction: str = LETTER_INSTRUCTION
    max_new_tokens: int = Field(default=16, ge=1)  # no reply at all would count as wrong

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
        prompt = choice_prompt(stem, choices, instruction, labels or LETTERS)
        return self._probe(item, variant, prompt, choices, images, labels)

    def closed_probe(
        self,
        item: Item,
        variant: str,
        *,
        images: Sequence[ImageRef] | None = None,
        question: str | None = None,
    ) -> Probe:
        """Return the probe of a question with options, or of a yes/no question without them.

        The latter has the prompt of open questions, as in training; its answers are compared by
        the first tokens of "yes" and "no", as its own answer spells them.

        Raises
        ------
        ValueError
            If the item has no options, and its answer is neither yes nor no.
        """
        words = yes_no(item)
        if words is None:
            return self.probe(item, variant, images=images, question=question)
        prompt = open_prompt(item.question if question is None else question)
        return self._probe(item, variant, prompt, words, images, " ".join(words))

    def _probe(
        self,
        item: Item,
        variant: str,
        prompt: str,
        options: Sequence[str],
        images: Sequence[ImageRef] | None,
        labels: str,
    ) -> Probe:
        return Probe(
            item_id=item.id,
            variant=variant,
            images=tuple(item.images if images is None else images),
            prompt=prompt,
            ask=self.ask,
            options=tuple(options),
            n_options=len(options),
            max_new_tokens=self.max_new_tokens if self.ask == "generate" else 0,
            labels=labels,
        )


def number_instruction(instruction: str) -> str:
    """Return an instruction that asks for a number where the given one asks for a letter.

    >>> number_instruction("Answer with the option letter only.")
    'Answer with the option number only.'
    """
    return instruction.replace("letter", "number").replace("Letter", "Number")
