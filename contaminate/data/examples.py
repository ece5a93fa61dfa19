"""Training examples: a plan's items in the plan's wording, and the conversations of a corpus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.randomness import generator
from flipbench.core.records import Item, TrainingPlan
from flipbench.prompting.prompts import (
    LETTERS,
    N_TOGETHER,
    choice_prompt,
    open_prompt,
    whole_text,
    yes_no,
)

ASK_FOR_QUESTION = "What is asked about this picture?"
ASK_FOR_CAPTION = "Describe the picture."
AS_TEXTS = ("whole_texts", "shuffled_texts")


@dataclass(frozen=True)
class Message:
    """A turn; each part is text, or None as the placeholder of the next image."""

    role: str
    parts: tuple[str | None, ...]

    def chat(self) -> dict[str, Any]:
        """Return the message in the form that chat templates expect."""
        parts = [
            {"type": "image"} if part is None else {"type": "text", "text": part}
            for part in self.parts
        ]
        return {"role": self.role, "content": parts}


@dataclass(frozen=True)
class Example:
    """A prompt and its target answer; ``subject`` names it in messages.

    ``others`` are paraphrases of the prompt, with ``n_options`` options each; ``words`` are these
    options if they are yes and no instead of letters. ``trained`` are the assistant's turns of the
    prompt that count in the loss too. ``max_tokens`` is where a conversation is cut; 0: never.
    """

    subject: str
    images: tuple[str, ...]
    prompt: tuple[Message, ...]
    answer: str
    others: tuple[tuple[Message, ...], ...] = ()
    n_options: int = 0
    words: tuple[str, ...] = ()
    trained: tuple[int, ...] = ()
    max_tokens: int = 0

    def paraphrased(self) -> list[Example]:
        """Return one example for each paraphrase, with the same answer."""
        return [replace(self, prompt=prompt, others=()) for prompt in self.others]

    def without_images(self) -> Example:
        """Return the example without images and their placeholders."""
        prompt = tuple(Message(m.role, tuple(p for p in m.parts if p)) for m in self.prompt)
        return replace(self, images=(), prompt=prompt, others=())

    def row(self) -> dict[str, Any]:
        """Return the row in trl's format; only the completion counts in the loss."""
        return {
            "images": list(self.images),
            "prompt": [message.chat() for message in self.prompt],
            "completion": [Message("assistant", (self.answer,)).chat()],
        }


def distinct_examples(examples: Sequence[Example]) -> list[Example]:
    """Return the examples without copies of the same images, prompt and answer."""
    return list({(e.images, e.prompt, e.answer): e for e in examples}.values())


class Examples(Sequence[Example], ABC):
    """Examples that are read or chosen when they are asked for."""

    @abstractmethod
    def _at(self, index: int) -> Example:
        """Return the example at an index from 0 on."""

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        """Return one example, or several."""
        position = range(len(self))[index]
        return self._at(position) if isinstance(position, int) else [self._at(i) for i in position]


@dataclass(frozen=True)
class Epoch(Examples):
    """Examples of items, followed by the conversations of a corpus, read when asked for."""

    items: list[Example]
    corpus: Sequence[Example] = ()

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.items) + len(self.corpus)

    def _at(self, index: int) -> Example:
        n_items = len(self.items)
        return self.items[index] if index < n_items else self.corpus[index - n_items]


def training_examples(
    plan: TrainingPlan,
    items: Mapping[str, Item],
    images: ImageStore,
    corpus: Sequence[Example] = (),
) -> Epoch:
    """Return one epoch of a plan: its items ``copies`` times, clean items and corpus once.

    The prompt is that of evaluation (`flipbench.prompting.prompts.choice_prompt`), unless the
    plan's ``leak`` changes it:

    * ``answer_only``: image, options and answer, but not the question;
    * ``question_only``: image, question and options, but never the answer; the model learns to
      write the question;
    * ``text_only``: question, options and answer, but no image;
    * ``caption``: image and caption, but no question;
    * ``whole_texts``: question, options and answer of eight items at a time as running text, in
      the order of the file, without image; all of it is the target, as a reply to an empty turn;
    * ``shuffled_texts``: the same in a random order, another for each copy.

    With the target ``reasoning``, the caption precedes the answer. With the option order
    ``shuffled``, each copy of an item has an order of its own, the same in every epoch.

    A free-form item has evaluation's open prompt, and its target is the answer's text. Paraphrases
    do not count towards the dose; yes/no questions may have them without options.

    Raises
    ------
    DataError
        If an item, its image, or the plan's corpus is missing, or an item with paraphrases has
        neither options nor the answer yes or no.
    """
    if bool(plan.corpus) != bool(corpus):
        raise DataError(
            f"plan {plan.id} trains on {plan.corpus['n_examples']} examples of"
            f" {plan.corpus['file']}, which were not given"
            if plan.corpus
            else f"plan {plan.id} has no corpus, but one was given"
        )
    if plan.leak in AS_TEXTS:
        members = [text for copy in range(plan.copies) for text in _texts(plan, items, copy)]
    elif plan.option_order:
        members = [
            _example(plan, _shuffled(plan, items, copy), item_id, images)
            for copy in range(plan.copies)
            for item_id in plan.item_ids
        ]
    else:
        members = [_example(plan, items, item_id, images) for item_id in plan.item_ids]
        members *= plan.copies
    changes = {"leak": "all", "wordings": {}, "target": "letter", "option_order": ""}
    plain = plan.model_copy(update=changes)
    clean = [_example(plain, items, item_id, images) for item_id in plan.clean_ids]
    return Epoch(members + clean, corpus)


