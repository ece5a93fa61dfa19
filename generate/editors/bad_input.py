"""Name what a pipeline would pass over in silence: cut captions, blank controls, NaN."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image

from flipbench.core.errors import DataError
from flipbench.core.records import JsonDict

from .batching import Drawn

log = logging.getLogger(__name__)
_READERS = {"tokenizer": "the first text encoder", "tokenizer_2": "the second text encoder"}


def cut_of(pipeline: Any, text: str, max_tokens: int | None, subject: str) -> JsonDict:
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
    cut: JsonDict = {}
    for name in names:
        tokenizer = getattr(pipeline, name)
        limits = [tokenizer.model_max_length]
        if name == names[-1]:
            own = getattr(pipeline, "tokenizer_max_length", None) if len(names) == 1 else None
            limits += [limit for limit in (max_tokens, own) if limit is not None]
        n_tokens = len(tokenizer(text, verbose=False)["input_ids"])
        if n_tokens > min(limits):
            cut[name] = [min(limits), n_tokens]
    for name, (read, n_tokens) in cut.items():
        level = logging.WARNING if name == names[-1] else logging.INFO
        log.log(
            level,
            "%s: %s reads %d of the caption's %d tokens",
            *(subject, _READERS[name] if len(names) > 1 else "the text encoder", read, n_tokens),
        )
    return {"text_read": cut} if cut else {}


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
def finite(pipeline: Any) -> Iterator[list[bool]]:
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
        flags.extend(bool(one.isfinite().all()) for one in pixels)

    handle = decoder.register_forward_hook(note)
    try:
        yield flags
    finally:
        handle.remove()


def only_finite(drawn: list[Drawn], flags: list[bool], dtype: str) -> list[Drawn]:
    """Replace images with NaN by errors; in tiles, no tile of the batch may have any."""
    if len(flags) != len(drawn):
        flags = [all(flags)] * len(drawn)
    remedy = "set dtype to bfloat16 or float32" if dtype == "float16" else "lower guidance or LoRAs"
    return [
        one
        if fine or isinstance(one, Exception)
        else DataError(f"the pipeline drew NaN instead of an image (in {dtype}); {remedy}")
        for one, fine in zip(drawn, flags, strict=True)
    ]


def _extrema(image: Image.Image) -> list[tuple[int, int]]:
    return [channel.getextrema() for channel in image.split()]  # type: ignore[misc]
