"""Checkpoint folders: what a fingerprint is of, and which folders are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from flipbench.config.local_models import ModelConfig
from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item
from flipbench.models.vlm.checkpoints import (
    CARD,
    check_card,
    check_files,
    fingerprint,
    folder_hash,
    resolve_path,
)
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.loading import check_weights, load_model
from flipbench.models.vlm.processors import load_processor
from flipbench.prompting.prompts import PromptSettings

LORA = {"lora_rank": 4, "lora_alpha": 8, "lora_dropout": 0.0}

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Change:
    """What is done to a checkpoint folder, and whether it is another model then."""

    name: str
    do: Callable[[Path], None]
    another: bool


def _change_weights(folder: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(folder)
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if "layers.0" in n).view(-1)[0] += 1e-3
    model.save_pretrained(folder)


def _change_template(folder: Path) -> None:
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + " ")


def _change_pixels(folder: Path) -> None:
    path = folder / "processor_config.json"
    config = json.loads(path.read_text())
    config["image_processor"]["image_mean"] = [0.1, 0.1, 0.1]
    path.write_text(json.dumps(config))


def _add_card(folder: Path) -> None:
    architectures = json.loads((folder / "config.json").read_text())["architectures"]
    (folder / CARD).write_text(json.dumps({"architectures": architectures, "dose": 3}))
    (folder / "README.md").write_text("# Contaminated on purpose")


CHANGES = [
    Change("weights", _change_weights, True),
    Change("chat template", _change_template, True),
    Change("image processor", _change_pixels, True),
    Change("card", _add_card, False),
    Change("nothing", lambda folder: None, False),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_the_fingerprint_covers_all_that_an_answer_depends_on(folder: Path, change: Change) -> None:
    before = fingerprint(str(folder), "float32")
    change.do(folder)
    assert (fingerprint(str(folder), "float32") != before) == change.another


def test_the_fingerprint_depends_on_precision_not_on_location(
    folder: Path, vlm: HuggingFaceVLM
) -> None:
    assert fingerprint(str(folder), "float32") == vlm.fingerprint
    assert fingerprint(str(folder), "bfloat16") != vlm.fingerprint


def test_rewritten_weights_of_the_same_size_get_a_new_fingerprint(
    folder: Path,
) -> None:
    before = folder_hash(str(folder))
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert folder_hash(str(folder)) != before


@pytest.fixture
def adapter(folder: Path, tmp_path: Path) -> Path:
    """Save a LoRA adapter with weights that do something, on a copy of the family's model."""
    import peft

    from flipbench.contaminate.strategies import lora_config

    model = AutoModelForImageTextToText.from_pretrained(folder)
    wrapped = peft.get_peft_model(model, lora_config(model, LORA))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    wrapped.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_answers_as_peft_does_unmerged(
    adapter: Path,
    folder: Path,
    vlm: HuggingFaceVLM,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    dtype: str,
) -> None:
    """In low precision merging rounds the adapter away, more than leaving it apart does."""
    import peft

    loaded = HuggingFaceVLM(str(adapter), dtype=dtype)
    base = AutoModelForImageTextToText.from_pretrained(folder, dtype=getattr(torch, dtype))
    unmerged = peft.PeftModel.from_pretrained(base, adapter).eval()
    merged = load_model(str(adapter), dtype).eval()
    probes = [PromptSettings().probe(item, "original") for item in shapes_items[:3]]
    letters = loaded.conversation.letter_ids(4)
    clean, differences = vlm.ask(probes, shapes_store), []
    for probe, other in zip(probes, clean, strict=True):
        (response,) = loaded.ask([probe], shapes_store)
        picture = [shapes_store.open(probe.images[0])]
        text = loaded.conversation.render(probe.prompt, 1)
        inputs = loaded.processor(text=text, images=picture, return_tensors="pt")
        with torch.no_grad():
            logits, added = (model(**inputs).logits[0, -1].float() for model in (unmerged, merged))
        expected = logits.log_softmax(-1)[letters[: probe.n_options]].tolist()
        rounding = {"float32": 1e-5, "bfloat16": 0.03}[dtype]  # read in another order
        assert response.option_log_probs == pytest.approx(expected, abs=rounding)
        assert response.option_log_probs != pytest.approx(other.option_log_probs, abs=1e-2)
        differences.append(float((logits - added).abs().max()))
    assert (max(differences) > 1e-3) == (dtype == "bfloat16")


def test_an_adapter_that_is_not_low_rank_is_refused(folder: Path, tmp_path: Path) -> None:
    import peft

    model = AutoModelForImageTextToText.from_pretrained(folder)
    tuning = peft.PromptTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=2, num_layers=5, token_dim=144,
        num_attention_heads=4, num_transformer_submodules=1,
    )  # fmt: skip
    peft.get_peft_model(model, tuning).save_pretrained(tmp_path / "tuned")
    with pytest.raises(PrerequisiteError, match="PROMPT_TUNING, which prepend tokens"):
        HuggingFaceVLM(str(tmp_path / "tuned"))


def test_an_adapter_s_fingerprint_covers_its_base(adapter: Path, folder: Path) -> None:
    first = fingerprint(str(adapter), "float32")
    assert first not in (fingerprint(str(folder), "float32"), fingerprint(str(adapter), "float16"))
    _change_template(folder)
    second = fingerprint(str(adapter), "float32")
    assert second != first
    (adapter / "adapter_config.json").write_text(
        (adapter / "adapter_config.json").read_text().replace('"lora_alpha": 8', '"lora_alpha": 9')
    )
    assert fingerprint(str(adapter), "float32") != second


