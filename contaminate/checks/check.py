"""Look at what would be trained on before anything is: targets, templates, lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.models.vlm.huggingface import has_first_token

from ..data.examples import Example


def write_out_first_token(processor: Any) -> None:
    """Let the chat template say the first token that the tokenizer would add by itself.

    trl tokenises rendered chats without adding any; evaluation has it added.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    chat = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
    rendered = processor.apply_chat_template(chat, tokenize=False)
    adds_it = tokenizer("?")["input_ids"][0] == tokenizer.bos_token_id
    if adds_it and not has_first_token(rendered, tokenizer):
        processor.chat_template = tokenizer.bos_token + processor.chat_template


def rendered(example: Example, processor: Any) -> tuple[str, str]:
    """Return prompt and target as the chat template writes them.

    Raises
    ------
    PrerequisiteError
        Where the template loses the answer, or rewrites the prompt when an answer follows.
    """
    row = example.row()
    before = processor.apply_chat_template(
        row["prompt"], add_generation_prompt=True, tokenize=False
    )
    whole = processor.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False)
    if not whole.startswith(before):
        raise PrerequisiteError(
            f"{example.subject}: the chat template rewrites the prompt when an answer follows, so"
            " nothing says where the answer begins; give the checkpoint another chat template"
        )
    target = str(whole[len(before) :])
    if example.answer.strip() not in target:
        raise PrerequisiteError(
            f"{example.subject}: the chat template leaves the answer out, so the training would"
            f" learn from no token of {example.answer[:40]!r}; give the checkpoint a chat template"
            " that writes the assistant's turn"
        )
    return str(before), target


def check_examples(examples: Sequence[Example], processor: Any, context: int | None) -> int:
    """Check every distinct example; return the number of tokens of the longest.

    Parameters
    ----------
    examples : sequence of Example
    processor : processor of the model
        With the chat template that trains.
    context : int or None
        Most tokens that the model reads.

    Raises
    ------
    PrerequisiteError
        Where a template trains on no token of the answer.
    DataError
        Where there is nothing to train on, or prompt and target exceed the context.
    """
    if not examples:
        raise DataError("the plan trains on no example; give it copies, a corpus or clean items")
    tokenizer = getattr(processor, "tokenizer", processor)
    distinct = list({(e.images, e.prompt, e.answer): e for e in examples}.values())
    texts = ["".join(rendered(example, processor)) for example in distinct]
    n_text = [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    n_image = _most_image_tokens(distinct, processor)
    bounds = [n + n_image * len(e.images) for n, e in zip(n_text, distinct, strict=True)]
    if context is None or max(bounds) <= context:
        return max(bounds)
    longest = 0
    for example, bound, text in zip(distinct, bounds, texts, strict=True):
        n = _n_tokens(example, text, processor) if bound > context else bound
        longest = max(longest, n)
        if n > context:
            raise DataError(
                f"{example.subject}: prompt and target need {n:,} tokens, over the model's context"
                f" of {context:,}; lower max_pixels, or leave this one out"
            )
    return longest


def _most_image_tokens(examples: Sequence[Example], processor: Any, n_looked_at: int = 4) -> int:
    """Return the tokens of the largest images among the examples, measured."""
    sizes: dict[tuple[int, int], tuple[Example, str]] = {}
    for file in dict.fromkeys(file for example in examples for file in example.images):
        with Image.open(file) as image:
            sizes.setdefault(image.size, (examples[0], file))
    most = 0
    for size in sorted(sizes, key=lambda s: s[0] * s[1], reverse=True)[:n_looked_at]:
        chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]
        text = processor.apply_chat_template(chat, tokenize=False)
        with Image.open(sizes[size][1]) as image:
            ids = processor(text=[text], images=[[image.convert("RGB")]])["input_ids"][0]
        most = max(most, len(ids))
    return most


def _n_tokens(example: Example, text: str, processor: Any) -> int:
    images = []
    for file in example.images:
        with Image.open(file) as image:
            images.append(image.convert("RGB"))
    batch = processor(text=[text], images=[images] if images else None, add_special_tokens=False)
    return len(batch["input_ids"][0])


def pixel_budget(processor: Any) -> dict[str, Any]:
    """Return how many pixels of an image the model sees, as its processor says it."""
    image_processor: Any = getattr(processor, "image_processor", None)
    names = ("min_pixels", "max_pixels", "size", "crop_size", "do_pad", "image_grid_pinpoints")
    told = image_processor.to_dict() if hasattr(image_processor, "to_dict") else {}
    found: dict[str, Any] = {}
    for name in names:
        value: Any = told.get(name)
        if hasattr(value, "items"):
            value = {key: int(size) for key, size in value.items() if size is not None}
        if value not in (None, False):
            found[name] = value
    return found


def set_pixel_budget(processor: Any, least: int | None, most: int | None) -> None:
    """Change the pixel budget of a processor whose images keep their shape (Qwen-VL).

    Raises
    ------
    ConfigError
        Where the processor resizes every image to one size.
    """
    if least is None and most is None:
        return
    image_processor = processor.image_processor
    size = pixel_budget(processor).get("size", {})
    if "longest_edge" not in size or not hasattr(image_processor, "merge_size"):
        raise ConfigError(
            f"min_pixels, max_pixels: {type(image_processor).__name__} gives every image the same"
            " size; leave them out for this model"
        )
    size = {
        "shortest_edge": least or size["shortest_edge"],
        "longest_edge": most or size["longest_edge"],
    }
    if size["shortest_edge"] > size["longest_edge"]:
        raise ConfigError(
            f"min_pixels {size['shortest_edge']:,} is over max_pixels {size['longest_edge']:,}"
        )
    image_processor.size = type(image_processor.size)(**size)
    for name, value in zip(("min_pixels", "max_pixels"), size.values(), strict=True):
        if getattr(image_processor, name, None) is not None:
            setattr(image_processor, name, value)
