"""The formulas against one step of the real code on fake tensors: within 15 %."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText

from benchmarks.memory.estimates import Networks, draw_step, published
from benchmarks.random_qwen2_vl import config_of
from flipbench.contaminate.strategies import lora_config, modules_of, select_parameters
from flipbench.generate.editors.flux_editor import FluxSettings
from flipbench.models.estimates import FluxShape, Phase, VLMShape
from flipbench.models.vlm.checkpoints import resolve_path
from tests.fixtures.footprint import Footprint

WITHIN = 0.15
LORA = {"lora_rank": 8, "lora_alpha": 16, "lora_dropout": 0.05}
N_IMAGE = {"qwen2_vl": 784, "llava": 576}  # tokens
N_TEXT = 60


def llava(layers: int, width: int) -> Any:
    """Return the configuration of a LLaVA with CLIP's tower for 336 pixels."""
    config = copy.deepcopy(AutoConfig.from_pretrained(resolve_path("shapes:llava")))
    heads = width // 128
    text = {"vocab_size": 32_064, "hidden_size": width, "num_hidden_layers": layers}
    text |= {"intermediate_size": round(width * 11_008 / 4_096), "head_dim": 128}
    text |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8}
    vision |= {"num_attention_heads": 16, "patch_size": 14, "image_size": 336}
    for part, values in ((config.text_config, text), (config.vision_config, vision)):
        for name, value in values.items():
            setattr(part, name, value)
    return config


def untrained(family: str, layers: int, width: int) -> Any:
    """Return a model on the meta device, in float32."""
    tiny = AutoConfig.from_pretrained(resolve_path("shapes:qwen2_vl"))
    config = llava(layers, width) if family == "llava" else config_of(tiny, layers, width)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    model.tie_weights()
    return model.to(torch.float32)


def questions(config: Any, family: str, n_rows: int) -> dict[str, torch.Tensor]:
    """Return a batch of questions about one image each."""
    n_image = N_IMAGE[family]
    ids = torch.full((n_rows, n_image + N_TEXT), 11)
    ids[:, :n_image] = config.image_token_id
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if family == "llava":
        return inputs | {"pixel_values": torch.zeros(n_rows, 3, 336, 336)}
    return inputs | {
        "pixel_values": torch.zeros(n_rows * 4 * n_image, 1176),
        "image_grid_thw": torch.tensor([[1, 56, 56]] * n_rows),
        "mm_token_type_ids": (ids == config.image_token_id).int(),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "train", "n_rows", "checkpointed"),
    [
        ("qwen2_vl", "lora", 1, False),
        ("qwen2_vl", "all", 2, False),
        ("qwen2_vl", "all", 2, True),
        ("llava", "lora", 2, False),
        ("llava", "llm", 1, False),
        ("llava", "all", 4, False),
    ],
)
def test_a_training_step(family: str, train: str, n_rows: int, checkpointed: bool) -> None:
    model, footprint, n_trainable = untrained(family, 8, 1024), Footprint(), dict[str, int]()
    shape, modules = VLMShape.of(model), modules_of(model)
    inputs = questions(model.config, family, n_rows)
    select_parameters(model, train)
    linear, is_adapter = [], train == "lora"
    if is_adapter:
        peft = pytest.importorskip("peft")
        with torch.device("meta"):
            model = peft.get_peft_model(model, lora_config(model, LORA))
        linear = [m for m in model.modules() if isinstance(m, peft.tuners.lora.Linear)]
    if checkpointed:
        model.activation_checkpointing_enable()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            part = "adapter" if is_adapter else modules.part_of(name)
            n_trainable[part] = n_trainable.get(part, 0) + weight.numel()
    footprint.load(model)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    with footprint:
        optimizer = torch.optim.AdamW(trained, fused=True)
        for weight in trained:
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        optimizer.zero_grad()
    inputs = footprint.without_values(inputs)
    model.train()

    def step() -> None:
        model(**inputs, labels=inputs["input_ids"], use_cache=False).loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()

    estimate = shape.training_bytes(
        n_trainable,
        inputs["input_ids"].numel(),
        shape.n_patches(inputs),
        dtype="float32",
        master=4,
        checkpointed=checkpointed,
        adapter_inputs=sum(module.in_features for module in linear),
    )
    assert estimate == pytest.approx(footprint.peak_of(step), rel=WITHIN)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "n_rows"), [("qwen2_vl", 2), ("llava", 2), ("llava", 8)])
