"""Models by the names that other kits use."""

from __future__ import annotations

from pathlib import Path

import pytest

from flipbench.api.stages.model_names import NamedModel, named_model
from flipbench.core.errors import ConfigError

URL = "http://localhost:8000/v1"


@pytest.mark.parametrize(
    ("model", "args", "base_url", "expected"),
    [
        ("runs/x/checkpoint", "", "", NamedModel("runs/x/checkpoint")),
        ("shapes:llava", "", "", NamedModel("shapes:llava")),
        ("hf:org/name", "dtype=bfloat16", "", NamedModel("org/name", "", {"dtype": "bfloat16"})),
        ("hf", "pretrained=org/name,device=cpu", "", NamedModel("org/name", "", {"device": "cpu"})),
        ("hf:x", "batch_size=8", "", NamedModel("x", "", {"batch_size": 8})),
        ("llava", "", URL, NamedModel("llava", URL)),
        ("llava", f"base_url={URL}", "", NamedModel("llava", URL)),
        ("vllm", f"base_url={URL},model=llava", "", NamedModel("llava", URL)),
        ("vllm", "model=llava", URL, NamedModel("llava", URL)),
        (
            "local-chat-completions",
            f"model=llava,base_url={URL}/chat/completions",
            "",
            NamedModel("llava", URL),
        ),
    ],
)
def test_names_of_other_kits_are_read(
    model: str, args: str, base_url: str, expected: NamedModel
) -> None:
    assert named_model(model, args, base_url) == expected


def test_a_folder_may_be_called_as_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="needs --model-args base_url"):
        named_model("vllm", "")
    (tmp_path / "vllm").mkdir()
    assert named_model("vllm", "") == NamedModel("vllm")


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        ("vllm", "base_url=http://x/v1", "needs --model-args base_url=URL,model=NAME"),
        ("vllm", "model=llava", "needs --model-args base_url=URL,model=NAME"),
        ("hf", "dtype=float16", "needs --model-args pretrained="),
        ("hf:x", "dtype", "write name=value, with commas between; got 'dtype'"),
        ("hf:x", "dtype=int3", "dtype=int3: it may be float32, bfloat16, float16"),
        ("hf:x", "batch_size=0", "give a whole number above 0"),
        ("hf:x", "tensor_parallel_size=2", "'tensor_parallel_size' is not known; there are"),
    ],
)
def test_what_cannot_be_read_is_named(model: str, args: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        named_model(model, args)
