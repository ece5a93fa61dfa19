"""A checkpoint of which a tensor does not arrive is refused; older names are no loss."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from flipbench.config.local_models import ModelConfig
from flipbench.core.errors import DataError, PrerequisiteError, result_or_error
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Response
from flipbench.models.loading_report import load_pretrained
from flipbench.models.vlm.checkpoints import check_files, resolve_path
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.loading import check_weights, load_model
from flipbench.prompting.prompts import PromptSettings

Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], Tensors]
FAMILIES = ("shapes:qwen2_vl", "shapes:llava")
PREFIX = "base_model.model."


def write(folder: Path, name: str, tensors: Tensors) -> None:
    save_file({k: v.clone() for k, v in tensors.items()}, folder / name, {"format": "pt"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resolve_path("shapes:qwen2_vl"), tmp_path / "copy"))


def save_adapter(folder: Path, base: str, **settings: Any) -> Tensors:
    """Write a LoRA adapter that changes answers; return its tensors."""
    peft = pytest.importorskip("peft")
    settings = {"r": 2, "target_modules": ["q_proj", "down_proj"]} | settings
    torch.manual_seed(0)
    adapted = peft.PeftModel(load_model(resolve_path(base), "float32"), peft.LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    adapted.save_pretrained(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    config |= {"base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return load_file(folder / "adapter_model.safetensors")


def edit_config(folder: Path, **values: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("lost", ["layers.3.mlp", "visual.merger", "embed_tokens", "layers.0.self"])
def test_a_full_checkpoint_without_a_tensor_is_refused(lost: str, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if lost not in name}
    n = len(tensors) - len(kept) + (lost == "embed_tokens")  # its tied head is lost, too
    assert kept.keys() != tensors.keys()
    write(folder, "model.safetensors", kept)
    message = rf"copy/model.safetensors: not the model's weights: {n} tensors? (is|are) missing \("
    for use in (lambda: HuggingFaceVLM(str(folder)), lambda: check_weights(config_of(folder))):
        with pytest.raises(DataError, match=f"{message}.*{lost}.*; copy or download it again"):
            use()


def config_of(folder: Path) -> ModelConfig:
    return ModelConfig(path=str(folder))


def test_unexpected_and_mismatched_tensors_are_refused_and_tied_heads_are_not(
    folder: Path,
) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = next(n for n in tensors if n.endswith("layers.0.mlp.up_proj.weight"))
    write(folder, "model.safetensors", {**tensors, "model.layers.9.mlp.bias": torch.ones(2)})
    with pytest.raises(DataError, match="1 tensor is without a place in it .*layers.9.mlp.bias"):
        HuggingFaceVLM(str(folder))
    write(folder, "model.safetensors", tensors | {name: tensors[name][:-3]})
    with pytest.raises(DataError, match=r"1 tensor is of another shape .*: \[\d+, \d+\] instead"):
        HuggingFaceVLM(str(folder))
    config = json.loads((folder / "config.json").read_text())
    tied = "lm_head.weight" not in tensors
    text = config["text_config"]
    assert text.get("tie_word_embeddings", config.get("tie_word_embeddings")) is tied
    write(folder, "model.safetensors", tensors)
    load_model(str(folder), "float32")  # complete, whether its head is stored or tied


def rename(*pairs: tuple[str, str]) -> Change:
    def change(tensors: Tensors) -> Tensors:
        out = {}
        for name, tensor in tensors.items():
            for new, old in pairs:
                name = name.replace(new, old, 1) if new in name else name
            out[name] = tensor
        return out

    return change


OLD_QWEN = rename(
    (f"{PREFIX}model.language_model.", f"{PREFIX}model."),
    (f"{PREFIX}model.visual.", f"{PREFIX}visual."),
)
OLD_LLAVA = rename(
    (f"{PREFIX}model.language_model.", f"{PREFIX}language_model.model."),
    (f"{PREFIX}model.vision_tower.", f"{PREFIX}vision_tower.vision_model."),
)
NAMED = rename((".weight", ".mine.weight"))
WRAPPED = rename((PREFIX, f"{PREFIX}_orig_mod."))
MODULES = {"target_modules": ["q_proj", "qkv", "fc1"], "modules_to_save": ["lm_head"]}
REGEX = {"target_modules": r".*(model).*(q_proj|fc1)$"}  # met no vision tower before 4.52


@pytest.mark.parametrize(
    ("base", "settings", "change"),
    [
        (FAMILIES[0], {}, OLD_QWEN),
        (FAMILIES[1], {}, OLD_LLAVA),
        (FAMILIES[0], MODULES, OLD_QWEN),
        (FAMILIES[1], MODULES, OLD_LLAVA),
        (FAMILIES[0], {}, NAMED),
        (FAMILIES[0], {"use_dora": True}, NAMED),
        (FAMILIES[0], {}, WRAPPED),
        (FAMILIES[1], {}, rename((PREFIX, ""))),
        (FAMILIES[0], {}, lambda tensors: NAMED(OLD_QWEN(tensors))),
    ],
)
def test_older_names_and_names_inside_keys_are_read(
    base: str, settings: dict[str, Any], change: Change, tmp_path: Path
) -> None:
    tensors = save_adapter(tmp_path, base, **settings)
    expected = load_model(str(tmp_path), "float32").state_dict()
    assert str(check_weights(config_of(tmp_path))) == (
        f"{len(tensors)} of {len(tensors)} matrices have a place"
    )
    changed = change(tensors)
    assert changed.keys() != tensors.keys()
    write(tmp_path, "adapter_model.safetensors", changed)
    arrived = load_model(str(tmp_path), "float32").state_dict()
    assert all(torch.equal(arrived[name], expected[name]) for name in expected)
    placement = check_weights(config_of(tmp_path))
    assert placement and placement.n_placed == placement.n_stored == len(tensors)
    assert 0 < placement.n_renamed <= len(tensors)


def test_a_pattern_for_older_names_adapts_the_layers_that_it_did_then(tmp_path: Path) -> None:
    anchored = r".*language_model.*\.(q_proj|fc1)$"
    tensors = save_adapter(tmp_path, FAMILIES[0], target_modules=anchored)
    write(tmp_path, "adapter_model.safetensors", OLD_QWEN(tensors))
    edit_config(tmp_path, **REGEX, alpha_pattern={"model.layers.0.self_attn.q_proj": 64})
    assert check_weights(config_of(tmp_path))
    strong = load_model(str(tmp_path), "float32").state_dict()
    edit_config(tmp_path, alpha_pattern={})
    plain = load_model(str(tmp_path), "float32").state_dict()
    differing = {n for n in plain if not torch.equal(plain[n], strong[n])}
    assert {n.split("language_model.")[-1] for n in differing} == {
        "layers.0.self_attn.q_proj.weight"
    }


def half(tensors: Tensors) -> Tensors:
    return {n: t for n, t in tensors.items() if "layers.0." in n or "layers.1." in n}


REFUSED: dict[str, tuple[Change, str]] = {
    "empty": (lambda tensors: {}, r"0 of 0 matrices have a place; 20 tensors are missing"),
    "ZeRO-3": (
        lambda tensors: {n: torch.zeros(0) for n in tensors},
        r"0 of 20 matrices have a place; 20 tensors are of another shape \(.*: \[0\] instead",
    ),
    "half": (half, r"8 of 8 matrices have a place; 12 tensors are missing"),
    "half of the pairs": (
        lambda tensors: {n: t for n, t in tensors.items() if "lora_A" in n},
        r"10 of 10 matrices have a place; 10 tensors are missing",
    ),
    "more layers": (
        lambda tensors: tensors | rename((".layers.", ".layers.1"))(tensors),
        r"20 of 40 matrices have a place; 20 tensors are without a place",
    ),
    "unknown names": (rename(("self_attn", "attention")), r"10 of 20 matrices have a place"),
    "two adapters": (
        lambda tensors: NAMED(tensors) | rename((".weight", ".other.weight"))(tensors),
        r"20 of 40 matrices have a place, 20 of them renamed; 20 tensors are without a place",
    ),
    "another rank": (
        lambda tensors: {n: t[:1] if "lora_A" in n else t for n, t in tensors.items()},
        r"10 of 20 matrices have a place; 10 tensors are of another shape",
    ),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_an_adapter_that_does_not_arrive_whole_is_refused(
    change: Change, message: str, tmp_path: Path
) -> None:
    tensors = save_adapter(tmp_path, FAMILIES[0])
    write(tmp_path, "adapter_model.safetensors", change(tensors))
    for use in (check_weights, lambda model: load_model(model.path, "float32", merge=False)):
        with pytest.raises(DataError, match=f"adapter_model.*{message}.*; give the base that it"):
            use(config_of(tmp_path))


def test_an_adapter_for_another_base_is_refused(tmp_path: Path) -> None:
    tensors = save_adapter(tmp_path, FAMILIES[0], target_modules=["qkv", "q_proj"])
    edit_config(tmp_path, base_model_name_or_path=FAMILIES[1])
    with pytest.raises(DataError, match=rf"llava: \d+ of {len(tensors)} matrices have a place; "):
        check_weights(config_of(tmp_path))
    edit_config(tmp_path, target_modules=["gate_up_proj"])
    with pytest.raises(DataError, match="no layer that it adapts is in its base .*llava"):
        check_weights(config_of(tmp_path))


@pytest.mark.parametrize("adapter", ["adapter_config.json", "adapter_model.safetensors"])
def test_two_models_in_one_folder_are_named_and_refused(
    adapter: str, folder: Path, tmp_path: Path
) -> None:
    save_adapter(tmp_path / "adapter", FAMILIES[0])
    shutil.copy(tmp_path / "adapter" / adapter, folder)
    message = f"copy: both full weights .model.safetensors. and an adapter .{adapter}.*; move one"
    with pytest.raises(DataError, match=message):
        check_files(str(folder))
    shutil.copy(resolve_path(FAMILIES[0]) + "/config.json", tmp_path / "adapter")
    check_files(str(tmp_path / "adapter"))  # an adapter with its base's configuration is one model
    (folder / adapter).unlink()
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="both model.safetensors and the shards of"):
        check_files(str(folder))


@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"]
)
def test_another_chat_template_beside_an_adapter_is_refused(name: str, tmp_path: Path) -> None:
    save_adapter(tmp_path, FAMILIES[0])
    template = Path(resolve_path(FAMILIES[0]), "chat_template.jinja").read_text()

    def put(text: str) -> None:
        content = text if name.endswith("jinja") else json.dumps({"chat_template": text})
        (tmp_path / name).write_text(content)

    put(template)
    check_files(str(tmp_path))
    put(template.replace("assistant", "model"))
    with pytest.raises(DataError, match=f"{name}: another chat template .*; remove the one beside"):
        HuggingFaceVLM(str(tmp_path))


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors", "flux1-dev-fp8.safetensors"])
def test_a_single_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    for path in (str(tmp_path / name), f"nobody/{name}"):
        with pytest.raises(PrerequisiteError, match=f"{name}: single files of weights .* folder"):
            check_files(path)


GENERATION = [
    {"repetition_penalty": 5.0, "no_repeat_ngram_size": 1},
    {"num_beams": 4},
    {"do_sample": True, "temperature": 3.0, "top_k": 3},
    {"suppress_tokens": list(range(40)), "min_new_tokens": 6},
]


@pytest.mark.parametrize("settings", GENERATION, ids=lambda settings: next(iter(settings)))
def test_what_a_checkpoint_sets_of_generation_has_no_effect(
    settings: dict[str, Any], folder: Path, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    item = shapes_items[0]
    closed = PromptSettings(ask="generate").closed_probe(item, "original")
    probes = [closed.revised(prompt=text, max_new_tokens=8) for text in (closed.prompt, "List all")]
    expected = HuggingFaceVLM("shapes:qwen2_vl").ask(probes, shapes_store)
    replies = HuggingFaceVLM(str(folder)).ask(probes, shapes_store)
    for there, here in zip(replies, expected, strict=True):
        assert isinstance(there, Response) and isinstance(here, Response)
        assert there.text == here.text


def test_a_missing_pad_token_and_a_template_in_the_tokenizer_s_file_are_no_obstacle(
    folder: Path, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    items = shapes_items[:3]
    probes = [PromptSettings().closed_probe(item, "original") for item in items]
    probes.append(probes[0].revised(prompt="so " * 20 + probes[0].prompt))  # rows are padded
    expected = HuggingFaceVLM("shapes:qwen2_vl").ask(probes, shapes_store)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    del config["pad_token"]
    path.write_text(json.dumps(config | {"chat_template": template}))
    vlm = HuggingFaceVLM(str(folder))
    vlm._prefiller = None
    assert vlm.tokenizer.pad_token == vlm.tokenizer.eos_token
    for there, here in zip(vlm.ask(probes, shapes_store), expected, strict=True):
        assert isinstance(there, Response) and isinstance(here, Response)
        assert there.option_log_probs == pytest.approx(here.option_log_probs, abs=1e-3)


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_head_that_an_encoder_does_not_use_is_no_loss(tied: bool) -> None:
    """A text encoder may be stored with the whole model's head, a copy of the embeddings."""
    model = SimpleNamespace(config=SimpleNamespace(tie_word_embeddings=tied))
    info = {"unexpected_keys": {"lm_head.weight"}, "missing_keys": set(), "mismatched_keys": set()}
    cls = SimpleNamespace(from_pretrained=lambda *_, **__: (model, info))
    refused = result_or_error(load_pretrained, cls, "folder", "text_encoder")
    assert (refused is model) is tied
    assert isinstance(refused, DataError) is not tied
