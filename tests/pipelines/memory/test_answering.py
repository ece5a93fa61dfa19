"""What a model takes while it answers, without its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from flipbench.config.local_models import ModelConfig
from flipbench.core.errors import PrerequisiteError
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.pipelines.memory.answering import answering_memory
from tests.fixtures.allocations import Allocations

TEXTS = ("What colour is the circle? " * 8, "Which?")
PICTURES = [[Image.new("RGB", (90, 64))], [Image.new("RGB", (64, 64))]]


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_reading_and_replying_take_what_a_real_model_takes(
    family: str, tiny_vlm: Callable[[str], HuggingFaceVLM], tiny_folders: dict[str, Path]
) -> None:
    vlm, config = tiny_vlm(family), ModelConfig(path=str(tiny_folders[family]))
    inputs = vlm.conversation.encode([vlm.conversation.render(t, 1) for t in TEXTS], PICTURES)
    allocations = Allocations(vlm.model)
    expected_weights = allocations.now
    allocations.count(inputs["pixel_values"])

    @torch.no_grad()
    def read() -> None:
        vlm.model(**inputs, use_cache=True, logits_to_keep=1)

    expected = allocations.peak_of(read) - expected_weights
    weights, on_top = answering_memory(config, TEXTS, PICTURES, 1)
    assert weights == expected_weights
    assert on_top == pytest.approx(expected, rel=0.02)

    text = vlm.model.config.get_text_config()
    width = text.hidden_size // text.num_attention_heads * text.num_key_value_heads
    cache = 2 * text.num_hidden_layers * len(TEXTS) * width * 4  # bytes a token
    _, after_a_long_reply = answering_memory(config, TEXTS, PICTURES, 100_000)
    assert after_a_long_reply == pytest.approx(100_000 * cache, rel=0.02)


def test_a_configuration_that_is_not_here_is_named() -> None:
    with pytest.raises(PrerequisiteError, match="nobody/nothing-7b"):
        answering_memory(ModelConfig(path="nobody/nothing-7b"), TEXTS, PICTURES, 1)
