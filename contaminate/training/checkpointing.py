"""What happens during a training: a checkpoint at each epoch's end, and a stop at the first NaN."""

from __future__ import annotations

import math
import shutil
import time
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
    """Return the epochs whose checkpoint is there as a whole."""
    return [
        epoch
        for epoch in range(1, n_epochs + 1)
        if (folder / f"epoch-{epoch}" / "README.md").exists()
    ]


class StopAtNaN(TrainerCallback):  # type: ignore[misc]
    """End the training at the first loss that is no number."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Look at a step's loss."""
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(float(loss)):
            raise Diverged(
                f"the loss is {loss} at step {state.global_step} (learning rate"
                f" {logs.get('learning_rate', 0):.3g}); lower the learning rate or lengthen the"
                " warm-up"
            )


class KeepEpochs(TrainerCallback):  # type: ignore[misc]
    """Save a checkpoint named by its epoch, whole or not at all, with its card.

    Before anything is written it is checked that exactly the intended parameters changed. Of
    several processes all take part in that, since each may hold a shard; the main one writes.
    """

    def __init__(
        self,
        *,
        plan: TrainingPlan,
        folder: Path,
        trainer: Any,
        processor: Any,
        architectures: list[str],
        before: dict[str, tuple[int, int]],
        dtype: str,
        training: dict[str, Any],
    ) -> None:
        self.plan, self.folder, self.trainer = plan, folder, trainer
        self.processor, self.architectures = processor, architectures
        self.before, self.dtype, self.training = before, dtype, training
        parameters = trainer.model.named_parameters()  # not sharded yet
        self.trainable = [(n, p.numel()) for n, p in parameters if p.requires_grad]
        self.there = finished_epochs(folder, plan.epochs)
        self.start = time.monotonic()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check and save."""
        epoch = round(state.epoch)
        if epoch in self.there:
            return
        changes = check_changes(self.trainer.model, self.before, [n for n, _ in self.trainable])
        weights = self.trainer.accelerator.get_state_dict(self.trainer.model_wrapped)
        if not self.trainer.accelerator.is_main_process:
            return
        final, partial = self.folder / f"epoch-{epoch}", self.folder / f".epoch-{epoch}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        self._save_weights(weights, partial)
        self.processor.save_pretrained(partial)
        write_card(
            partial,
            self.plan,
            epoch=epoch,
            architectures=self.architectures,
            trainable=self.trainable,
            losses=[
                {key: entry[key] for key in _CURVE if key in entry}
                for entry in state.log_history
                if "loss" in entry
            ],
            training=self.training
            | {
                "n_steps": state.global_step,
                "seconds": round(time.monotonic() - self.start, 1),
                "n_changed": changes.n_changed,
                "unchanged": list(changes.unchanged),
            },
        )
        replace_folder(partial, final)

    def _save_weights(self, weights: dict[str, torch.Tensor], folder: Path) -> None:
        model = self.trainer.model
        if not strategy_of(self.plan.strategy).adapter:
            cast: dict[int, torch.Tensor] = {}  # tied weights stay tied
            for tensor in weights.values():
                wanted = getattr(torch, self.dtype) if tensor.is_floating_point() else None
                cast[tensor.data_ptr()] = tensor.to(wanted or tensor.dtype)
            state = {name: cast[tensor.data_ptr()] for name, tensor in weights.items()}
            model.save_pretrained(folder, state_dict=state)
        elif self.plan.after:  # what it stands on is itself an adapter, perhaps
            model.get_base_model().save_pretrained(folder, state_dict=merged(model, weights))
        else:
            model.save_pretrained(folder, state_dict=weights)


@torch.no_grad()
def merged(model: Any, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the base model's weights with the adapter's added.

    Parameters
    ----------
    model : PeftModel
        With LoRA on linear layers; it stays as it is.
    weights : mapping of name to tensor
        All of the model's, gathered.
    """
    state = {}
    for name, tensor in weights.items():
        place, _, last = name.partition(".base_layer.")
        if ".lora_" in name:
            continue
        if last == "weight":
            layer = model.get_submodule(place)
            (adapter,) = layer.active_adapters
            a, b = (weights[f"{place}.lora_{x}.{adapter}.weight"].to(tensor.device) for x in "AB")
            tensor = (tensor + (b @ a) * layer.scaling[adapter]).to(tensor.dtype)
        state[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = tensor
    return state
