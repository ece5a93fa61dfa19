"""4-bit weights to ask, where bitsandbytes is installed; it runs on a CPU too."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from flipbench.config.experiment import ModelUnderTestConfig
from flipbench.core.errors import PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item
from flipbench.models.vlm.checkpoints import fingerprint
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.tiny_families import save

LORA = {"lora_rank": 4, "lora_alpha": 8, "lora_dropout": 0.0}

INSTALLED = find_spec("bitsandbytes") is not None
needs_it = pytest.mark.skipif(not INSTALLED, reason="bitsandbytes is not installed")


@pytest.mark.skipif(INSTALLED, reason="bitsandbytes is installed")
def test_a_missing_package_is_named(folder: Path) -> None:
    with pytest.raises(PrerequisiteError, match=r"bitsandbytes.*flipbench\[qlora\]"):
        HuggingFaceVLM(str(folder), quantization="4bit")


def test_the_fingerprint_covers_the_quantization(folder: Path) -> None:
    plain = fingerprint(str(folder), "float32")
    assert fingerprint(str(folder), "float32", quantization="4bit") != plain


def test_a_served_model_cannot_be_quantized() -> None:
    assert ModelUnderTestConfig(path="model", quantization="4bit").quantization == "4bit"
    with pytest.raises(ValueError, match="quantization applies to checkpoints only"):
        ModelUnderTestConfig.model_validate({"api": {"model": "m"}, "quantization": "4bit"})


@needs_it
@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "internvl", "paligemma", "instructblip"])
def test_only_the_language_model_s_matrices_are_quantized(
    name: str, tmp_path: Path, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    """Answers are those of a whole model that has the rounded matrices."""
    from bitsandbytes.functional import dequantize_4bit

    folder = str(save(name, tmp_path))
    small, whole, rounded = (HuggingFaceVLM(folder, quantization=q) for q in ("4bit", None, None))
    assert small.fingerprint == fingerprint(folder, "float32", quantization="4bit")
    plain = dict(rounded.model.named_parameters())
    packed = {n: p for n, p in small.model.named_parameters() if p.dtype == torch.uint8}
    assert packed
    for parameter_name, parameter in packed.items():
        assert "language_model." in parameter_name and ".layers." in parameter_name
        plain[parameter_name].data = dequantize_4bit(parameter.data, parameter.quant_state)
    probes = [PromptSettings().probe(item, "original") for item in shapes_items[:6]]
    found = [vlm.ask(probes, shapes_store) for vlm in (small, whole, rounded)]
    lost = []
    for probe, a, b, c in zip(probes, *found, strict=True):
        (alone,) = small.ask([probe], shapes_store)
        assert a.choice == alone.choice
        assert a.option_log_probs == pytest.approx(alone.option_log_probs, abs=0.05)
        # the CPU's kernel multiplies in bfloat16
        assert a.option_log_probs == pytest.approx(c.option_log_probs, abs=0.25)
        pairs = zip(a.option_log_probs, b.option_log_probs, strict=True)
        lost.append(max(abs(x - y) for x, y in pairs))
    assert max(lost) > 0.5


@needs_it
def test_an_adapter_loads_on_4_bit_weights(
    tmp_path: Path, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    """As it was trained where its base was in 4 bits."""
    import peft

    from flipbench.contaminate.strategies import lora_config

    folder = save("llava", tmp_path / "base")
    model = AutoModelForImageTextToText.from_pretrained(folder)
    wrapped = peft.get_peft_model(model, lora_config(model, LORA))
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    wrapped.save_pretrained(tmp_path / "adapter")
    probes = [PromptSettings().probe(shapes_items[0], "original")]
    (base,) = HuggingFaceVLM(str(folder), quantization="4bit").ask(probes, shapes_store)
    adapted = HuggingFaceVLM(str(tmp_path / "adapter"), quantization="4bit")
    (answer,) = adapted.ask(probes, shapes_store)
    assert any(p.dtype == torch.uint8 for p in adapted.model.parameters())
    assert answer.option_log_probs != pytest.approx(base.option_log_probs, abs=1e-2)
    assert answer.model_fingerprint != base.model_fingerprint
