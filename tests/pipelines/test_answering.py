"""What a model takes while it answers, without its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from flipbench.api.stages import answering as answering_costs
from flipbench.api.stages.answering import Answering, answering_memory
from flipbench.config.local_models import ModelConfig
from flipbench.contaminate.training.estimate import SHARE_OF_PEAK
from flipbench.core.errors import PrerequisiteError
from flipbench.core.records import Probe
from flipbench.models.vlm.huggingface import HuggingFaceVLM
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


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_a_question_takes_the_operations_of_a_real_model(
    family: str, tiny_vlm: Callable[[str], HuggingFaceVLM], tiny_folders: dict[str, Path]
) -> None:
    vlm, answering = tiny_vlm(family), Answering(ModelConfig(path=str(tiny_folders[family])))
    text, pictures = TEXTS[0], PICTURES[0]
    inputs = vlm.conversation.encode([vlm.conversation.render(text, 1)], [pictures])
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    count: Any = sdpa_flop_count
    counted = {attention: lambda q, k, v, *_, **__: count(q, k, v)}
    counter = FlopCounterMode(display=False, custom_mapping=counted)
    with counter, torch.no_grad():
        vlm.model(**inputs, use_cache=True, logits_to_keep=1)
    one = answering.flops(text, pictures)
    assert one == pytest.approx(counter.get_total_flops(), rel=0.01)
    n_weights = sum(p.numel() for p in vlm.model.parameters())
    assert answering.flops(text, pictures, 11) == one + 20 * n_weights


def test_the_time_of_answers_is_that_of_all_models_with_weights_here(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering_costs, "measured_speed", lambda dtype: 1e6 / SHARE_OF_PEAK)
    monkeypatch.setattr(Answering, "flops", lambda *_: 18_000_000)
    here, gone = ModelConfig(path=str(tiny_folders["llava"])), ModelConfig(path="nobody/nothing")
    probes = [
        Probe(item_id=str(i), variant="v", prompt="Which?" * i, ask="choose") for i in range(100)
    ]
    lines = answering_costs.answering_time([(here, 2, probes), (gone, 1, probes), (here, 1, [])])
    assert lines[0].startswith("2 models with weights here: about 1.0 h on this device")
    assert lines[1].startswith("time not known: nobody/nothing") and len(lines) == 2
    assert answering_costs.answering_time([]) == []


def test_a_configuration_that_is_not_here_is_named() -> None:
    with pytest.raises(PrerequisiteError, match="nobody/nothing-7b"):
        answering_memory(ModelConfig(path="nobody/nothing-7b"), TEXTS, PICTURES, 1)
