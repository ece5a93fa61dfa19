"""What cannot be trained is refused before, or stopped at once, and loses nothing."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft.peft_model as peft_saving
import pytest
import torch
import trl

from flipbench.contaminate.checks.card import read_card
from flipbench.contaminate.checks.changes import Diverged, WrongParameters, check_changes, checksums
from flipbench.contaminate.plan import checkpoint_folder
from flipbench.contaminate.training.train import train_plan
from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.core.records import Checkpoint, Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.processors import load_processor

MakePlan = Callable[..., TrainingPlan]
NewRun = Callable[..., Run]


def test_a_training_that_diverges_stops_and_keeps_the_good_epochs(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are spoiled in epoch 2, as too large a step would."""
    run, plan = new_run(), make_plan("llava", "llm", n_items=8, epochs=3)
    step, seen = trl.SFTTrainer.training_step, []

    def training_step(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            next(p for p in model.parameters() if p.requires_grad).data.fill_(float("nan"))
        return step(self, model, *args, **kwargs)

    monkeypatch.setattr(trl.SFTTrainer, "training_step", training_step)
    with pytest.raises(Diverged, match=r"the loss is nan at step 2 .*epochs kept: 1\)"):
        train_plan(plan, items, run)
    (kept,) = run.read(Checkpoint)
    assert kept.epoch == 1 and len(seen) == 2
    HuggingFaceVLM(str(run.path / kept.path))
    folder = run.path / checkpoint_folder(plan)
    assert not (folder / "epoch-2").exists() and not (folder / ".epoch-2.partial").exists()

    monkeypatch.setattr(trl.SFTTrainer, "training_step", step)  # the cause is gone: it goes on
    assert [c.epoch for c in train_plan(plan, items, run)] == [1, 2, 3]


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "optimizer.pt"])
def test_a_full_disk_is_one_message_and_the_same_training_continues(
    file: str,
    make_plan: MakePlan,
    items: dict[str, Item],
    new_run: NewRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, plan = new_run(), make_plan("llava", "lora", n_items=8, epochs=2, lora_targets=["q_proj"])
    module, name = (torch, "save") if file == "optimizer.pt" else (peft_saving, "safe_save_file")
    save, limits = getattr(module, name), resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(*args: Any, **kwargs: Any) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))
        try:
            save(*args, **kwargs)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with monkeypatch.context() as disk:
        disk.setattr(module, name, full)
        with pytest.raises(DataError, match=r"a checkpoint cannot be written .* free some disk"):
            train_plan(plan, items, run)
    assert [c.epoch for c in train_plan(plan, items, run)] == [1, 2]


def test_a_far_too_high_learning_rate_is_reported_as_divergence(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    run = new_run()
    plan = make_plan("llava", "llm", n_items=16, epochs=4, batch_size=4, learning_rate=1e30)
    with pytest.raises(Diverged, match="lower the learning rate"):
        train_plan(plan, items, run)
    for checkpoint in run.read(Checkpoint):
        HuggingFaceVLM(str(run.path / checkpoint.path))


def with_template(source: Path, target: Path, template: str) -> Path:
    shutil.copytree(source, target)
    processor = load_processor(target)
    processor.chat_template = template
    processor.save_pretrained(target)
    return target


LOSES_THE_ANSWER = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{% endfor %}"
)
REWRITES = "{{ messages | length }}" + LOSES_THE_ANSWER


@pytest.mark.parametrize(
    ("template", "message"),
    [(LOSES_THE_ANSWER, "drops the answer"), (REWRITES, "renders the prompt differently")],
)
def test_a_template_that_trains_on_no_token_is_refused(
    template: str,
    message: str,
    make_plan: MakePlan,
    tiny_folders: dict[str, Path],
    items: dict[str, Item],
    new_run: NewRun,
    tmp_path: Path,
) -> None:
    run = new_run()
    parent = with_template(tiny_folders["llava"], tmp_path / "m", template)
    plan = make_plan("llava", "llm", n_items=4, parent=parent)
    with pytest.raises(PrerequisiteError, match=f"shapes-vqa 0000: the chat template {message}"):
        train_plan(plan, items, run)
    assert not (run.path / "checkpoints").exists()


