"""The parts of many families, found on models without weights."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from flipbench.contaminate.strategies import MODULES, lora_pattern, modules_of, select_parameters
from flipbench.core.errors import ConfigError

IN_TABLE = sorted(MODULES)
FOUND = ["idefics3", "smolvlm", "gemma3", "qwen3_vl", "mllama", "paligemma", "glm4v", "llama4"]


def skeleton(model_type: str) -> Any:
    config = CONFIG_MAPPING[model_type]()
    text = config.get_text_config()
    text.num_hidden_layers = 2
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:2]
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [*IN_TABLE, *FOUND])
def test_language_model_projector_and_vision_tower_are_disjoint(model_type: str) -> None:
    model = skeleton(model_type)
    modules = modules_of(model)
    names = [name for name, _ in model.named_parameters()]
    language = {n for n in names if n.startswith(modules.language)}
    projector = {n for n in names if n.startswith(modules.projector)}
    rest = set(names) - language - projector
    decoder = {id(p) for p in model.get_decoder().parameters()}
    head = {id(p) for p in model.get_output_embeddings().parameters()}
    assert language == {n for n, p in model.named_parameters() if id(p) in decoder | head}
    assert projector and not projector & language
    assert rest and all("vision" in name or "visual" in name for name in rest)
    assert set(select_parameters(model, "llm+projector")) == language | projector
    pattern = lora_pattern(model, {})
    linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    hit = {n for n in linear if re.fullmatch(pattern, n)}
    assert hit and not any("vision" in n or "visual" in n or "lm_head" in n for n in hit)
    assert all(any(p.startswith(n) for p in language) for n in hit)


def test_an_unknown_projector_is_reported() -> None:
    model = skeleton("ovis2")
    assert modules_of(model).projector == ()
    assert select_parameters(model, "llm")
    with pytest.raises(ConfigError, match="no projector is known for model type 'ovis2'"):
        select_parameters(model, "llm+projector")


def test_lora_can_be_limited_to_chosen_layers() -> None:
    pattern = lora_pattern(
        skeleton("qwen2_5_vl"), {"lora_layers": [1], "lora_targets": ["q_proj", "v_proj"]}
    )
    hit = [f"model.language_model.layers.1.self_attn.{n}_proj" for n in "qv"]
    assert all(re.fullmatch(pattern, name) for name in hit)
    for name in ("layers.0.self_attn.q_proj", "layers.11.self_attn.q_proj", "layers.1.mlp.up_proj"):
        assert not re.fullmatch(pattern, f"model.language_model.{name}")
    assert not re.fullmatch(pattern, "model.visual.blocks.layers.1.self_attn.q_proj")
