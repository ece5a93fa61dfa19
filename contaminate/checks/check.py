"""Check training examples before any step: targets, chat templates, lengths."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.core.images import open_image
from flipbench.models.vlm.conversation import has_first_token

from ..data.examples import Epoch, Example, distinct_examples

_N_CHECKED = 512  # conversations of a corpus


def add_first_token(processor: Any) -> None:
    """Prepend to the chat template the first token that the tokenizer adds by default.

    trl tokenises rendered chats without special tokens; evaluation adds them.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    chat = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
    rendered = processor.apply_chat_template(chat, tokenize=False)
    adds_it = tokenizer("?")["input_ids"][0] == tokenizer.bos_token_id
    if adds_it and not has_first_token(rendered, tokenizer):
        processor.chat_template = tokenizer.bos_token + processor.chat_template


def render_example(example: Example, processor: Any) -> tuple[str, str]:
    """Return prompt and target as the chat template renders them.

    Raises
    ------
    PrerequisiteError
        If the template drops the answer, or renders the prompt differently before an answer.
    """
    row = example.row()
    prompt = processor.apply_chat_template(
        row["prompt"], add_generation_prompt=True, tokenize=False
    )
    text = processor.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False)
    if not text.startswith(prompt):
        raise PrerequisiteError(
            f"{example.subject}: the chat template renders the prompt differently when an answer"
            " follows, so the start of the answer is unknown; give the checkpoint another chat"
            " template"
        )
    target = str(text[len(prompt) :])
    if example.answer.strip() not in target:
        raise PrerequisiteError(
            f"{example.subject}: the chat template drops the answer, so no token of"
            f" {example.answer[:40]!r} would be trained on; give the checkpoint a chat template"
            " that renders the assistant's turn"
        )
    return str(prompt), target


def answer_spans(example: Example, processor: Any, prompt: str) -> list[tuple[int, int]]:
    """Return where the answers to train on begin and end in a rendered prompt.

    Raises
    ------
    PrerequisiteError
        If the chat template renders an answer differently when other turns follow.
    """
    chat, spans = example.row()["prompt"], []
    for i in example.trained:
        head = processor.apply_chat_template(chat[:i], add_generation_prompt=True, tokenize=False)
        head_and_answer = processor.apply_chat_template(chat[: i + 1], tokenize=False)
        if not (prompt.startswith(head_and_answer) and head_and_answer.startswith(head)):
            raise PrerequisiteError(
                f"{example.subject}: the chat template renders turn {i + 1} differently when others"
                " follow; give the checkpoint another chat template"
            )
        spans.append((len(head), len(head_and_answer)))
    return spans


def check_examples(examples: Sequence[Example], processor: Any, context: int | None) -> int:
    """Check examples and paraphrases; return the number of tokens of the longest.

    Of a corpus of conversations, which are cut if they are too long, at most 512 are checked.

    Parameters
    ----------
    examples : sequence of Example
    processor : processor of the model
        With the chat template used in training.
    context : int or None
        The model's context length.

    Raises
    ------
    PrerequisiteError
        As `render_example`.
    DataError
        If there are no examples, or prompt and target exceed the context.
    """
    if not examples:
        raise DataError("the plan has no training example; set copies, a corpus or clean items")
    tokenizer = getattr(processor, "tokenizer", processor)
    if isinstance(examples, Epoch):
        step = -(-len(examples.corpus) // _N_CHECKED) or 1
        examples = [*examples.items, *examples.corpus[::step]]
    distinct = distinct_examples([*examples, *(p for e in examples for p in e.paraphrased())])
    texts = []
    for example in distinct:
        prompt, target = render_example(example, processor)
        answer_spans(example, processor, prompt)
        texts.append(prompt + target)
    n_text = [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    n_image = _most_image_tokens(distinct, processor)
    bounds = [
        min(n + n_image * len(e.images), cut_at(e, context) or sys.maxsize)
        for n, e in zip(n_text, distinct, strict=True)
    ]
    if context is None or max(bounds) <= context:
        return max(bounds)
    longest = 0
    for example, bound, text in zip(distinct, bounds, texts, strict=True):
        n = n_tokens(text, example.images, processor) if bound > context else bound
        longest = max(longest, n)
        if n > context:
            raise DataError(
                f"{example.subject}: prompt and target need {n:,} tokens, more than the model's"
                f" context of {context:,}; lower max_pixels, or leave this item out"
            )
    return longest


def cut_at(example: Example, context: int | None) -> int:
    """Return the number of tokens after which a conversation is cut; 0: an item, never cut."""
    return min(example.max_tokens, context or example.max_tokens)


def context_of(config: Any) -> int | None:
    """Return the context length of a model's configuration, if it has one."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def _most_image_tokens(examples: Sequence[Example], processor: Any) -> int:
    """Measure the tokens of the examples' images of the four largest sizes."""
    files: dict[tuple[int, int], str] = {}
    for file in dict.fromkeys(file for example in examples for file in example.images):
        with open_image(file) as image:
            files.setdefault(image.size, file)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
    text = processor.apply_chat_template(chat, tokenize=False)
    largest = sorted(files, key=lambda size: size[0] * size[1], reverse=True)[:4]
    counts = [n_tokens(text, [files[size]], processor, special=True) for size in largest]
    return max(counts, default=0)


def n_tokens(text: str, files: Sequence[str], processor: Any, special: bool = False) -> int:
    """Return the number of tokens of a rendered text and its images."""
    images = [[open_image(file).convert("RGB") for file in files]] if files else None
    batch = processor(text=[text], images=images, add_special_tokens=special)
    return len(batch["input_ids"][0])


def pixel_budget(processor: Any) -> dict[str, Any]:
    """Return the processor's settings that decide how many pixels of an image the model sees."""
    image_processor: Any = getattr(processor, "image_processor", None)
    names = ("min_pixels", "max_pixels", "size", "crop_size", "do_pad", "image_grid_pinpoints")
    settings = image_processor.to_dict() if hasattr(image_processor, "to_dict") else {}
    budget: dict[str, Any] = {}
    for name in names:
        value: Any = settings.get(name)
        if hasattr(value, "items"):
            value = {key: int(size) for key, size in value.items() if size is not None}
        if value not in (None, False):
            budget[name] = value
    return budget


def set_pixel_budget(processor: Any, settings: Mapping[str, Any]) -> None:
    """Change the pixel budget of a processor that keeps aspect ratios (Qwen-VL).

    Raises
    ------
    ConfigError
        If the processor resizes every image to one size, or the budget is contradictory.
    """
    min_pixels, max_pixels = settings.get("min_pixels"), settings.get("max_pixels")
    if min_pixels is None and max_pixels is None:
        return
    image_processor = processor.image_processor
    size = pixel_budget(processor).get("size", {})
    if "longest_edge" not in size or not hasattr(image_processor, "merge_size"):
        raise ConfigError(
            f"min_pixels, max_pixels: {type(image_processor).__name__} resizes every image to the"
            " same size; leave them out for this model"
        )
    size = {
        "shortest_edge": min_pixels or size["shortest_edge"],
        "longest_edge": max_pixels or size["longest_edge"],
    }
    if size["shortest_edge"] > size["longest_edge"]:
        raise ConfigError(
            f"min_pixels {size['shortest_edge']:,} is over max_pixels {size['longest_edge']:,}"
        )
    image_processor.size = type(image_processor.size)(**size)
    for name, value in zip(("min_pixels", "max_pixels"), size.values(), strict=True):
        if getattr(image_processor, name, None) is not None:
            setattr(image_processor, name, value)
