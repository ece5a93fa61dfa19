"""Report problems that diffusers ignores: cut captions, blank control images, NaN."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image

from flipbench.core.errors import DataError
from flipbench.core.records import JsonDict
from flipbench.models.vlm.chat_templates import try_template

from .batching import Drawn

log = logging.getLogger(__name__)
_READERS = {
    "tokenizer": "the first text encoder",
    "tokenizer_2": "the second text encoder",
    "tokenizer_3": "the third text encoder",
}
_CHATS = ("Flux2", "ZImage")  # the limit of these counts the words of a chat around the caption too
_WHOLE = ("QwenImageEdit",)  # these read captions of any length
_MARK = "\0"


def unread_text(pipeline: Any, text: str, max_tokens: int | None, subject: str) -> JsonDict:
    """Return how much of a caption the text encoders do not read, and warn of it.

    Flux's first encoder, CLIP, reads 77 tokens, whatever the setting; it adds one vector for the
    whole picture, so only what the last encoder does not read is lost altogether.

    Parameters
    ----------
    pipeline : Any
        A diffusers pipeline with its tokenizers.
    text : str
        The caption.
    max_tokens : int or None
        Limit of the last text encoder, where one is set.
    subject : str
        Benchmark and name of the item.

    Returns
    -------
    dict
        ``{"text_read": {tokenizer: [tokens read, tokens in all]}}`` of encoders that cut the
        caption; empty if none does.
    """
    names = [name for name in _READERS if getattr(pipeline, name, None) is not None]
    kind = type(pipeline).__name__
    text_read: JsonDict = {}
    for name in names:
        reader = getattr(pipeline, name)
        tokenizer = getattr(reader, "tokenizer", reader)  # of a processor
        limits = [tokenizer.model_max_length]
        if name == names[-1] and not kind.startswith(_WHOLE):
            own_limit = getattr(pipeline, "tokenizer_max_length", None) if len(names) == 1 else None
            limits += [limit for limit in (max_tokens, own_limit) if limit is not None]
        if kind.startswith(_CHATS):
            chat = _chat(reader, getattr(pipeline, "system_message", None))
            n_read, n_tokens = _read_in_chat(tokenizer, chat, text, min(limits))
        else:
            n_read, n_tokens = min(limits), len(tokenizer(text, verbose=False)["input_ids"])
        if n_tokens > n_read:
            text_read[name] = [n_read, n_tokens]
    for name, (n_read, n_tokens) in text_read.items():
        lost = name == names[-1]
        log.log(
            logging.WARNING if lost else logging.INFO,
            "%s: %s reads %d of the caption's %d tokens%s",
            *(subject, _READERS[name] if len(names) > 1 else "the text encoder", n_read, n_tokens),
            "; ask the captioner for shorter captions" if lost else "",
        )
    return {"text_read": text_read} if text_read else {}


def _chat(reader: Any, system_message: str | None) -> str:
    """Return the chat that a pipeline puts a caption into, with a mark in the caption's place."""
    says = [("system", system_message)] if system_message else []
    in_parts = hasattr(reader, "tokenizer")  # processors take messages in parts
    messages = [
        {"role": role, "content": [{"type": "text", "text": words}] if in_parts else words}
        for role, words in (*says, ("user", _MARK))
    ]
    try_template(reader, "the editor")
    chat: str = reader.apply_chat_template(messages, tokenize=False)
    return chat


def _read_in_chat(tokenizer: Any, chat: str, text: str, limit: int) -> tuple[int, int]:
    """Return how many tokens of a caption are among the first ``limit``, and their number."""
    prefix, suffix = chat.split(_MARK)
    start_at, end_at = len(prefix), len(prefix) + len(text)

    def of_caption(**options: Any) -> int:
        encoding = tokenizer(prefix + text + suffix, return_offsets_mapping=True, **options)
        return sum(start_at <= start < end_at for start, _ in encoding["offset_mapping"])

    return of_caption(truncation=True, max_length=limit), of_caption(verbose=False)


def check_control(control: Image.Image, settings: JsonDict, subject: str) -> None:
    """Refuse a control image in which there is nothing to preserve.

    Raises
    ------
    DataError
        If all its pixels are alike.
    """
    if settings["kind"] == "none" or any(low != high for low, high in _extrema(control)):
        return
    remedy = "use another kind of control"
    if settings["kind"] == "canny":
        remedy = f"lower the thresholds {settings['low']} and {settings['high']}, or {remedy}"
    raise DataError(f"{subject}: the control image ({settings['kind']}) is blank; {remedy}")


@contextmanager
def watch_for_nan(pipeline: Any) -> Iterator[list[bool]]:
    """Note for each image of the next run whether the autoencoder drew only finite numbers.

    Diffusers turns NaN into black. The list is empty if the pipeline has no autoencoder.
    """
    flags: list[bool] = []
    decoder = getattr(getattr(pipeline, "vae", None), "decoder", None)
    if decoder is None:
        yield flags
        return

    def note(module: Any, args: Any, output: Any) -> None:
        pixels = output[0] if isinstance(output, tuple) else output
        flags.extend(bool(image.isfinite().all()) for image in pixels)

    handle = decoder.register_forward_hook(note)
    try:
        yield flags
    finally:
        handle.remove()


def nan_as_errors(drawings: list[Drawn], flags: list[bool], dtype: str) -> list[Drawn]:
    """Replace images with NaN by errors; in tiles, no tile of the batch may have any."""
    if len(flags) != len(drawings):
        flags = [all(flags)] * len(drawings)
    remedy = "set dtype to bfloat16 or float32" if dtype == "float16" else "lower guidance or LoRAs"
    return [
        drawing
        if is_finite or isinstance(drawing, Exception)
        else DataError(f"the pipeline drew NaN instead of an image (in {dtype}); {remedy}")
        for drawing, is_finite in zip(drawings, flags, strict=True)
    ]


def _extrema(image: Image.Image) -> list[tuple[int, int]]:
    return [channel.getextrema() for channel in image.split()]  # type: ignore[misc]
