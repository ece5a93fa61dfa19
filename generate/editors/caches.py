"""Draw faster: skip what hardly changes, other kernels, smaller weights, texts of other runs.

Whatever changes the drawing is part of an edit's id.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flipbench.core.errors import ConfigError, PrerequisiteError, nearest
from flipbench.core.files import write_atomically
from flipbench.core.records import JsonDict
from flipbench.models.vlm.checkpoints import first_line

from .diffusers_loading import (
    FirstBlockCache,
    PipelineSpec,
    TaylorSeerCache,
    diffusers,
)

if TYPE_CHECKING:
    import torch

    Embeddings = tuple[torch.Tensor, torch.Tensor]

QUANTIZERS: dict[str, str] = {
    "int8": "Int8WeightOnlyConfig",
    "int8-dynamic": "Int8DynamicActivationInt8WeightConfig",
    "int4": "Int4WeightOnlyConfig",
    "float8": "Float8WeightOnlyConfig",
}
"""Kinds of weights, and the class of torchao that makes them."""


def speed_settings(
    spec: PipelineSpec, cls: Any, *, controlnet: bool, contexts: bool = False
) -> JsonDict:
    """Return what an edit depends on; nothing if nothing is set.

    Parameters
    ----------
    spec : PipelineSpec
        The editor's settings.
    cls : type
        The pipeline's class.
    controlnet : bool
        Whether a ControlNet takes part.
    contexts : bool
        Whether the editor itself tells the passes with and without the caption apart.

    Raises
    ------
    ConfigError
        If the cache is known to draw something else than without it, the class does not tell its
        passes apart, the attention back end is unknown, or LoRA weights are to be quantized.
    PrerequisiteError
        If torchao is missing.
    """
    settings: JsonDict = {}
    if spec.cache is not None:
        _check_cache(spec, cls, controlnet=controlnet, contexts=contexts)
        settings["cache"] = spec.cache.model_dump()
    if spec.attention is not None:
        settings["attention"] = _known_backend(spec.attention)
    if spec.quantize is not None:
        if spec.loras:
            raise ConfigError("quantize: does not go with loras; remove one of the two")
        _quantizer(spec.quantize)
        settings["quantize"] = f"torchao {spec.quantize}"
    if spec.compile:
        settings["compile"] = True
    return settings


def quantized(pipeline: Any, spec: PipelineSpec) -> Any:
    """Quantize the weights of a pipeline's transformer and return the pipeline.

    Raises
    ------
    PrerequisiteError
        If torchao cannot make such weights here.
    """
    if spec.quantize is not None:
        quantization, config = _quantizer(spec.quantize)
        try:
            quantization.quantize_(pipeline.transformer, config)
        except (ImportError, NotImplementedError, RuntimeError, AssertionError) as error:
            raise PrerequisiteError(
                f"quantize: torchao cannot make {spec.quantize} weights here"
                f" ({first_line(error)}); try int8"
            ) from error
    return pipeline


def with_cache(pipeline: Any, cache: FirstBlockCache | TaylorSeerCache | None) -> Any:
    """Add the cache to a pipeline's transformer and return the pipeline."""
    if isinstance(cache, FirstBlockCache):
        config = diffusers().FirstBlockCacheConfig(threshold=cache.threshold)
        pipeline.transformer.enable_cache(config)
    elif isinstance(cache, TaylorSeerCache):
        import torch

        config = diffusers().TaylorSeerCacheConfig(
            cache_interval=cache.interval,
            disable_cache_before_step=cache.warmup,
            max_order=cache.order,
            taylor_factors_dtype=torch.float32,
            use_lite_mode=cache.lite,
        )
        pipeline.transformer.enable_cache(config)
    return pipeline


@contextmanager
def attention_kernel(name: str | None) -> Iterator[None]:
    """Draw with another attention back end.

    Raises
    ------
    PrerequisiteError
        If its package is missing.
    """
    if name is None:
        yield
        return
    from diffusers.models.attention_dispatch import attention_backend

    with ExitStack() as stack:
        try:
            stack.enter_context(attention_backend(name))
        except (RuntimeError, ImportError, OSError) as error:
            raise PrerequisiteError(f"attention: {first_line(error)}") from error
        yield


