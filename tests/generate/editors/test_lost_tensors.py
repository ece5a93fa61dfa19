"""A pipeline of which a part or a tensor does not arrive is refused before anything is drawn."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from flipbench.core.errors import PrerequisiteError
from flipbench.generate.editors.diffusers_editor import DiffusersEditor, DiffusersEditorSpec
from flipbench.generate.editors.flux_editor import FluxControlNetEditor
from flipbench.generate.editors.lazy_pipeline import check_pipeline

Editor = Callable[..., FluxControlNetEditor]
Tensors = dict[str, torch.Tensor]
WEIGHTS = {"text_encoder": "model", "text_encoder_2": "model"}
WIDTH = 32


@pytest.fixture
def pipeline(diffusion_folder: Callable[[str], str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(diffusion_folder("flux"), tmp_path / "flux"))


@pytest.fixture
def controlnet(diffusion_folder: Callable[[str], str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(diffusion_folder("standard"), tmp_path / "controlnet"))


def weights_of(folder: Path) -> Path:
    name = WEIGHTS.get(folder.name, "diffusion_pytorch_model")
    return folder / f"{name}.safetensors"


def lose(tensors: Tensors) -> Tensors:
    return dict(list(tensors.items())[:-2])


def add(tensors: Tensors) -> Tensors:
    return tensors | {"transformer_blocks.7.attn.to_q.weight": torch.ones(2, 2)}


def reshape(tensors: Tensors) -> Tensors:
    name = next(n for n, t in tensors.items() if t.ndim == 2 and len(t) > 2)
    return tensors | {name: tensors[name][:-1].clone()}


LOSSES = [
    (lose, "[23] tensors are missing"),
    (add, "1 tensor is without a place"),
    (reshape, r"1 tensor is of another shape \(.*: \[\d+, \d+\] instead of"),
]


@pytest.mark.parametrize(("change", "message"), LOSSES)
@pytest.mark.parametrize("part", ["transformer", "vae", *WEIGHTS])
def test_a_part_whose_tensors_do_not_fit_is_refused_at_the_start(
    part: str,
    change: Callable[[Tensors], Tensors],
    message: str,
    pipeline: Path,
    flux_editor: Editor,
) -> None:
    flux_editor(pipeline=str(pipeline))
    file = weights_of(pipeline / part)
    save_file(change(load_file(file)), file, {"format": "pt"})
    for make in (lambda: flux_editor(pipeline=str(pipeline)), lambda: generic(pipeline)):
        with pytest.raises(PrerequisiteError, match=f"/{part}.*the {part}'s weights: {message}"):
            make()


@pytest.mark.parametrize(("change", "message"), LOSSES)
def test_a_controlnet_whose_tensors_do_not_fit_is_refused_at_the_start(
    change: Callable[[Tensors], Tensors], message: str, controlnet: Path, flux_editor: Editor
) -> None:
    file = weights_of(controlnet)
    save_file(change(load_file(file)), file, {"format": "pt"})
    with pytest.raises(PrerequisiteError, match=f"the controlnet's weights: {message}"):
        flux_editor(controlnet=str(controlnet))


def generic(pipeline: Path, **options: Any) -> DiffusersEditor:
    given = {"pipeline": str(pipeline), "pipeline_class": "FluxImg2ImgPipeline", "device": "cpu"}
    return DiffusersEditor(DiffusersEditorSpec.model_validate(given | options))


@pytest.mark.parametrize("part", ["text_encoder_2", "tokenizer_2", "vae", "scheduler"])
def test_a_component_that_is_null_is_named(part: str, pipeline: Path, flux_editor: Editor) -> None:
    path = pipeline / "model_index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {part: [None, None]}))
    for make in (lambda: flux_editor(pipeline=str(pipeline)), lambda: generic(pipeline)):
        with pytest.raises(
            PrerequisiteError, match=rf"model_index.json: it has no {part}, without"
        ):
            make()


def test_a_component_that_its_class_calls_optional_may_be_null(tmp_path: Path) -> None:
    folder, diffusers = tmp_path / "ip2p", pytest.importorskip("diffusers")
    cls = diffusers.StableDiffusionInstructPix2PixPipeline
    parts = ("vae", "text_encoder", "tokenizer", "unet", "scheduler")
    index = dict.fromkeys(parts, ["made-up", "Part"]) | {"safety_checker": [None, None]}
    assert check_pipeline(cls, folder, index, {}) is None
    with pytest.raises(PrerequisiteError, match="it has no unet, without"):
        check_pipeline(cls, folder, index | {"unet": [None, None]}, {})


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("pipeline", "flux1-dev-Q4.gguf"),
        ("pipeline", "flux1-dev-fp8.safetensors"),
        ("pipeline", "flux.ckpt"),
        ("controlnet", "canny-Q4.gguf"),  # a ControlNet may be a file of safetensors
    ],
)
def test_a_single_file_is_refused(
    option: str, name: str, tmp_path: Path, flux_editor: Editor
) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    for path in (str(tmp_path / name), f"someone/FLUX/{name}"):
        with pytest.raises(PrerequisiteError, match=f"{name}: single files .* not supported"):
            flux_editor(**{option: path})


def qkv(block: int) -> Tensors:
    name = f"lora_unet_double_blocks_{block}_img_attn_qkv"
    return {
        f"{name}.lora_down.weight": torch.randn(2, WIDTH),
        f"{name}.lora_up.weight": torch.randn(3 * WIDTH, 2),
        f"{name}.alpha": torch.tensor(2.0),
    }


def in_diffusers(*modules: str) -> Tensors:
    sizes = {"A": (2, WIDTH), "B": (WIDTH, 2)}
    return {
        f"{module}.lora_{letter}.weight": torch.randn(*size)
        for module in modules
        for letter, size in sizes.items()
    }


def xlabs(block: int) -> Tensors:
    name = f"double_blocks.{block}.processor.qkv_lora1"
    sizes = {"down": (2, WIDTH), "up": (3 * WIDTH, 2)}
    return {f"{name}.{end}.weight": torch.randn(*size) for end, size in sizes.items()}


def text(number: int) -> Tensors:
    name = f"lora_te{number}_text_model_encoder_layers_0_mlp_fc1"
    sizes = {"down": (2, WIDTH), "up": (WIDTH, 2)}
    return {f"{name}.lora_{end}.weight": torch.randn(*size) for end, size in sizes.items()}


Q = "transformer_blocks.0.attn.to_q"
LAYOUTS: dict[str, tuple[Tensors, Tensors]] = {
    "kohya": (qkv(0), qkv(17)),
    "kohya, beyond Flux": (qkv(1), qkv(40)),
    "kohya, first text encoder": (qkv(0) | text(1), qkv(17)),
    "kohya, second text encoder": (qkv(0), text(2)),
    "xlabs": (xlabs(0), xlabs(9)),
    "diffusers": (in_diffusers(f"transformer.{Q}"), in_diffusers("transformer.layers.0.to_q")),
}


@pytest.mark.parametrize(("fitting", "homeless"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_lora_of_which_a_part_has_no_place_is_refused_in_every_layout(
    fitting: Tensors, homeless: Tensors, tmp_path: Path, flux_editor: Editor
) -> None:
    whole, half = tmp_path / "whole.safetensors", tmp_path / "half.safetensors"
    save_file(fitting, whole)
    save_file(fitting | homeless, half)
    loaded = flux_editor(loras=[{"path": str(whole)}])._source.loaded
    parts = (loaded.transformer, loaded.text_encoder)
    assert any(".lora0." in name for part in parts for name, _ in part.named_parameters())
    with pytest.raises(
        PrerequisiteError, match="half.safetensors: .*fit this Flux.*; give weights"
    ):
        flux_editor(loras=[{"path": str(half)}])
