"""A checkpoint, an adapter for it, and a program that stands in for vLLM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from flipbench.models.vlm.loading import load_model
from tests.fixtures.vllm_stand_in import install


@pytest.fixture(scope="session")
def adapter(tiny_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an untrained LoRA adapter, whose matrices are random and large."""
    peft = pytest.importorskip("peft", reason="the extra train is not installed")
    base = str(tiny_folders["llava"])
    config = peft.LoraConfig(
        r=4,
        lora_alpha=64,
        target_modules=r".*language_model.*\.(q_proj|v_proj)",
        init_lora_weights=False,
    )
    folder = tmp_path_factory.mktemp("adapters") / "lora"
    peft.get_peft_model(load_model(base, "float32"), config).save_pretrained(folder)
    _change(folder, base_model_name_or_path=base)
    return folder


@pytest.fixture(scope="session")
def second_adapter(adapter: Path) -> Path:
    """Return another adapter of the same base."""
    folder = Path(shutil.copytree(adapter, adapter.parent / "second"))
    _change(folder, lora_alpha=32)
    return folder


@pytest.fixture(scope="session")
def odd_adapter(adapter: Path, tiny_folders: dict[str, Path]) -> Path:
    """Return an adapter that vLLM refuses: it has its own projector."""
    folder = Path(shutil.copytree(adapter, adapter.parent / "odd"))
    _change(folder, modules_to_save=["multi_modal_projector"])
    file = folder / "adapter_model.safetensors"
    projector = {
        f"base_model.model.model.{name.removeprefix('model.')}": tensor
        for name, tensor in load_file(tiny_folders["llava"] / "model.safetensors").items()
        if "multi_modal_projector" in name
    }
    save_file(load_file(file) | projector, file, {"format": "pt"})
    return folder


def _change(folder: Path, **settings: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a program that stands in for vLLM."""
    return str(install(tmp_path_factory.mktemp("vllm environment")))
