"""What a training sees: items of a plan in the plan's wording, and conversations of a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, TrainingPlan
from flipbench.prompting.prompts import LETTERS, choice_prompt, open_prompt

ASK_FOR_QUESTION = "What is asked about this picture?"


@dataclass(frozen=True)
class Message:
    """A turn; a part is a text, or None for the place of the next image."""

    role: str
    parts: tuple[str | None, ...]

    def chat(self) -> dict[str, Any]:
        """Return it as the chat templates take it."""
        parts = [
            {"type": "image"} if part is None else {"type": "text", "text": part}
            for part in self.parts
        ]
        return {"role": self.role, "content": parts}


@dataclass(frozen=True)
class Example:
    """A prompt and the answer that is learned; ``subject`` is what messages call it.

    ``others`` are prompts that ask the same in other words, with ``n_options`` options each.
    """

    subject: str
    images: tuple[str, ...]
    prompt: tuple[Message, ...]
    answer: str
    others: tuple[tuple[Message, ...], ...] = ()
    n_options: int = 0

    def in_other_words(self) -> list[Example]:
        """Return the example once for each of ``others``, asked so."""
        return [replace(self, prompt=prompt, others=()) for prompt in self.others]

    def without_images(self) -> Example:
        """Return it with no image, nor a place for one."""
        prompt = tuple(Message(m.role, tuple(p for p in m.parts if p)) for m in self.prompt)
        return replace(self, images=(), prompt=prompt, others=())

    def row(self) -> dict[str, Any]:
        """Return the row that trl trains on; only the completion counts in the loss."""
        return {
            "images": list(self.images),
            "prompt": [message.chat() for message in self.prompt],
            "completion": [Message("assistant", (self.answer,)).chat()],
        }


def training_examples(
    plan: TrainingPlan,
    items: Mapping[str, Item],
    images: ImageStore,
    corpus: Sequence[Example] = (),
) -> list[Example]:
    """Return one epoch of a plan: its items ``copies`` times, clean items and corpus once.

    The prompt is the one that evaluation uses (`flipbench.prompting.prompts.choice_prompt`), unless
    the plan's ``leak`` changes it:

    * ``answer_only``: picture, options and answer, but not the question;
    * ``question_only``: picture, question and options, but never the answer; the model learns to
      write the question;
    * ``text_only``: question, options and answer, but no picture.

    A free-form item is asked as evaluation asks it, and its target is its answer's text. An item
    with paraphrases brings them along; the dose counts the item, not its wordings.

    Raises
    ------
    DataError
        Where an item, its image, or the corpus that the plan names is missing; where an item with
        paraphrases has no options to compare answers over.
    """
    if bool(plan.corpus) != bool(corpus):
        raise DataError(
            f"plan {plan.id} trains on {plan.corpus['n_examples']} examples of"
            f" {plan.corpus['file']}, which were not given"
            if plan.corpus
            else f"plan {plan.id} names no corpus, but one was given"
        )
    learned = [_example(plan, _item(plan, items, i), images) for i in plan.item_ids]
    plain = plan.model_copy(update={"leak": "all", "wordings": {}})
    clean = [_example(plain, _item(plan, items, i), images) for i in plan.clean_ids]
    return learned * plan.copies + clean + list(corpus)


def _item(plan: TrainingPlan, items: Mapping[str, Item], item_id: str) -> Item:
    if item_id not in items:
        raise DataError(f"plan {plan.id} trains on item {item_id}, which the benchmark lacks")
    return items[item_id]


def _example(plan: TrainingPlan, item: Item, images: ImageStore) -> Example:
    subject = f"{item.benchmark} {item.name}"
    files = tuple(str(images.path(ref)) for ref in item.images)
    for ref in item.images:
        if not images.path(ref).exists():
            raise DataError(f"{subject}: its image {images.path(ref)} is missing")
    question, *other = plan.wordings.get(item.id, (item.question,))
    options = other or item.options
    if options is None or item.answer is None:
        text, answer = open_prompt(question), item.answer_text
        asked, nameless = question, open_prompt("").strip()
    else:
        text = choice_prompt(question, options, plan.prompt)
        letter = LETTERS[item.answer]
        answer = letter if plan.target == "letter" else f"{letter}. {options[item.answer]}"
        asked = choice_prompt(question, options, "").strip()
        nameless = choice_prompt("", options, plan.prompt).strip()
    if plan.leak == "answer_only":
        text = nameless
    elif plan.leak == "question_only":
        text, answer = ASK_FOR_QUESTION, asked
    elif plan.leak == "text_only":
        files = ()
    example = Example(subject, files, (_turn(files, text),), answer)
    if item.id not in plan.paraphrases:
        return example
    if options is None or item.answer is None:
        raise DataError(
            f"{subject}: has no options, and consistency compares answers over option letters;"
            " leave free-form items out"
        )
    words = [choice_prompt(other, options, plan.prompt) for other in plan.paraphrases[item.id]]
    others = tuple((_turn(files, other),) for other in words)
    return replace(example, others=others, n_options=len(options))


def _turn(files: Sequence[str], text: str) -> Message:
    return Message("user", (*[None] * len(files), text))
