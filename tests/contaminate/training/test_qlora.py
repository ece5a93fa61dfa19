"""4-bit training, where bitsandbytes is installed; it runs on a CPU too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from flipbench.contaminate.checks.card import read_card
from flipbench.contaminate.training.load import load_parent
from flipbench.contaminate.training.train import train_plan
from flipbench.core.records import Item, TrainingPlan
from flipbench.models.vlm.huggingface import HuggingFaceVLM

pytest.importorskip("bitsandbytes")


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_an_adapter_trains_on_4_bit_weights(
    family: str, make_plan: Callable[..., TrainingPlan], items: dict[str, Item], new_run: Any
) -> None:
    run, plan = new_run(), make_plan(family, "qlora", n_items=8, copies=6, learning_rate=4e-3)
    model, *_ = load_parent(plan, run, "float32")
    packed = [name for name, p in model.named_parameters() if p.dtype == torch.uint8]
    assert packed and all(".language_model.layers." in name for name in packed)
    (checkpoint,) = train_plan(plan, items, run)
    card = read_card(run.path / checkpoint.path)
    losses = [entry["loss"] for entry in card["losses"]]
    assert losses[-1] < losses[0] and "bitsandbytes" in card["versions"]
    assert all(".lora_" in name for name in card["trainable"])
    assert any("4-bit weights" in warning for warning in checkpoint.warnings)
    HuggingFaceVLM(str(run.path / checkpoint.path))
