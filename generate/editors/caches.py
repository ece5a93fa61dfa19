"""What need not be computed again: blocks that hardly change, and texts of other runs."""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flipbench.core.errors import ConfigError
from flipbench.core.files import write_atomically
from flipbench.core.records import JsonDict

from .diffusers_loading import FirstBlockCache, diffusers

if TYPE_CHECKING:
    import torch

    Embeddings = tuple[torch.Tensor, torch.Tensor]


def cache_settings(
    cache: FirstBlockCache | None, cls: Any, *, controlnet: bool, batch_size: int
) -> JsonDict:
    """Return what an edit depends on; nothing if there is no cache.

    Parameters
    ----------
    cache : FirstBlockCache, optional
        The setting.
    cls : type
        The pipeline's class.
    controlnet : bool
        Whether a ControlNet takes part.
    batch_size : int
        Images of a batch would share one decision on what is skipped.

    Raises
    ------
    ConfigError
        If the cache is known to draw something else than without it, or the class does not tell
        its passes apart.
    """
    if cache is None:
        return {}
    if controlnet:
        raise ConfigError(
            "cache: first-block is refused with a ControlNet: it loses the ControlNet's part of"
            " skipped and remembered blocks, even on identical input; remove cache"
        )
    if "cache_context" not in inspect.getsource(cls.__call__):
        raise ConfigError(
            f"cache: {cls.__name__} does not tell its passes apart, which first-block needs;"
            " remove cache"
        )
    if batch_size != 1:
        raise ConfigError(
            "cache: the images of a batch would share what first-block skips, so that each depends"
            " on the others; set batch_size to 1"
        )
    return {"cache": cache.model_dump()}


def with_cache(pipeline: Any, cache: FirstBlockCache | None) -> Any:
    """Add the cache to a pipeline's transformer and return the pipeline."""
    if cache is not None:
        config = diffusers().FirstBlockCacheConfig(threshold=cache.threshold)
        pipeline.transformer.enable_cache(config)
    return pipeline


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

        named = dict(zip(("embeddings", "pooled"), tensors, strict=True))
        write_atomically(self._path(text), save(named, {"sha256": _digest(tensors)}))

    def _path(self, text: str) -> Path:
        key = hashlib.sha256(f"{self._encoder}\0{text}".encode()).hexdigest()
        return self.folder / f"{key}.safetensors"


def _digest(tensors: Embeddings) -> str:
    import torch

    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
