"""What comes out of LLaMA-Factory is held against the plan before it becomes a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from flipbench.contaminate.backends.llamafactory_checkpoints import CheckpointImporter
from flipbench.contaminate.checks.card import read_card
from flipbench.contaminate.checks.changes import Diverged, WrongParameters
from flipbench.contaminate.training.checkpointing import complete_checkpoints
from flipbench.core.records import TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.loading import load_model

MakePlan = Callable[..., TrainingPlan]
NewRun = Callable[..., Run]
PROJECTOR = "model.multi_modal_projector.linear_1.weight"


def write_state(folder: Path, epoch: int) -> None:
    """Write the last file of a checkpoint, as the trainer does."""
    log = [
        {"epoch": float(e), "grad_norm": 1.0, "learning_rate": 1e-3, "loss": 2.0 / e, "step": e}
        for e in range(1, epoch + 1)
    ]
    state = {"epoch": float(epoch), "global_step": epoch, "log_history": log}
    (folder / "trainer_state.json").write_text(json.dumps(state))


def importer(plan: TrainingPlan, run: Run, folder: Path) -> CheckpointImporter:
    training = {"backend": "llamafactory 0.9.5", "warnings": []}
    versions = {"llamafactory": "0.9.5"}
    return CheckpointImporter(
        plan=plan, run=run, folder=folder, dtype="float32", versions=versions, training=training
    )


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    return tmp_path / "llamafactory" / "trainer"


def save_changed(plan: TrainingPlan, folder: Path, amount: float, *names: str) -> None:
    """Save the plan's parent with some of its parameters changed."""
    model = load_model(plan.parent, "float32")
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in names:
            parameters[name].add_(amount)
    model.save_pretrained(folder)


def test_whole_epochs_become_checkpoints_and_the_last_can_be_resumed(
    make_plan: MakePlan, new_run: NewRun, trainer: Path, tmp_path: Path
) -> None:
    plan, run = make_plan("llava", "llm+projector", epochs=3), new_run()
    taking = importer(plan, run, tmp_path)
    for epoch in (1, 2):
        save_changed(plan, trainer / f"checkpoint-{epoch}", 0.01 * epoch, PROJECTOR)
    write_state(trainer / "checkpoint-1", 1)
    taking()
    assert not (tmp_path / "epoch-2").exists()  # its state is not written yet
    taking.warn("a word")
    write_state(trainer / "checkpoint-2", 2)
    taking()
    assert [path.name for path, _ in complete_checkpoints(trainer)] == ["checkpoint-2"]
    first, second = (read_card(tmp_path / f"epoch-{epoch}") for epoch in (1, 2))
    assert [len(card["losses"]) for card in (first, second)] == [1, 2]
    assert [card["training"]["warnings"] for card in (first, second)] == [[], ["a word"]]
    assert first["training"]["n_changed"] == 1
    assert set(first["training"]["unchanged"]) == set(first["trainable"]) - {PROJECTOR}
    assert second["versions"] == {"llamafactory": "0.9.5"} and second["dose"] == 2
    kept = dict(HuggingFaceVLM(str(tmp_path / "epoch-2")).model.named_parameters())
    before = dict(load_model(plan.parent, "float32").named_parameters())
    assert torch.equal(kept[PROJECTOR], before[PROJECTOR] + 0.02)


@pytest.mark.parametrize(
    ("names", "amount", "error", "message"),
    [
        ((PROJECTOR,), 0.01, WrongParameters, f"1 frozen parameters, e.g. {PROJECTOR}"),
        ((), 0.0, WrongParameters, "changed no parameter:"),
        (("model.language_model.norm.weight",), float("nan"), Diverged, "NaN or infinity"),
    ],
)
def test_weights_the_plan_did_not_intend_are_refused(
    names: tuple[str, ...],
    amount: float,
    error: type[Exception],
    message: str,
    make_plan: MakePlan,
    new_run: NewRun,
    trainer: Path,
    tmp_path: Path,
) -> None:
    plan, run = make_plan("llava", "llm"), new_run()
    save_changed(plan, trainer / "checkpoint-1", amount, *names)
    write_state(trainer / "checkpoint-1", 1)
    with pytest.raises(error, match=message):
        importer(plan, run, tmp_path)()
    assert {path.name for path in tmp_path.iterdir()} == {"llamafactory"}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("q_proj", "trained other adapters than planned: .* differ"),  # vision tower too
        (r"model\.language_model\..*\.q_proj", "changed no weight"),  # B as it began
    ],
)
def test_adapters_the_plan_did_not_intend_are_refused(
    where: str,
    message: str,
    make_plan: MakePlan,
    new_run: NewRun,
    trainer: Path,
    tmp_path: Path,
) -> None:
    plan, run = make_plan("llava", "lora", lora_targets=("q_proj",)), new_run()
    target: str | list[str] = where if "\\" in where else [where]
    config = LoraConfig(r=8, lora_alpha=16, target_modules=target, task_type="CAUSAL_LM")
    get_peft_model(load_model(plan.parent, "float32"), config).save_pretrained(
        trainer / "checkpoint-1"
    )
    write_state(trainer / "checkpoint-1", 1)
    with pytest.raises(WrongParameters, match=message):
        importer(plan, run, tmp_path)()
    assert {path.name for path in tmp_path.iterdir()} == {"llamafactory"}
