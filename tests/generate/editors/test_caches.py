"""The cache of diffusers, why it is refused with a ControlNet, and texts of other runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from flipbench.core.errors import ConfigError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.generate.editors.controlnet_editor import ControlNetEditor, ControlNetEditorSpec
from flipbench.generate.editors.diffusers_editor import DiffusersEditor, DiffusersEditorSpec
from flipbench.generate.editors.flux_editor import FluxControlNetEditor
from flipbench.generate.editors.sizes import SizeRule
from tests.fixtures.drawings import furthest

pytestmark = pytest.mark.usefixtures("one_thread")
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


@pytest.mark.parametrize("controlled", [False, True])
def test_what_diffusers_draws_from_the_cache_on_identical_input(
    controlled: bool, flux_editor: Callable[..., FluxControlNetEditor]
) -> None:
    """The second of two identical passes, in which all blocks but the first are skipped."""
    from diffusers import FirstBlockCacheConfig

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
        transformer.enable_cache(FirstBlockCacheConfig(threshold=0.05))
        with transformer.cache_context("cond"):
            transformer(**given)
            (cached,) = transformer(**given)
        transformer.disable_cache()
    error = float((cached - expected).abs().max() / expected.abs().max())
    assert (error > 1e-3) == controlled, "if ControlNets work by now, they need not be refused"


def test_texts_that_another_run_encoded_are_read(
    tmp_path: Path,
    flux_editor: Callable[..., FluxControlNetEditor],
    candidate: Build,
    pictures: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, folder = candidate("a"), tmp_path / "texts"

    def draw(**options: Any) -> Any:
        editor = flux_editor(**options)
        assert editor.settings == flux_editor(**options | {"text_embeddings": None}).settings
        return editor([task], [1], pictures)[0]

    expected = draw()
    assert furthest(draw(text_embeddings=folder), expected) == 0
    assert len(files := sorted(folder.iterdir())) == 2  # the caption and the negative prompt
    monkeypatch.setattr(diffusers.FluxPipeline, "encode_prompt", None)
    assert furthest(draw(text_embeddings=folder), expected) == 0
    with pytest.raises(TypeError, match="not callable"):
        draw(text_embeddings=folder, flux={"max_text_tokens": 16})
    files[0].write_bytes(files[0].read_bytes()[:-1] + b"x")
    with pytest.raises(TypeError, match="not callable"):
        draw(text_embeddings=folder)
