"""What an image takes in each phase, by the pipeline itself on tensors without values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flipbench.core.errors import PrerequisiteError
from flipbench.generate.editors.flux_editor import FluxEditorSpec
from flipbench.generate.footprint import Phase, flux_phases

Spec = Callable[..., FluxEditorSpec]
SIZE = (48, 32)


@pytest.fixture
def spec(diffusion_folder: Callable[[str], str]) -> Spec:
    """Return a function that configures a tiny Flux with a ControlNet."""

    def make(**changes: Any) -> FluxEditorSpec:
        folders = {"pipeline": diffusion_folder("flux"), "controlnet": diffusion_folder("standard")}
        settings = {"steps": 10, "true_cfg_start": 4, "max_text_tokens": 24}
        settings |= changes.pop("settings", {})
        return FluxEditorSpec.model_validate(
            {**folders, "settings": settings, "dtype": "float32"} | changes
        )

    return make


def test_a_real_image_takes_as_much(
    spec: Spec, flux_editor: Callable[..., Any], candidate: Any, pictures: Any
) -> None:
    from tests.fixtures.allocations import Allocations

    draws = flux_editor()
    draws([candidate("warm", size=SIZE)], [1], pictures)
    loaded = draws._loaded
    parts = [loaded.transformer, loaded.controlnet, loaded.vae]
    allocations = Allocations(*parts, loaded.text_encoder, loaded.text_encoder_2)
    weights = allocations.now
    expected = allocations.peak_of(lambda: draws([candidate("a", size=SIZE)], [1], pictures))
    phases = flux_phases(spec(settings={"steps": 3, "true_cfg_start": 2}), SIZE)
    assert [phase.weights for phase in phases] == [weights] * 3
    assert max(phase.memory for phase in phases) == pytest.approx(expected, rel=0.05)
    assert sum(phase.flops for phase in phases[1:]) == pytest.approx(allocations.flops, rel=0.02)


def by_name(phases: list[Phase]) -> dict[str, Phase]:
    return {phase.name: phase for phase in phases}


def test_operations_follow_the_steps_and_the_guidance(spec: Spec) -> None:
    def flops(**settings: Any) -> int:
        return by_name(flux_phases(spec(settings=settings), SIZE))["denoising"].flops

    ten_plain, ten_guided = flops(true_cfg=1.0), flops()
    one_plain = flops(true_cfg=1.0, steps=2) - flops(true_cfg=1.0, steps=1)
    assert ten_guided == ten_plain + 6 * one_plain, "ten steps, six of them twice"
    assert ten_plain < flops(negative_control=False) < ten_guided


def test_offloading_leaves_less_on_the_device(spec: Spec) -> None:
    whole, texts_away, one_by_one = (
        flux_phases(spec(offload=offload), SIZE) for offload in ("none", "text", "model")
    )
    for all_there, some_away in zip(whole, texts_away, strict=True):
        assert some_away.memory < all_there.memory
        on_top = (some_away.memory - some_away.weights, all_there.memory - all_there.weights)
        assert on_top[0] == on_top[1]
    assert max(p.weights for p in one_by_one) < max(p.weights for p in texts_away)


def test_larger_batches_take_more_memory_and_as_many_operations(spec: Spec) -> None:
    one, three = (by_name(flux_phases(spec(batch_size=n), SIZE)) for n in (1, 3))
    for name in ("denoising", "decoding"):
        assert three[name].memory > one[name].memory
        assert three[name].flops == pytest.approx(one[name].flops, rel=0.05)


def test_a_pipeline_that_is_not_here_is_named() -> None:
    with pytest.raises(PrerequisiteError, match="nobody/nothing: its configuration is not on this"):
        flux_phases(FluxEditorSpec(pipeline="nobody/nothing"), SIZE)
