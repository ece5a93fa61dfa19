"""Caches of diffusers, which of them are refused with a ControlNet, and other ways to be fast."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from flipbench.core.errors import ConfigError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.generate.editors.caches import QUANTIZERS
from flipbench.generate.editors.controlnet_editor import ControlNetEditor, ControlNetEditorSpec
from flipbench.generate.editors.diffusers_editor import DiffusersEditor, DiffusersEditorSpec
from flipbench.generate.editors.flux_editor import FluxControlNetEditor
from flipbench.generate.editors.sizes import SizeRule
from tests.fixtures.drawings import furthest

Build = Callable[..., Candidate]
CACHE = {"kind": "first-block", "threshold": 0.05}


@pytest.fixture
def inpaint(diffusion_folder: Callable[[str], str]) -> Callable[..., DiffusersEditor]:
    def make(**options: Any) -> DiffusersEditor:
        given: dict[str, Any] = {"pipeline": diffusion_folder("qwen"), "device": "cpu"}
        given |= {"dtype": "float32", "sizes": SizeRule(min_edge=8)}
        given |= {"pipeline_class": "QwenImageInpaintPipeline", "mask": "whole"}
        given["arguments"] = {"num_inference_steps": 8, "true_cfg_scale": 2.0, "strength": 1.0}
        return DiffusersEditor(DiffusersEditorSpec(**(given | options)))

    return make


def test_a_cache_that_skips_nothing_changes_nothing(
    inpaint: Callable[..., DiffusersEditor], candidate: Build, pictures: ImageStore
) -> None:
    tasks = [candidate("a"), candidate("b")]
    plain = inpaint()
    expected = plain(tasks, [1, 2], pictures)
    careful, bold = (
        inpaint(cache=CACHE | {"threshold": 1e-9}),
        inpaint(cache=CACHE | {"threshold": 9}),
    )
    for one, other in zip(expected, careful(tasks, [1, 2], pictures), strict=True):
        assert furthest(one, other) == 0
    drawn = bold(tasks, [1, 2], pictures)
    assert furthest(expected[0], drawn[0]) > 0
    assert (
        furthest(drawn[1], *inpaint(cache=CACHE | {"threshold": 9})(tasks[1:], [2], pictures)) == 0
    )
    assert "cache" not in plain.settings
    assert careful.settings["cache"] != bold.settings["cache"]


def test_it_is_refused_with_a_controlnet(
    flux_editor: Callable[..., FluxControlNetEditor], diffusion_folder: Callable[[str], str]
) -> None:
    with pytest.raises(ConfigError, match="first-block is refused with a ControlNet"):
        flux_editor(cache=CACHE)
    given: dict[str, Any] = {"pipeline": diffusion_folder("flux"), "cache": CACHE, "device": "cpu"}
    with pytest.raises(ConfigError, match="first-block is refused with a ControlNet"):
        ControlNetEditor(ControlNetEditorSpec(controlnet=diffusion_folder("standard"), **given))
    given["pipeline"] = diffusion_folder("control")
    with pytest.raises(ConfigError, match="FluxControlPipeline does not tell its passes apart"):
        ControlNetEditor(ControlNetEditorSpec(**given))


def test_it_needs_batches_of_one(inpaint: Callable[..., DiffusersEditor]) -> None:
    with pytest.raises(ConfigError, match="set batch_size to 1"):
        inpaint(cache=CACHE, batch_size=2)


FIRST_BLOCK = ("FirstBlockCacheConfig", {"threshold": 0.05})
TAYLOR = {"cache_interval": 2, "disable_cache_before_step": 2, "max_order": 1}
TAYLORSEER = ("TaylorSeerCacheConfig", TAYLOR | {"taylor_factors_dtype": torch.float32})
LITE = ("TaylorSeerCacheConfig", TAYLORSEER[1] | {"use_lite_mode": True})


@pytest.mark.parametrize(
    ("kind", "controlled", "exact"),
    [
        (FIRST_BLOCK, False, True),
        (FIRST_BLOCK, True, False),
        (TAYLORSEER, True, True),
        (LITE, True, True),
    ],
    ids=["first block", "first block, ControlNet", "TaylorSeer", "TaylorSeer, lite"],
)
def test_what_diffusers_draws_from_the_cache_on_identical_input(
    kind: tuple[str, dict[str, Any]],
    controlled: bool,
    exact: bool,
    flux_editor: Callable[..., FluxControlNetEditor],
) -> None:
    """The fifth of five identical passes, in which blocks are skipped or predicted."""
    import diffusers

    transformer = flux_editor()._pipeline.transformer
    torch.manual_seed(1)
    width = transformer.inner_dim
    given: dict[str, Any] = {
        "hidden_states": torch.randn(1, 6, 16),
        "encoder_hidden_states": torch.randn(1, 8, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([0.5]),
        "guidance": torch.tensor([4.0]),
        "img_ids": torch.zeros(6, 3),
        "txt_ids": torch.zeros(8, 3),
        "return_dict": False,
    }
    if controlled:
        samples = [torch.randn(1, 6, width) for _ in range(3)]
        given["controlnet_block_samples"] = samples[:2]
        given["controlnet_single_block_samples"] = samples[2:]
    with torch.no_grad():
        (expected,) = transformer(**given)
        transformer.enable_cache(getattr(diffusers, kind[0])(**kind[1]))
        with transformer.cache_context("cond"):
            for _ in range(4):
                transformer(**given)
            calls: list[int] = []
            attention = transformer.transformer_blocks[1].attn.to_q
            handle = attention.register_forward_hook(lambda *_: calls.append(1))
            (cached,) = transformer(**given)
            handle.remove()
        transformer.disable_cache()
    assert not calls, "this pass was to be cached"
    error = float((cached - expected).abs().max() / expected.abs().max())
    assert (error < 1e-5) == exact, "if first-block works with ControlNets, it need not be refused"


TAYLORSEER_CACHE = {"kind": "taylorseer", "warmup": 3, "interval": 2}


def test_taylorseer_keeps_both_passes_and_all_images_apart(
    flux_editor: Callable[..., FluxControlNetEditor], candidate: Build, pictures: ImageStore
) -> None:
    flux = {"steps": 9, "true_cfg": 2.0, "true_cfg_start": 1}
    tasks, seeds = [candidate("a"), candidate("b", text="a dog")], [1, 2]
    plain = flux_editor(flux=flux)
    expected = plain(tasks, seeds, pictures)
    never = flux_editor(flux=flux, cache=TAYLORSEER_CACHE | {"warmup": 9})
    for one, other in zip(expected, never(tasks, seeds, pictures), strict=True):
        assert furthest(one, other) == 0
    draws = flux_editor(flux=flux, cache=TAYLORSEER_CACHE)
    contexts: list[str] = []
    transformer = draws._pipeline.transformer
    enter = transformer.cache_context

    def note(name: str) -> Any:
        contexts.append(name)
        return enter(name)

    transformer.cache_context = note
    drawn = draws(tasks, seeds, pictures)
    assert contexts.count("uncond") == 2 * (9 - 1), "each guided step of each image"
    assert furthest(expected[0], drawn[0]) > 0
    assert furthest(drawn[1], *draws(tasks[1:], seeds[1:], pictures)) == 0, "nothing is left over"
    together = flux_editor(flux=flux, cache=TAYLORSEER_CACHE, batch_size=2)
    for one, other in zip(drawn, together(tasks, seeds, pictures), strict=True):
        assert furthest(one, other) <= 1
    assert draws.settings["cache"] == draws.spec.cache.model_dump()  # type: ignore[union-attr]


def test_taylorseer_is_refused_with_controlnets_it_was_not_tried_with(
    diffusion_folder: Callable[[str], str],
) -> None:
    given: dict[str, Any] = {"pipeline": diffusion_folder("flux"), "device": "cpu"}
    given |= {"controlnet": diffusion_folder("standard"), "cache": TAYLORSEER_CACHE}
    with pytest.raises(ConfigError, match="taylorseer has been compared .* use that editor"):
        ControlNetEditor(ControlNetEditorSpec(**given))


def test_another_attention_draws_the_same_and_has_its_own_id(
    flux_editor: Callable[..., FluxControlNetEditor], candidate: Build, pictures: ImageStore
) -> None:
    from diffusers.models import attention_dispatch

    registry: Any = attention_dispatch._AttentionBackendRegistry
    before = registry.get_active_backend()[0]
    expected = flux_editor()([candidate("a")], [1], pictures)
    draws = flux_editor(attention="_native_math")
    assert furthest(*expected, *draws([candidate("a")], [1], pictures)) <= 1
    assert draws.settings["attention"] == "_native_math"
    assert "attention" not in flux_editor().settings
    assert registry.get_active_backend()[0] == before
    with pytest.raises(ConfigError, match="attention: 'flush' is none of .* did you mean 'flash'"):
        flux_editor(attention="flush")
    with pytest.raises(PrerequisiteError, match="attention: .*xformers"):
        flux_editor(attention="xformers")([candidate("a")], [1], pictures)


def test_quantized_weights_have_their_own_id_and_need_torchao(
    flux_editor: Callable[..., FluxControlNetEditor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "torchao", None)
        context.setitem(sys.modules, "torchao.quantization", None)
        with pytest.raises(PrerequisiteError, match="pip install torchao"):
            flux_editor(quantize="int8")
    done: list[Any] = []
    stand_in = ModuleType("torchao.quantization")
    vars(stand_in).update(
        Int8WeightOnlyConfig=lambda: "eight bits", quantize_=lambda *given: done.append(given)
    )
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.quantization", stand_in)
    draws = flux_editor(quantize="int8")
    assert draws.settings["quantize"] == "torchao int8"
    assert done == [], "weights are loaded when the first image is drawn"
    assert [(draws._pipeline.transformer, "eight bits")] == done
    with pytest.raises(ConfigError, match="quantize: does not go with loras"):
        flux_editor(quantize="int8", loras=[{"path": "x.safetensors"}])
    assert flux_editor(compile=True).settings["compile"] is True


def test_weights_that_torchao_cannot_make_here_are_named(
    flux_editor: Callable[..., FluxControlNetEditor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(model: Any, config: Any) -> None:
        raise ImportError("Requires mslk >= 1.0.0")

    stand_in = ModuleType("torchao.quantization")
    vars(stand_in).update(Int4WeightOnlyConfig=lambda: "four bits", quantize_=fails)
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.quantization", stand_in)
    with pytest.raises(PrerequisiteError, match=r"int4 weights here \(Requires mslk .*; try int8"):
        flux_editor(quantize="int4")._pipeline  # noqa: B018


@pytest.mark.parametrize("kind", ["int8", "int8-dynamic"])
def test_torchao_s_own_weights_draw_nearly_the_same(
    kind: str,
    flux_editor: Callable[..., FluxControlNetEditor],
    candidate: Build,
    pictures: ImageStore,
) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    assert all(hasattr(quantization, name) for name in QUANTIZERS.values())
    expected = flux_editor()([candidate("a")], [1], pictures)
    drawn = flux_editor(quantize=kind)([candidate("a")], [1], pictures)
    assert 0 < furthest(*expected, *drawn) < 64
