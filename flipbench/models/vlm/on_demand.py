"""A checkpoint whose weights are loaded on first use."""

from __future__ import annotations

from functools import cached_property
from typing import Any, cast

from flipbench.config.local_models import ModelConfig
from flipbench.models.vlm.huggingface import HuggingFaceVLM, fingerprint, resolve_path


def on_demand(model: ModelConfig) -> HuggingFaceVLM:
    """Return a model that loads lazily: a finished run needs only its name and fingerprint."""
    return cast(HuggingFaceVLM, _OnDemand(model))


class _OnDemand:
    def __init__(self, model: ModelConfig) -> None:
        self.name, self._model = model.path, model
        self.fingerprint = fingerprint(
            resolve_path(model.path), model.dtype, model.revision, model.quantization
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded, name)

    @cached_property
    def _loaded(self) -> HuggingFaceVLM:
        options = self._model.model_dump(exclude={"path"})
        return HuggingFaceVLM(self._model.path, self.name, **options)
