"""How the reference's editor loads, saves memory, and fails."""

from __future__ import annotations

import json
import logging
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from flipbench.core.errors import ConfigError, DataError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.generate.editors.batching import Task
from flipbench.generate.editors.flux_editor import FluxControlNetEditor, FluxEditorSpec
from flipbench.generate.editors.sizes import SizeRule
from flipbench.models.protocols import Drawing, release
from tests.fixtures.drawings import furthest

Build = Callable[..., Candidate]
Editor = Callable[..., FluxControlNetEditor]


class Instead:
    """A pipeline that calls ``change`` with the real one and the call's arguments."""

    def __init__(self, pipeline: Any, change: Callable[..., Any]) -> None:
        self._pipeline, self._change = pipeline, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def __call__(self, **arguments: Any) -> Any:
        return self._change(self._pipeline, **arguments)


def test_each_caption_is_encoded_once(
    flux_editor: Editor,
    candidate: Build,
    pictures: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draws, encoded = flux_editor(), []
    encode = draws._texts._encoder.encode_prompt

    def count(prompt: list[str], **options: Any) -> Any:
        encoded.extend(prompt)
        return encode(prompt=prompt, **options)

    monkeypatch.setattr(draws._texts._encoder, "encode_prompt", count)
    tasks = [candidate("a"), candidate("b", text="a dog"), candidate("c")]
    draws(tasks, [1, 2, 3], pictures)
    draws(tasks[:2], [4, 5], pictures)
    assert sorted(encoded) == ["", "a dog", "a red square"]
    assert draws._pipeline.text_encoder_2 is None  # so the pipeline cannot encode again


def test_text_encoders_stay_in_main_memory(
    flux_editor: Editor,
    candidate: Build,
    pictures: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = "flipbench.generate.editors.lazy_pipeline.resolve_device"
    expected = flux_editor()([candidate("a")], [1], pictures)
    monkeypatch.setattr(target, lambda device, offload: "cpu")
    draws, moves = flux_editor(offload="text"), []
    monkeypatch.setattr(draws._texts._encoder, "to", moves.append)
    assert furthest(*expected, *draws([candidate("a")], [1], pictures)) == 0
    assert moves == ["cpu", "cpu"]  # there and back, were there a GPU
    draws([candidate("a")], [1], pictures)
    assert len(moves) == 2


def test_encoders_and_transformer_are_never_on_the_gpu_together(
    flux_editor: Editor,
    candidate: Build,
    pictures: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = "flipbench.generate.editors.lazy_pipeline.resolve_device"
    expected = flux_editor()([candidate("b", text="a dog")], [1], pictures)
    monkeypatch.setattr(target, lambda device, offload: "cpu")
    draws = flux_editor(offload="text")
    moves: list[tuple[str, str]] = []
    draws([candidate("a")], [1], pictures)
    monkeypatch.setattr(draws._pipeline, "to", lambda device: moves.append(("pipeline", device)))
    monkeypatch.setattr(draws._texts._encoder, "to", lambda device: moves.append(("texts", device)))
    draws._source.device = "gpu"
    draws._texts._device = "cpu"
    draws._encode([Task("a dog", Image.new("RGB", (8, 8)), 1)])
    draws._encode([Task("a dog", Image.new("RGB", (8, 8)), 1)])
    parts = [("pipeline", "cpu"), ("texts", "cpu"), ("texts", "cpu"), ("pipeline", "gpu")]
    assert moves == parts, "away before new texts are encoded, back after it, and only then"
    draws._source.device = "cpu"
    assert furthest(*expected, *draws([candidate("b", text="a dog")], [1], pictures)) == 0


def test_freed_weights_are_loaded_again(
    flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    draws = flux_editor()
    expected = draws([candidate("a")], [1], pictures)
    held = [weakref.ref(part) for part in (draws._pipeline.transformer, draws._pipeline.vae)]
    held.append(weakref.ref(draws._texts._encoder.text_encoder_2))
    release(draws)
    assert [part() for part in held] == [None] * 3
    assert furthest(*expected, *draws([candidate("a")], [1], pictures)) == 0


def test_the_memory_of_the_weights_is_known_beforehand(
    flux_editor: Editor, diffusion_folder: Callable[[str], str]
) -> None:
    pipeline = flux_editor()._source.loaded
    parts = {
        name: sum(w.numel() for w in getattr(pipeline, name).parameters())
        for name in ("transformer", "controlnet", "vae", "text_encoder", "text_encoder_2")
    }
    texts = parts["text_encoder"] + parts["text_encoder_2"]
    rest = sum(parts.values()) - texts
    for offload, n_weights in (
        ("none", texts + rest),
        ("text", max(texts, rest)),
        ("model", max(parts.values())),
    ):
        folders = {"pipeline": diffusion_folder("flux"), "controlnet": diffusion_folder("standard")}
        spec = FluxEditorSpec.model_validate({**folders, "offload": offload, "dtype": "bfloat16"})
        assert spec.memory() == 2 * n_weights
    alone = FluxEditorSpec(pipeline=diffusion_folder("flux"), controlnet="nobody/nothing")
    assert alone.memory() is None


def test_offloading_draws_the_same(
    flux_editor: Editor,
    candidate: Build,
    pictures: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hooks that move weights about leave guidance as it is (here from CPU to CPU)."""
    expected = flux_editor()([candidate("a")], [1], pictures)
    target = "flipbench.generate.editors.lazy_pipeline.resolve_device"
    monkeypatch.setattr(target, lambda device, offload: "cpu")
    draws = flux_editor(offload="model")
    assert hasattr(draws._pipeline.transformer, "_hf_hook")
    assert furthest(*expected, *draws([candidate("a")], [1], pictures)) == 0


def test_running_out_of_memory_halves_the_batch(
    flux_editor: Editor,
    candidate: Build,
    pictures: ImageStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks, seeds = [candidate(n) for n in "abcde"], [1, 2, 3, 4, 5]
    expected = flux_editor()(tasks, seeds, pictures)
    draws, tried = flux_editor(batch_size=4), []

    def once(pipeline: Any, **arguments: Any) -> Any:
        tried.append(len(arguments["generator"]))
        for generator in arguments["generator"] if len(tried) == 1 else []:
            torch.randn(3, generator=generator)  # a part of the work was done
        if len(tried) == 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return pipeline(**arguments)

    draws._pipeline = Instead(draws._pipeline, once)
    with caplog.at_level(logging.WARNING):
        got = draws(tasks, seeds, pictures)
    assert tried == [4, 2, 2, 1]
    assert "continuing with 2 at a time" in caplog.text
    assert max(furthest(a, b) for a, b in zip(expected, got, strict=True)) <= 1
    draws(tasks[:4], seeds[:4], pictures)
    assert tried[4:] == [2, 2]  # it has learned


def test_an_image_that_never_fits_fails_alone(
    flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    draws = flux_editor(batch_size=2)

    def large_fails(pipeline: Any, **arguments: Any) -> Any:
        if arguments["width"] > 30:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return pipeline(**arguments)

    draws._pipeline = Instead(draws._pipeline, large_fails)
    large, small = draws([candidate("l", (40, 40)), candidate("s")], [1, 2], pictures)
    assert isinstance(large, DataError)
    assert "does not fit into memory" in str(large)
    assert isinstance(small, Drawing)


def test_a_refused_image_is_a_failure_not_a_black_image(
    flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    draws = flux_editor(batch_size=2)

    def flagged(pipeline: Any, **arguments: Any) -> Any:
        black = Image.new("RGB", (arguments["width"], arguments["height"]))
        return SimpleNamespace(images=[black, black], nsfw_content_detected=[True, False])

    draws._pipeline = Instead(draws._pipeline, flagged)
    refused, fine = draws([candidate("a"), candidate("b")], [1, 2], pictures)
    assert isinstance(refused, ServiceError)
    assert "safety checker" in str(refused)
    assert isinstance(fine, Drawing)


def test_an_image_over_the_limit_fails_alone(
    flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    draws = flux_editor(sizes=SizeRule(min_edge=8, max_pixels=1000))
    large, small = draws([candidate("l", (40, 40)), candidate("s")], [1, 2], pictures)
    assert isinstance(large, DataError)
    assert "made-up l" in str(large)
    assert isinstance(small, Drawing)


def test_half_precision_and_compilation(
    flux_editor: Editor,
    candidate: Build,
    pictures: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from diffusers import FluxTransformer2DModel

    compiled: list[dict[str, Any]] = []
    monkeypatch.setattr(
        FluxTransformer2DModel, "compile_repeated_blocks", lambda self, **how: compiled.append(how)
    )
    (drawing,) = flux_editor(dtype="bfloat16", compile=True)([candidate("a")], [1], pictures)
    assert isinstance(drawing, Drawing)
    assert compiled == [{"dynamic": True}]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda p: p.mkdir(), "not a diffusers pipeline"),
        (lambda p: None, "neither a folder nor a pipeline that can"),
        (lambda p: _index(p, "{"), "not a diffusers pipeline"),
        (lambda p: _index(p, '{"_class_name": "QwenImageEditPipeline"}'), "not a Flux pipeline"),
        (
            lambda p: _index(p, '{"_class_name": "FluxPipeline", "vae": ["diffusers", "X"]}'),
            "names 'vae', which is missing",
        ),
    ],
    ids=["empty", "missing", "broken", "another", "hollow"],
)
def test_a_folder_without_a_pipeline_is_refused(
    prepare: Callable[[Path], None],
    message: str,
    tmp_path: Path,
    flux_editor: Editor,
) -> None:
    prepare(tmp_path / "folder")
    with pytest.raises(PrerequisiteError, match=message):
        flux_editor(pipeline=str(tmp_path / "folder"))


def _index(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "model_index.json").write_text(text)


def test_a_missing_controlnet_is_refused(flux_editor: Editor, tmp_path: Path) -> None:
    for controlnet, message in (
        (None, "does not include a ControlNet"),
        (str(tmp_path), "not a model"),
        (str(tmp_path / "gone"), "neither a folder nor a model that can"),
    ):
        with pytest.raises(PrerequisiteError, match=message):
            flux_editor(controlnet=controlnet)


def test_a_pipeline_can_contain_its_controlnet(
    flux_editor: Editor,
    candidate: Build,
    pictures: ImageStore,
    tmp_path: Path,
    diffusion_folder: Callable[[str], str],
) -> None:
    from diffusers import FluxControlNetModel, FluxControlNetPipeline

    net = FluxControlNetModel.from_pretrained(diffusion_folder("standard"))
    whole = FluxControlNetPipeline.from_pretrained(diffusion_folder("flux"), controlnet=net)
    whole.save_pretrained(tmp_path / "whole")
    theirs = flux_editor()
    own = flux_editor(pipeline=str(tmp_path / "whole"), controlnet=None)
    expected = theirs([candidate("a")], [1], pictures)
    assert furthest(*expected, *own([candidate("a")], [1], pictures)) == 0


def test_offloading_without_a_gpu_is_refused(flux_editor: Editor) -> None:
    with pytest.raises(ConfigError, match="there is no GPU"):
        flux_editor(offload="model")


def test_a_scheduler_that_does_not_shift_has_no_reference_schedule(
    flux_editor: Editor,
    diffusion_folder: Callable[[str], str],
    tmp_path: Path,
) -> None:
    shutil.copytree(diffusion_folder("flux"), tmp_path / "schnell")
    file = tmp_path / "schnell" / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use_dynamic_shifting": False}))
    with pytest.raises(ConfigError, match="set schedule to 'pipeline'"):
        flux_editor(pipeline=str(tmp_path / "schnell"))
    flux_editor(pipeline=str(tmp_path / "schnell"), flux={"schedule": "pipeline"})