def test_questions_and_their_operations(family: str, n_rows: int) -> None:
    model, footprint = untrained(family, 8, 1024).eval(), Footprint()
    shape, inputs = VLMShape.of(model), questions(model.config, family, n_rows)
    n_tokens, n_patches = inputs["input_ids"].numel(), shape.n_patches(inputs)
    weights = footprint.load(model) and footprint.now
    inputs = footprint.without_values(inputs)

    @torch.no_grad()
    def read() -> None:
        model(**inputs, use_cache=True, logits_to_keep=1)

    on_top = footprint.peak_of(read) - weights
    assert weights == pytest.approx(4 * shape.n_weights, rel=0.01)
    estimate = shape.answering_bytes(n_rows, n_tokens, n_patches, 1, "float32")
    assert estimate == pytest.approx(on_top, rel=WITHIN)
    flops = shape.answering_flops(n_tokens // n_rows, n_patches // n_rows, 1)
    assert n_rows * flops == pytest.approx(footprint.flops, rel=WITHIN)
    longer = shape.answering_flops(n_tokens // n_rows, n_patches // n_rows, 11)
    head = shape.vocabulary * shape.language.hidden
    assert longer == flops + 20 * (shape.language.n_weights + head)


def phases(size: tuple[int, int] = (512, 512), **changes: Any) -> dict[str, Phase]:
    settings: dict[str, Any] = {
        **{"batch_size": 1, "dtype": "bfloat16", "offload": "none", "text_tokens": 512},
        **{"n_plain": 5, "n_guided": 20, "guided_control": True},
    }
    return {phase.name: phase for phase in FluxShape().phases(size, **settings | changes)}


@pytest.mark.slow
@pytest.mark.parametrize("size", [(512, 512), (1024, 768)])
def test_the_reference_s_images(size: tuple[int, int]) -> None:
    networks, footprint = published(), Footprint()
    for network in vars(networks).values():
        footprint.load(nn.Module.to(network, torch.bfloat16).eval())
    weights = footprint.now

    def measured(run: Callable[[], Any]) -> tuple[int, int]:
        before = footprint.flops
        with torch.no_grad():
            return footprint.peak_of(run) - weights, footprint.flops - before

    def empty(*shape: int) -> torch.Tensor:
        return footprint.empty(*shape, dtype=torch.bfloat16)

    estimates = phases(size, n_plain=0, n_guided=1)
    draw = lambda: draw_step(networks, FluxSettings(), size, 1, empty, guided=True)  # noqa: E731
    text = lambda: networks.t5(torch.ones(1, 512, dtype=torch.long))  # noqa: E731
    latents = empty(1, 16, size[1] // 8, size[0] // 8)
    runs = {"caption as embeddings": text, "denoising": draw}
    for name, run in (runs | {"decoding": lambda: networks.vae.decode(latents)}).items():
        memory, flops = measured(run)
        assert estimates[name].weights == pytest.approx(weights, rel=0.001)
        on_top = estimates[name].memory - estimates[name].weights
        assert on_top == pytest.approx(memory, rel=WITHIN)
        assert estimates[name].flops == pytest.approx(flops, rel=WITHIN)


def test_operations_follow_the_steps_and_the_guidance() -> None:
    plain, guided = (
        phases(n_plain=25, n_guided=0)["denoising"].flops,
        phases(n_plain=5, n_guided=20)["denoising"].flops,
    )
    assert guided == 45 * plain // 25, "25 steps, 20 of them twice"
    assert plain < phases(guided_control=False)["denoising"].flops < guided
    four = phases(batch_size=4)["denoising"]
    assert four.flops == guided and four.memory > phases()["denoising"].memory


def test_offloading_leaves_less_on_the_device() -> None:
    whole, texts_away, one_by_one = (phases(offload=o) for o in ("none", "text", "model"))
    for name, phase in whole.items():
        assert one_by_one[name].weights < texts_away[name].weights < phase.weights
        on_top = phase.memory - phase.weights
        assert texts_away[name].memory - texts_away[name].weights == on_top


def test_networks_are_those_of_the_reference() -> None:
    sizes = {
        name: sum(weight.numel() for weight in network.parameters())
        for name, network in vars(published()).items()
    }
    names = {"clip": "text_encoder", "t5": "text_encoder_2"}
    assert {names.get(name, name): n for name, n in sizes.items()} == FluxShape().n_weights
    assert isinstance(published(), Networks)
