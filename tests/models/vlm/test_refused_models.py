"""Checkpoints that cannot be asked, or that answer no numbers: refused in clear words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText, LlamaConfig, LlamaForCausalLM

from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Probe
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.processors import load_processor
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.tiny_families import save

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "chat_template.jinja")


def test_a_text_only_model_is_refused(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(PrerequisiteError, match="type 'llama' is not an image-text-to-text"):
        HuggingFaceVLM(str(tmp_path))


def test_weights_without_a_processor_are_refused(copy: Path) -> None:
    for name in PROCESSOR_FILES:
        (copy / name).unlink(missing_ok=True)
    with pytest.raises(PrerequisiteError, match=f"{copy.name}.*processor"):
        HuggingFaceVLM(str(copy))


def test_a_missing_chat_template_is_refused(copy: Path) -> None:
    (copy / "chat_template.jinja").unlink()
    with pytest.raises(PrerequisiteError, match="no chat template; put the chat_template.jinja"):
        HuggingFaceVLM(str(copy))


def test_a_chat_template_without_the_image_is_refused(copy: Path) -> None:
    path = copy / "chat_template.jinja"
    path.write_text(path.read_text().replace("<image>", ""))
    with pytest.raises(PrerequisiteError, match="cannot read an image.*from one checkpoint"):
        HuggingFaceVLM(str(copy))


def test_a_processor_of_other_weights_is_refused(copy: Path) -> None:
    """Its image token is an ordinary word to these weights, which would see no picture."""
    path = copy / "config.json"
    config = json.loads(path.read_text())
    config["image_token_index"] += 1
    config["image_token_id"] = config["image_token_index"]
    path.write_text(json.dumps(config))
    with pytest.raises(PrerequisiteError, match=r"inserts no image token \(id \d+"):
        HuggingFaceVLM(str(copy))


def test_weights_older_than_image_tokens_are_refused(tmp_path: Path) -> None:
    """Old BLIP-2 checkpoints name none, and transformers fails on them only when asked."""
    folder = save("blip-2", tmp_path)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name in ("image_token_index", "image_token_id"):
        config.pop(name, None)
    path.write_text(json.dumps(config))
    with pytest.raises(PrerequisiteError, match=r"inserts no image token \(id None"):
        HuggingFaceVLM(str(folder))


def test_a_tokenizer_without_the_image_token_is_refused(copy: Path) -> None:
    processor = load_processor(copy)
    path = copy / "tokenizer.json"
    path.write_text(path.read_text().replace('"<image>"', '"<picture>"'))
    assert "<image>" in processor.tokenizer.get_vocab()
    with pytest.raises(PrerequisiteError, match=f"{copy.name}.*(read an image|no image token)"):
        HuggingFaceVLM(str(copy))


@pytest.fixture(scope="module")
def broken(llava: Path, tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceVLM:
    """Return a model whose head holds what is no number, as float16 overflows leave it."""
    folder = Path(shutil.copytree(llava, tmp_path_factory.mktemp("broken") / "model"))
    model = AutoModelForImageTextToText.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
        model.model.language_model.norm.weight.fill_(torch.nan)
    model.save_pretrained(folder)
    return HuggingFaceVLM(str(folder))


ASKS: dict[str, Callable[[Item], Probe]] = {
    "choose": lambda item: PromptSettings().probe(item, "original"),
    "generate": lambda item: PromptSettings(ask="generate").probe(item, "original"),
    "score": lambda item: Probe(
        item_id=item.id, variant="s", images=item.images, prompt="?", ask="score", continuation="x"
    ),
}


@pytest.mark.parametrize("ask", ASKS)
def test_nan_logits_are_a_failure(
    ask: str, broken: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    with pytest.raises(DataError, match="NaN.*float32"):
        broken.ask([ASKS[ask](shapes_items[0])], shapes_store)


def test_a_nan_hidden_state_is_a_failure(
    broken: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    with pytest.raises(DataError, match="NaN.*float32"):
        broken.ask(
            [ASKS["score"](shapes_items[0]).model_copy(update={"ask": "embed"})], shapes_store
        )