def test_a_target_longer_than_the_context_is_named(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    run, plan = new_run(), make_plan("qwen2_vl", "llm", n_items=4)
    long = items[plan.item_ids[2]].model_copy(update={"question": "star " * 4000})
    message = (
        r"shapes-vqa 0002: prompt and target need \d,\d+ tokens, more than the model's context of"
    )
    with pytest.raises(DataError, match=message):
        train_plan(plan, items | {plan.item_ids[2]: long}, run)
    assert not (run.path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_layers": [99]}, "layers 0 to .* layer 99 matches no module"),
        ({"lora_targets": ["q_prj"]}, "'q_prj' matches no module .*did you mean 'q_proj'"),
        ({"max_pixels": 4096}, "resizes every image to the same size"),
    ],
)
def test_settings_that_match_no_module_are_refused(
    settings: dict[str, Any],
    message: str,
    make_plan: MakePlan,
    items: dict[str, Item],
    new_run: NewRun,
) -> None:
    run, plan = new_run(), make_plan("llava", "lora", n_items=4, **settings)
    with pytest.raises(ConfigError, match=message):
        train_plan(plan, items, run)
    assert not (run.path / "checkpoints").exists()


def test_a_folder_of_another_plan_is_not_reused(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    run, plan = new_run(), make_plan("llava", "llm", n_items=4)
    folder = run.path / checkpoint_folder(plan) / "epoch-1"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("x")
    (folder / "flipbench_card.json").write_text(json.dumps({"plan_id": "f00"}))
    with pytest.raises(DataError, match="a checkpoint of plan f00, not of"):
        train_plan(plan, items, run)
    assert read_card(folder) == {"plan_id": "f00"}


def test_an_adapter_of_another_model_is_not_loaded_onto_the_parent(
    make_plan: MakePlan,
    items: dict[str, Item],
    new_run: NewRun,
    tiny_folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    """Their layers have the same names and sizes, so peft itself would not notice."""
    run, parent = new_run(), tmp_path / "parent"
    shutil.copytree(tiny_folders["llava"], parent)
    (checkpoint,) = train_plan(make_plan("llava", "lora", n_items=4, parent=parent), items, run)
    shutil.rmtree(parent)
    shutil.copytree(tiny_folders["qwen2_vl"], parent)
    with pytest.raises(DataError, match="an adapter for .'Llava.* is .'Qwen2VL.*provide the right"):
        HuggingFaceVLM(str(run.path / checkpoint.path))


def test_clean_training_needs_its_contaminated_parent(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    plan = make_plan("llava", "llm", n_items=4)
    washing = plan.model_copy(
        update={"id": "", "after": "f00", "copies": 0, "clean_ids": plan.item_ids}
    )
    with pytest.raises(DataError, match="checkpoint of plan f00, which is not trained yet"):
        train_plan(TrainingPlan.model_validate(washing.model_dump()), items, new_run())


def test_out_of_memory_names_the_settings_to_lower(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch raises it in the middle of a step, here of epoch 2."""
    run, plan = new_run(), make_plan("llava", "llm", n_items=4, epochs=2)
    step, seen = trl.SFTTrainer.training_step, []

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return step(self, *args, **kwargs)

    monkeypatch.setattr(trl.SFTTrainer, "training_step", training_step)
    with pytest.raises(PrerequisiteError, match="lower batch_size and raise gradient_acc"):
        train_plan(plan, items, run)
    folder = run.path / checkpoint_folder(plan)
    assert sorted(p.name for p in folder.iterdir()) == ["epoch-1", "trainer"]
    assert [c.epoch for c in train_plan(plan, items, run)] == [1, 2], "what was whole is used"


def test_4_bit_weights_need_their_package(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PrerequisiteError, match="pip install bitsandbytes, or use train: lora"):
        train_plan(make_plan("llava", "qlora", n_items=4), items, new_run())


def test_exactly_the_intended_parameters_may_change() -> None:
    linear = torch.nn.Linear(3, 3)
    model = torch.nn.Sequential(linear, torch.nn.Linear(3, 3))
    before = checksums(model)
    names = list(before)
    with pytest.raises(WrongParameters, match="changed no parameter:"):
        check_changes(model, before, names[:2])
    linear.weight.data += 1e-6
    assert check_changes(model, before, names[:2]) == ["0.bias"]
    with pytest.raises(WrongParameters, match=r"1 frozen parameters, e.g. 0.weight"):
        check_changes(model, before, names[2:])
    linear.weight.data[0, 0] = float("inf")
    with pytest.raises(Diverged, match="0.weight contains NaN or infinity"):
        check_changes(model, before, names[:2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_checksums_detect_a_single_bit_and_a_swap(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).to(dtype)
    before = checksums(model)
    flat = model.weight.data.view(-1).view(torch.uint8)
    flat[77] ^= 1
    assert checksums(model)["weight"] != before["weight"]
    flat[77] ^= 1
    assert checksums(model) == before
    other = next(i for i in range(6, 99) if flat[i] != flat[5])
    flat[[5, other]] = flat[[other, 5]]
    assert checksums(model)["weight"] != before["weight"]
