from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from safetensors.torch import save_file

from flipbench.core.errors import DataError
from flipbench.models.vlm.checkpoints import n_weights


def test_folders_and_subfolders_are_counted_without_loading(tmp_path: Path) -> None:
    (tmp_path / "vae").mkdir()
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(2)}, tmp_path / "model.safetensors")
    save_file({"a": torch.zeros(7, dtype=torch.bfloat16)}, tmp_path / "vae" / "v.safetensors")
    save_file({"a": torch.zeros(7)}, tmp_path / "vae" / "v.fp16.safetensors")
    assert n_weights(str(tmp_path)) == {"": 17, "vae": 7}
    index = {"weight_map": {"a": "model.safetensors", "c": "more.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert n_weights(str(tmp_path)) is None, "a shard is missing"


def test_damaged_weights_are_named(tmp_path: Path) -> None:
    weights, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    weights.write_bytes(b"")
    with pytest.raises(DataError, match="model.safetensors: damaged weights .*copy the checkpoint"):
        n_weights(str(tmp_path))
    save_file({"a": torch.zeros(3)}, weights)
    index.write_text("{}")
    assert n_weights(str(tmp_path)) is None
    index.write_text("{")
    with pytest.raises(DataError, match="index.json: not JSON"):
        n_weights(str(tmp_path))


def test_a_folder_without_weights_is_not_empty_but_unknown(tmp_path: Path) -> None:
    assert n_weights(str(tmp_path)) is None


def test_an_adapter_is_counted_with_its_base(tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    for folder, size in ((base, 10), (adapter, 4)):
        folder.mkdir()
        save_file({"a": torch.zeros(size)}, folder / "model.safetensors")
    about = {"base_model_name_or_path": str(base)}
    (adapter / "adapter_config.json").write_text(json.dumps(about))
    assert n_weights(str(adapter)) == {"": 14}


def test_what_is_not_here_is_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    assert n_weights("nobody/nothing-7b") is None
    files = {"transformer/m.safetensors": {"BF16": 11}, "vae/v.safetensors": {"F32": 2, "F16": 1}}

    def list_files(*_: Any, **__: Any) -> list[str]:
        return ["README.md", *files, "vae/v.fp16.safetensors"]

    def header(_: Any, __: str, file: str, **___: Any) -> SimpleNamespace:
        return SimpleNamespace(parameter_count=files[file])

    monkeypatch.setattr(HfApi, "list_repo_files", list_files)
    monkeypatch.setattr(HfApi, "parse_safetensors_file_metadata", header)
    assert n_weights("nobody/nothing-7b") == {"transformer": 11, "vae": 3}