@contextmanager
def fresh_cache(transformer: Any) -> Iterator[None]:
    """Begin images with an empty cache, in the pass with the caption.

    For pipelines that do not tell their passes apart themselves.
    """
    if not transformer.is_cache_enabled:
        yield
        return
    transformer._reset_stateful_cache()
    with transformer.cache_context("cond"):
        yield


@contextmanager
def negative_pass(transformer: Any, until: ExitStack) -> Iterator[None]:
    """Run a pass without the caption; then, until ``until`` closes, passes have it again."""
    if not transformer.is_cache_enabled:
        yield
        return
    with transformer.cache_context("uncond"):
        yield
    until.enter_context(transformer.cache_context("cond"))  # leaving a context sets none


def _check_cache(spec: PipelineSpec, cls: Any, *, controlnet: bool, contexts: bool) -> None:
    assert spec.cache is not None
    first_block = isinstance(spec.cache, FirstBlockCache)
    if controlnet and first_block:
        raise ConfigError(
            "cache: first-block is refused with a ControlNet: it loses the ControlNet's part of"
            " skipped and remembered blocks, even on identical input; remove cache, or use"
            " taylorseer with the editor flux-controlnet"
        )
    if controlnet and not contexts:
        raise ConfigError(
            f"cache: {spec.cache.kind} has been compared with no cache for the ControlNet of the"
            " editor flux-controlnet only; use that editor, or remove cache"
        )
    if not contexts and "cache_context" not in inspect.getsource(cls.__call__):
        raise ConfigError(
            f"cache: {cls.__name__} does not tell its passes apart, which {spec.cache.kind} needs;"
            " remove cache"
        )
    if first_block and spec.batch_size != 1:
        raise ConfigError(
            "cache: the images of a batch would share what first-block skips, so that each depends"
            " on the others; set batch_size to 1"
        )


def _known_backend(name: str) -> str:
    from diffusers.models.attention_dispatch import AttentionBackendName

    names = sorted(backend.value for backend in AttentionBackendName)
    if name not in names:
        raise ConfigError(
            f"attention: {name!r} is none of {', '.join(names)}{nearest(name, names)}"
        )
    return name


def _quantizer(kind: str) -> tuple[Any, Any]:
    """Return torchao's module of quantization and a configuration."""
    try:
        quantization = import_module("torchao.quantization")
    except ImportError as error:
        raise PrerequisiteError(
            f"quantize: this needs the package 'torchao' ({first_line(error)}): pip install torchao"
        ) from error
    return quantization, getattr(quantization, QUANTIZERS[kind])()


class TextFolder:
    """Embeddings of texts, one file for each, in a folder that several runs can share.

    A file that is cut, altered or of another encoder counts as missing.

    Parameters
    ----------
    folder : Path
        Where they are.
    encoder : dict
        What they depend on beside the text, as plain JSON data.
    """

    def __init__(self, folder: Path, encoder: JsonDict) -> None:
        self.folder, self._encoder = folder, json.dumps(encoder, sort_keys=True)

    def read(self, text: str) -> Embeddings | None:
        """Return embeddings and pooled embeddings of a text; None if they are not there."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self._path(text), "pt") as file:
                tensors = file.get_tensor("embeddings"), file.get_tensor("pooled")
                intact = (file.metadata() or {}).get("sha256") == _digest(tensors)
        except (OSError, SafetensorError):
            return None
        return tensors if intact else None

    def write(self, text: str, tensors: Embeddings) -> None:
        """Store a text's embeddings; raises `DataError` if they cannot be written."""
        from safetensors.torch import save

        by_name = dict(zip(("embeddings", "pooled"), tensors, strict=True))
        write_atomically(self._path(text), save(by_name, {"sha256": _digest(tensors)}))

    def _path(self, text: str) -> Path:
        key = hashlib.sha256(f"{self._encoder}\0{text}".encode()).hexdigest()
        return self.folder / f"{key}.safetensors"


def _digest(tensors: Embeddings) -> str:
    import torch

    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