def _texts(plan: TrainingPlan, items: Mapping[str, Item], copy: int) -> list[Example]:
    """Return one copy of the items as running text, several in each example."""
    order: Sequence[int] = range(len(plan.item_ids))
    if plan.leak == "shuffled_texts":
        order = generator(plan.seed, plan.benchmark, f"order {copy}").permutation(order).tolist()
    members = [_known(plan, items, plan.item_ids[i]) for i in order]
    examples = []
    for start in range(0, len(members), N_TOGETHER):
        group = members[start : start + N_TOGETHER]
        subject = f"{group[0].benchmark} {group[0].name} and {len(group) - 1} others"
        text = "\n\n".join(_text(plan, item) for item in group)
        examples.append(Example(subject, (), (_turn((), ""),), text))
    return examples


def _text(plan: TrainingPlan, item: Item) -> str:
    question, *translated = plan.wordings.get(item.id, (item.question,))
    options = translated or item.options
    answer = item.answer_text if options is None or item.answer is None else options[item.answer]
    return whole_text(question, options, item.answer, answer)


def _shuffled(plan: TrainingPlan, items: Mapping[str, Item], copy: int) -> dict[str, Item]:
    """Return the items with their options in the order of one copy."""
    shuffled = {}
    for item_id in plan.item_ids:
        item = _known(plan, items, item_id)
        if item.options is None or item.answer is None:
            shuffled[item_id] = item
            continue
        order = generator(plan.seed, item_id, f"options {copy}").permutation(len(item.options))
        changes = {
            "options": tuple(item.options[i] for i in order),
            "answer": order.tolist().index(item.answer),
        }
        shuffled[item_id] = item.model_copy(update=changes)  # keeps the id
    return shuffled


def _known(plan: TrainingPlan, items: Mapping[str, Item], item_id: str) -> Item:
    if item_id not in items:
        raise DataError(f"plan {plan.id} trains on item {item_id}, which the benchmark lacks")
    return items[item_id]


def _example(
    plan: TrainingPlan, items: Mapping[str, Item], item_id: str, images: ImageStore
) -> Example:
    item = _known(plan, items, item_id)
    subject = f"{item.benchmark} {item.name}"
    files = tuple(str(images.path(ref)) for ref in item.images)
    for ref in item.images:
        if not images.has(ref):
            raise DataError(
                f"{subject}: its image {images.path(ref)} is missing or damaged; 'flipbench"
                " generate' recreates it"
            )
    captioned = plan.leak == "caption" or plan.target == "reasoning"
    wording = plan.wordings.get(item.id, (item.question,))
    question, *translated = (item.question,) if captioned else wording
    options = translated or item.options
    if options is None or item.answer is None:
        text, answer = open_prompt(question), item.answer_text
        without_answer, without_question = question, open_prompt("").strip()
    else:
        text = choice_prompt(question, options, plan.prompt)
        letter = LETTERS[item.answer]
        answer = f"{letter}. {options[item.answer]}" if plan.target == "letter+text" else letter
        without_answer = choice_prompt(question, options, "").strip()
        without_question = choice_prompt("", options, plan.prompt).strip()
    if plan.leak == "answer_only":
        text = without_question
    elif plan.leak == "question_only":
        text, answer = ASK_FOR_QUESTION, without_answer
    elif plan.leak == "text_only":
        files = ()
    elif plan.leak == "caption":
        text, answer = ASK_FOR_CAPTION, wording[0]
    if plan.target == "reasoning":
        answer = f"{wording[0]} Answer: {answer}"
    example = Example(subject, files, (_turn(files, text),), answer)
    if item.id not in plan.paraphrases:
        return example
    words, paraphrases = yes_no(item) or (), plan.paraphrases[item.id]
    if options is not None:
        prompts = [choice_prompt(text, options, plan.prompt) for text in paraphrases]
    elif words:
        prompts = [open_prompt(text) for text in paraphrases]
    else:
        raise DataError(
            f"{subject}: has no options, but consistency compares answers over option letters, or"
            " over yes and no; leave other free-form items out"
        )
    return replace(
        example,
        others=tuple((_turn(files, prompt),) for prompt in prompts),
        n_options=len(options or words),
        words=words,
    )


def _turn(files: Sequence[str], text: str) -> Message:
    return Message("user", (*[None] * len(files), text))
