"""Callbacks of the trainer: a checkpoint at the end of each epoch, and a stop at the first NaN."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from flipbench.core.files import replace_folder
from flipbench.core.records import TrainingPlan

from ..checks.card import write_card
from ..checks.changes import Diverged, check_changes
from ..strategies import strategy_of

_CURVE = ("step", "epoch", "loss", "learning_rate", "divergence")


def finished_epochs(folder: Path, n_epochs: int) -> list[int]:
    """Return the epochs whose checkpoint is complete."""
    return [
        epoch
        for epoch in range(1, n_epochs + 1)
        if (folder / f"epoch-{epoch}" / "README.md").exists()
    ]


def complete_checkpoints(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return a trainer's complete checkpoints with their states, in order of steps.

    The trainer writes ``trainer_state.json`` last.
    """
    checkpoints = []
    for path in folder.glob("checkpoint-*"):
        try:
            checkpoints.append((path, json.loads((path / "trainer_state.json").read_text())))
        except (OSError, ValueError):
            continue
    return sorted(checkpoints, key=lambda pair: int(pair[1]["global_step"]))


def last_checkpoint(folder: Path) -> str | None:
    """Return the checkpoint to resume from, after removing incomplete ones."""
    complete = [path for path, _ in complete_checkpoints(folder)]
    for path in set(folder.glob("checkpoint-*")) - set(complete):
        shutil.rmtree(path)
    return str(complete[-1]) if complete else None


def write_checkpoint(
    folder: Path,
    plan: TrainingPlan,
    state: Mapping[str, Any],
    *,
    save_weights: Callable[[Path], None],
    processor: Any,
    architectures: list[str],
    trainable: list[tuple[str, int]],
    unchanged: list[str],
    start: float,
    training: Mapping[str, Any],
    versions: Mapping[str, str] | None = None,
) -> None:
    """Write a checkpoint with its card to ``folder/epoch-<n>``, all or nothing.

    Parameters
    ----------
    state : mapping
        The trainer's state; the entries of its log with a loss go into the card.
    start : float
        When the training started, by ``time.monotonic()``.
    training, versions
        As `write_card`.
    """
    epoch, history = round(state["epoch"]), state["log_history"]
    temporary = folder / f".epoch-{epoch}.partial"
    shutil.rmtree(temporary, ignore_errors=True)
    save_weights(temporary)
    processor.save_pretrained(temporary)
    outcome = {
        "n_steps": state["global_step"],
        "seconds": round(time.monotonic() - start, 1),
        "n_changed": len(trainable) - len(unchanged),
        "unchanged": unchanged,
    }
    write_card(
        temporary,
        plan,
        epoch=epoch,
        architectures=architectures,
        trainable=trainable,
        losses=[{k: row[k] for k in _CURVE if k in row} for row in history if "loss" in row],
        training={**training, **outcome},
        versions=versions,
    )
    replace_folder(temporary, folder / f"epoch-{epoch}")


class StopAtNaN(TrainerCallback):  # type: ignore[misc]
    """Stop the training at the first loss that is not finite."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Check a step's loss."""
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(float(loss)):
            raise Diverged(
                f"the loss is {loss} at step {state.global_step} (learning rate"
                f" {logs.get('learning_rate', 0):.3g}); lower the learning rate or lengthen the"
                " warm-up"
            )


class NoteSteps(TrainerCallback):  # type: ignore[misc]
    """Pass on the number of each step that is done, in the main process."""

    def __init__(self, note: Callable[[int], None]) -> None:
        self.note = note

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note a step."""
        if state.is_world_process_zero:
            self.note(state.global_step)


@dataclass(eq=False)
class SaveEpochs(TrainerCallback):  # type: ignore[misc]
    """Save a checkpoint at the end of each epoch.

    It first checks that exactly the intended parameters changed. All processes take part in that,
    because each may have a shard of the weights; only the main one writes.
    """

    plan: TrainingPlan
    folder: Path
    trainer: Any
    processor: Any
    architectures: list[str]
    before: dict[str, tuple[int, int]]
    dtype: str
    training: dict[str, Any]

    def __post_init__(self) -> None:
        """Note the trainable parameters before they are sharded."""
        parameters = self.trainer.model.named_parameters()
        self.trainable = [(n, p.numel()) for n, p in parameters if p.requires_grad]
        self.finished = finished_epochs(self.folder, self.plan.epochs)
        self.start = time.monotonic()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check the changed parameters and save the checkpoint."""
        if round(state.epoch) in self.finished:
            return
        unchanged = check_changes(self.trainer.model, self.before, [n for n, _ in self.trainable])
        weights = self.trainer.accelerator.get_state_dict(self.trainer.model_wrapped)
        if not self.trainer.accelerator.is_main_process:
            return
        write_checkpoint(
            self.folder,
            self.plan,
            vars(state),
            save_weights=partial(self._save_weights, weights),
            processor=self.processor,
            architectures=self.architectures,
            trainable=self.trainable,
            unchanged=unchanged,
            start=self.start,
            training=self.training,
        )

    def _save_weights(self, weights: dict[str, torch.Tensor], folder: Path) -> None:
        model = self.trainer.model
        if not strategy_of(self.plan.strategy).adapter:
            dtype = getattr(torch, self.dtype)
            cast: dict[int, torch.Tensor] = {}  # tied weights stay tied
            for tensor in weights.values():
                cast[tensor.data_ptr()] = tensor.to(dtype) if tensor.is_floating_point() else tensor
            state = {name: cast[tensor.data_ptr()] for name, tensor in weights.items()}
            model.save_pretrained(folder, state_dict=state)
        elif self.plan.after:  # its parent may itself be an adapter
            model.get_base_model().save_pretrained(folder, state_dict=merged(model, weights))
        else:
            model.save_pretrained(folder, state_dict=weights)


@torch.no_grad()
def merged(model: Any, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the base model's weights with the adapter's added.

    Parameters
    ----------
    model : PeftModel
        With LoRA on linear layers; it is not changed.
    weights : mapping of name to tensor
        All of the model's, gathered.
    """
    state = {}
    for name, tensor in weights.items():
        layer_name, _, kind = name.partition(".base_layer.")
        if ".lora_" in name or ".original_module." in name:
            continue
        if kind == "weight":
            layer = model.get_submodule(layer_name)
            (adapter,) = layer.active_adapters
            lora = [weights[f"{layer_name}.lora_{x}.{adapter}.weight"] for x in "AB"]
            a, b = (matrix.to(tensor.device) for matrix in lora)
            tensor = (tensor + (b @ a) * layer.scaling[adapter]).to(tensor.dtype)
        name = re.sub(r"\.modules_to_save\.\w+\.", ".", name)  # trained beside the adapter
        state[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = tensor
    return state
