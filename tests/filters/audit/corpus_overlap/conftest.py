"""Untrained vision encoders of the real classes, and pictures to embed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    Dinov2Config,
    Dinov2Model,
    SiglipConfig,
    SiglipImageProcessorPil,
    SiglipModel,
)

from tests.fixtures.photos import encoded, photo

EDGE = 32
_LAYERS = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_VISION = _LAYERS | {"image_size": EDGE, "patch_size": 8}
_TEXT = _LAYERS | {"vocab_size": 64, "max_position_embeddings": 8}


def _siglip() -> tuple[Any, Any]:
    config = SiglipConfig(vision_config=_VISION, text_config=_TEXT)
    return SiglipModel(config), SiglipImageProcessorPil(size={"height": EDGE, "width": EDGE})


def _clip() -> tuple[Any, Any]:
    config = CLIPConfig(vision_config=_VISION, text_config=_TEXT, projection_dim=12)
    return CLIPModel(config), CLIPImageProcessorPil(
        size={"shortest_edge": EDGE}, crop_size={"height": EDGE, "width": EDGE}
    )


def _dinov2() -> tuple[Any, Any]:
    kept = {key: value for key, value in _VISION.items() if key != "intermediate_size"}
    return Dinov2Model(Dinov2Config(**kept)), _clip()[1]


ENCODERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "siglip": _siglip,
    "clip": _clip,
    "dinov2": _dinov2,
}


@pytest.fixture(scope="session")
def encoder_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a checkpoint of each architecture."""
    folders = {}
    for name, build in ENCODERS.items():
        torch.manual_seed(0)
        folders[name] = tmp_path_factory.mktemp("encoders") / name
        model, processor = build()
        model.save_pretrained(folders[name])
        processor.save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="session")
def files() -> list[bytes]:
    """Return twelve different pictures of 66 x 50 pixels."""
    rng = np.random.default_rng(0)
    return [encoded(photo(rng, 66, 50), "JPEG", quality=90) for _ in range(12)]
