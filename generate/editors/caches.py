"""Skip transformer blocks whose output would hardly change from step to step."""

from __future__ import annotations

import inspect
from typing import Any

from flipbench.core.errors import ConfigError
from flipbench.core.records import JsonDict

from .diffusers_loading import FirstBlockCache, diffusers


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
