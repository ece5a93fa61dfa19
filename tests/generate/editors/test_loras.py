"""LoRA weights beside a pipeline's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from flipbench.core.errors import ConfigError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.generate.editors.diffusers_loading import LORA_FILE
from flipbench.generate.editors.flux_editor import FluxControlNetEditor
from flipbench.generate.editors.lazy_pipeline import check_loras
from tests.fixtures.drawings import furthest

Build = Callable[..., Candidate]
Editor = Callable[..., FluxControlNetEditor]
_TARGET = "transformer_blocks.0.attn.to_q"


def lora(file: Path, width: int = 32, part: str = _TARGET, more: str = "") -> str:
    torch.manual_seed(3)
    tensors = {}
    for module in filter(None, (part, more)):
        tensors[f"transformer.{module}.lora_A.weight"] = torch.randn(2, width)
        tensors[f"transformer.{module}.lora_B.weight"] = torch.randn(width, 2)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, file)
    return str(file)


def test_the_weights_change_the_drawing_and_its_id(
    tmp_path: Path, flux_editor: Editor, candidate: Build, pictures: ImageStore
) -> None:
    path, tasks = lora(tmp_path / "one" / LORA_FILE), [candidate("a")]
    plain, added = flux_editor(), flux_editor(loras=[{"path": path, "weight": 2}])
    expected = plain(tasks, [1], pictures)
    assert furthest(*expected, *added(tasks, [1], pictures)) > 2
    off = flux_editor(loras=[{"path": path, "weight": 0}])
    assert furthest(*expected, *off(tasks, [1], pictures)) == 0
    folder = flux_editor(loras=[{"path": str(tmp_path / "one"), "weight": 2}])
    assert folder.settings == added.settings
    assert json.loads(json.dumps(added.settings)) == added.settings
    assert "loras" not in plain.settings, "edits without LoRA weights keep their ids"
    half = flux_editor(loras=[{"path": path, "weight": 1}]).settings
    assert half != added.settings != plain.settings
    other = lora(tmp_path / "two.safetensors", part="transformer_blocks.1.attn.to_q")
    both = flux_editor(loras=[{"path": path, "weight": 2}, {"path": other}])
    assert furthest(*added(tasks, [1], pictures), *both(tasks, [1], pictures)) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 48}, "do not fit this FluxTransformer2DModel"),
        ({"part": "layers.0.attention.to_q"}, "fit this FluxTransformer2DModel"),
        ({"more": "layers.0.attention.to_q"}, "fit this FluxTransformer2DModel"),
    ],
    ids=["other width", "other names", "some other names"],
)
def test_weights_for_another_base_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path, flux_editor: Editor
) -> None:
    path = lora(tmp_path / "lora.safetensors", **options)
    with pytest.raises(PrerequisiteError, match=message):
        flux_editor(loras=[{"path": path}])._source.loaded  # noqa: B018


def test_a_file_that_is_missing_or_broken_is_refused(tmp_path: Path, flux_editor: Editor) -> None:
    for path in (str(tmp_path), "nobody/nothing", "nobody/nothing/lora.safetensors"):
        with pytest.raises(PrerequisiteError, match="neither a file nor one that can be"):
            flux_editor(loras=[{"path": path}])
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no weights")
    with pytest.raises(PrerequisiteError, match="do not fit"):
        flux_editor(loras=[{"path": str(broken)}])._source.loaded  # noqa: B018


def test_a_pipeline_without_loras_refuses_them(tmp_path: Path, flux_editor: Editor) -> None:
    spec = flux_editor(loras=[{"path": lora(tmp_path / "lora.safetensors")}]).spec
    with pytest.raises(ConfigError, match="takes no LoRA weights"):
        check_loras(object, None, spec.loras)