def test_weights_that_are_not_safetensors_are_refused(folder: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(PrerequisiteError, match="pytorch_model.bin is not in safetensors format"):
        HuggingFaceVLM(str(folder))


@pytest.mark.parametrize("path", ["/no/such/folder", "no-such-folder", "nobody/no-such-model"])
def test_a_missing_checkpoint_is_named(path: str) -> None:
    with pytest.raises(PrerequisiteError, match=f"{path}: cannot load"):
        HuggingFaceVLM(path)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match="cannot load a vision-language model"):
        HuggingFaceVLM(str(tmp_path))


def test_a_packaged_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PrerequisiteError, match="shapes:llava or shapes:qwen2_vl"):
        resolve_path("shapes:blip")
    assert resolve_path("/some/where") == "/some/where"


def test_a_card_of_another_architecture_is_refused(folder: Path) -> None:
    _add_card(folder)
    assert check_card(folder)["dose"] == 3
    HuggingFaceVLM(str(folder))
    (folder / CARD).write_text(json.dumps({"architectures": ["BlipForEverything"]}))
    with pytest.raises(DataError, match="BlipForEverything.*do not belong"):
        HuggingFaceVLM(str(folder))


def test_code_that_comes_with_a_checkpoint_is_not_run(folder: Path, tmp_path: Path) -> None:
    """Neither the configuration's, the processor's nor the model's code, unless allowed."""
    marker = tmp_path / "it-ran"
    code = f"open({str(marker)!r}, 'w').close()\nclass Anything: pass\n"
    (folder / "strange.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "strange",
        "auto_map": {
            "AutoConfig": "strange.Anything",
            "AutoProcessor": "strange.Anything",
            "AutoModelForImageTextToText": "strange.Anything",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(PrerequisiteError, match="set trust_remote_code if you trust"):
        HuggingFaceVLM(str(folder))
    assert not marker.exists()


def test_half_precision_loads_and_answers(
    folder: Path, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    vlm = HuggingFaceVLM(str(folder), dtype="bfloat16")
    assert vlm.model.dtype == torch.bfloat16
    (response,) = vlm.ask([PromptSettings().probe(shapes_items[0], "original")], shapes_store)
    assert sum(response.option_log_probs) < 0


def test_the_image_only_processor_loads_in_plain_transformers(folder: Path) -> None:
    config = json.loads((folder / "processor_config.json").read_text())
    video = config.get("video_processor", {}).get("video_processor_type")
    expected = {"LlavaProcessor": None, "Qwen2VLProcessor": "Qwen2VLVideoProcessor"}
    assert video == expected[config["processor_class"]]
    again = load_processor(folder)
    assert again.chat_template and again.tokenizer.padding_side == "left"


@pytest.fixture
def hub_id(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put two commits of a model into a hub cache, as a download would."""
    from huggingface_hub import constants

    cache = tmp_path / "hub" / "models--lab--tiny"
    for ref, commit in (("main", "a" * 40), ("v2", "b" * 40)):
        shutil.copytree(folder, cache / "snapshots" / commit)
        (cache / "refs").mkdir(exist_ok=True)
        (cache / "refs" / ref).write_text(commit)
    _change_weights(cache / "snapshots" / ("b" * 40))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return "lab/tiny"


def test_a_hub_model_is_known_by_its_commit(
    hub_id: str, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    """Before it is loaded and after: the grid is planned with the first, answers bear the other."""
    probe = PromptSettings().probe(shapes_items[0], "original")
    by_revision: dict[str | None, HuggingFaceVLM] = {}
    for revision in (None, "v2"):
        vlm = HuggingFaceVLM(hub_id, revision=revision)
        assert vlm.fingerprint == fingerprint(hub_id, "float32", revision)
        by_revision[revision] = vlm
    assert by_revision[None].fingerprint != by_revision["v2"].fingerprint
    answers = [vlm.ask([probe], shapes_store)[0] for vlm in by_revision.values()]
    assert answers[0].option_log_probs != answers[1].option_log_probs
    assert fingerprint(hub_id, "float32", "a" * 40) == by_revision[None].fingerprint


def test_an_adapter_loads_on_the_revision_it_was_trained_on(hub_id: str, tmp_path: Path) -> None:
    import peft

    from flipbench.contaminate.strategies import lora_config

    model = AutoModelForImageTextToText.from_pretrained(hub_id, revision="v2")
    target = tmp_path / "adapter"
    peft.get_peft_model(model, lora_config(model, LORA)).save_pretrained(target)
    (target / CARD).write_text(json.dumps({"parent": hub_id, "settings": {"revision": "v2"}}))
    merged = load_model(str(target), "float32").state_dict()
    expected = HuggingFaceVLM(hub_id, revision="v2").model.state_dict()
    other = HuggingFaceVLM(hub_id).model.state_dict()
    assert all(torch.equal(merged[name], expected[name]) for name in expected)
    assert not all(torch.equal(merged[name], other[name]) for name in other)


def test_an_adapter_of_a_hub_model_is_checked_and_one_on_the_hub_is_refused(
    hub_id: str, tmp_path: Path
) -> None:
    import peft

    model = load_model(hub_id, "float32")
    adapted = peft.PeftModel(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    adapted.save_pretrained(tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": hub_id}))
    placement = check_weights(ModelConfig(path=str(tmp_path / "adapter")))
    assert placement and 0 < placement.n_placed == placement.n_stored
    template = tmp_path / "adapter" / "chat_template.jinja"
    template.write_text("another")
    with pytest.raises(DataError, match="another chat template than that of its base lab/tiny"):
        check_files(str(tmp_path / "adapter"))
    template.unlink()
    for snapshot in (tmp_path / "hub" / "models--lab--tiny" / "snapshots").iterdir():
        shutil.copy(path, snapshot)
    with pytest.raises(PrerequisiteError, match="lab/tiny: it has an adapter .* --local-dir"):
        check_files(hub_id)
