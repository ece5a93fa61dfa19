"""A checkpoint with a damaged file is refused in one message that names the file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForImageTextToText

from flipbench.core.errors import DataError, FlipbenchError, PrerequisiteError
from flipbench.models.vlm.checkpoints import CARD, check_card, check_files, fingerprint
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.loading import capabilities
from tests.fixtures.stored_run import DAMAGE

JSON = ["config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture
def adapter(copy: Path, tmp_path: Path) -> Path:
    peft = pytest.importorskip("peft")
    model = AutoModelForImageTextToText.from_pretrained(copy)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    adapted.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("damage", ["empty", "cut"])
@pytest.mark.parametrize("name", ["model.safetensors", *JSON])
def test_a_cut_file_is_named(name: str, damage: str, copy: Path) -> None:
    DAMAGE[damage](copy / name)
    with pytest.raises(DataError, match=f"copy/{name}: .*; copy the checkpoint again"):
        HuggingFaceVLM(str(copy))
    with pytest.raises(DataError, match=f"copy/{name}"):
        check_files(str(copy))


@pytest.mark.parametrize("refuse", [HuggingFaceVLM, capabilities, check_files])
def test_more_layers_than_any_model_has_are_refused_at_once(
    refuse: Callable[[str], object], copy: Path
) -> None:
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["num_hidden_layers"] = 10**12
    (copy / "config.json").write_text(json.dumps(config))
    start = time.monotonic()
    with pytest.raises(DataError, match="num_hidden_layers is 1,000,000,000,000, more than 10,000"):
        refuse(str(copy))
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("content", ["[]", "{}", "null", "[" * 90_000])
@pytest.mark.parametrize("name", JSON)
def test_json_of_another_form_is_refused(name: str, content: str, copy: Path) -> None:
    (copy / name).write_text(content)
    try:
        HuggingFaceVLM(str(copy))
    except FlipbenchError as error:
        assert "copy" in str(error)
    else:  # an empty processor or tokenizer configuration leaves the defaults
        assert content.startswith("{") and "config" in name


@pytest.mark.parametrize("damage", ["empty", "cut"])
@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_cut_adapter_is_named(name: str, damage: str, adapter: Path) -> None:
    DAMAGE[damage](adapter / name)
    with pytest.raises(DataError, match=f"adapter/{name}: .*; copy the checkpoint again"):
        HuggingFaceVLM(str(adapter))


def test_a_cut_base_is_named(copy: Path, adapter: Path) -> None:
    DAMAGE["cut"](copy / "model.safetensors")
    with pytest.raises(DataError, match="copy/model.safetensors: damaged weights"):
        HuggingFaceVLM(str(adapter))


@pytest.mark.parametrize(
    ("key", "value"), [("peft_type", "LOTR"), ("r", "two"), ("target_modules", 7), ("r", None)]
)
def test_an_adapter_with_nonsense_in_its_configuration_is_refused(
    key: str, value: object, adapter: Path
) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(PrerequisiteError, match="adapter: cannot load"):
        HuggingFaceVLM(str(adapter))


def test_an_adapter_without_a_base_is_refused(adapter: Path) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": None}))
    for use in (HuggingFaceVLM, capabilities, lambda where: fingerprint(where, "float32")):
        with pytest.raises(DataError, match="adapter_config.json: it names no base model"):
            use(str(adapter))


@pytest.mark.parametrize(
    "content",
    ["[]", "3", '{"architectures": ["Ll', "\xff", '{"parent": 3}', '{"doses": []}', "[" * 90_000],
)
def test_a_damaged_card_is_named(content: str, copy: Path, adapter: Path) -> None:
    for folder in (copy, adapter):
        (folder / CARD).write_bytes(content.encode("latin-1"))
        for use in (check_card, lambda where: HuggingFaceVLM(str(where))):
            with pytest.raises(DataError, match=f"{folder.name}/{CARD}: .*copy the checkpoint"):
                use(folder)
        (folder / CARD).unlink()


def test_missing_weights_and_shards_are_named(copy: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="model-2.safetensors is missing"):
        HuggingFaceVLM(str(copy))
    (copy / "model.safetensors.index.json").unlink()
    (copy / "model.safetensors").unlink()
    with pytest.raises(DataError, match="there are no safetensors weights"):
        HuggingFaceVLM(str(copy))


@pytest.mark.parametrize(
    "changes", [None, {"text_config": {"model_type": "llama", "use_cache": "x"}}]
)
def test_what_a_model_can_do_needs_a_readable_configuration(
    changes: dict[str, Any] | None, copy: Path
) -> None:
    config = json.loads((copy / "config.json").read_text())
    text = "{" if changes is None else json.dumps(config | changes)
    (copy / "config.json").write_text(text)
    with pytest.raises(PrerequisiteError, match="copy: its configuration cannot be read"):
        capabilities(str(copy))


@pytest.mark.parametrize(
    "template",
    [
        "{% for",
        "{{ messages.x.y }}<image>",
        "{{ 1 / 0 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_damaged_chat_template_is_refused(template: str, copy: Path) -> None:
    (copy / "chat_template.jinja").write_text(template)
    with pytest.raises(DataError, match="copy: its chat template cannot be used"):
        HuggingFaceVLM(str(copy))
