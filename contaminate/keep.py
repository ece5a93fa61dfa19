"""What happens during a training: a checkpoint at each epoch's end, and a stop at the first NaN."""

from __future__ import annotations

import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from flipbench.contaminate.card import write_card
from flipbench.contaminate.changes import Diverged, check_changes
from flipbench.contaminate.strategies import ADAPTERS
from flipbench.records import TrainingPlan


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

    Before anything is written it is checked that exactly the intended parameters changed.
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
        self.start = time.monotonic()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check and save."""
        epoch = round(state.epoch)
        final = self.folder / f"epoch-{epoch}"
        if final.exists():
            return
        model = self.trainer.model
        trainable = [(n, p.numel()) for n, p in model.named_parameters() if p.requires_grad]
        changes = check_changes(model, self.before, [name for name, _ in trainable])
        partial = self.folder / f".epoch-{epoch}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        self._save_weights(model, partial)
        self.processor.save_pretrained(partial)
        write_card(
            partial,
            self.plan,
            epoch=epoch,
            architectures=self.architectures,
            trainable=trainable,
            losses=[
                {key: entry[key] for key in ("step", "epoch", "loss", "learning_rate")}
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
        os.replace(partial, final)

    def _save_weights(self, model: Any, folder: Path) -> None:
        if self.plan.strategy not in ADAPTERS:
            cast: dict[int, torch.Tensor] = {}  # tied weights stay tied
            for tensor in model.state_dict().values():
                wanted = getattr(torch, self.dtype) if tensor.is_floating_point() else None
                cast[tensor.data_ptr()] = tensor.to(wanted or tensor.dtype)
            state = {n: cast[tensor.data_ptr()] for n, tensor in model.state_dict().items()}
            model.save_pretrained(folder, state_dict=state)
        elif self.plan.after:  # what it stands on is itself an adapter, perhaps
            merged = merged_state(model)
            model.get_base_model().save_pretrained(folder, state_dict=merged)
        else:
            model.save_pretrained(folder)


@torch.no_grad()
def merged_state(model: Any) -> dict[str, torch.Tensor]:
    """Return the base model's weights with the adapter's added; the model stays as it is."""
    base = model.get_base_model()
    state = {}
    for name, tensor in base.state_dict().items():
        if ".lora_" in name:
            continue
        if ".base_layer." in name:
            layer = base.get_submodule(name.partition(".base_layer.")[0])
            name = name.replace(".base_layer.", ".")
            if name.endswith(".weight"):
                delta = layer.get_delta_weight(layer.active_adapters[0])
                tensor = (tensor + delta).to(tensor.dtype)
        state[name] = tensor
    return state
