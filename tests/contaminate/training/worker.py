"""Trains a plan three times and is killed three times, each at the worst of moments.

``worker.py FOLDER``: FOLDER holds plan.json, items.jsonl and a run directory for each of `MOMENTS`.
The training runs in a fork, taken before torch starts any thread and after all imports; status 0 if
every fork was killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import trl

from flipbench.contaminate.checks import card
from flipbench.contaminate.training import checkpointing as keep
from flipbench.contaminate.training import consistency, train
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_the_second_epoch(n_steps: int) -> None:
    """Die in the last step of epoch 2."""
    step, seen = trl.SFTTrainer.training_step, [0]

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen[0] += 1
        if seen[0] == 2 * n_steps:
            die()
        return step(self, *args, **kwargs)

    trl.SFTTrainer.training_step = training_step


def in_the_trainers_checkpoint(n_steps: int) -> None:
    """Die after epoch 1, when the trainer has saved weights but not yet its state."""
    transformers.Trainer._save_rng_state = lambda *_: die()


def in_the_second_epochs_folder(n_steps: int) -> None:
    """Die when the weights of epoch 2 are written, but not yet their card."""
    write = card.write_card

    def write_card(*args: Any, **kwargs: Any) -> None:
        if kwargs["epoch"] == 2:
            die()
        write(*args, **kwargs)

    setattr(keep, "write_card", write_card)  # noqa: B010


IMPORTED = (consistency, transformers.LlavaForConditionalGeneration, transformers.LlavaProcessor)
MOMENTS: tuple[Callable[[int], None], ...] = (
    in_the_second_epoch,
    in_the_trainers_checkpoint,
    in_the_second_epochs_folder,
)


def main(folder: Path) -> int:
    plan = TrainingPlan.model_validate_json((folder / "plan.json").read_text())
    lines = (folder / "items.jsonl").read_text().splitlines()
    items = {item.id: item for item in map(Item.model_validate_json, lines)}
    n_steps = len(plan.item_ids) * plan.copies // plan.settings["batch_size"]
    for moment in MOMENTS:
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            moment(n_steps)
            train.train_plan(plan, items, Run(folder / moment.__name__))
            os._exit(1)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            print(f"{moment.__name__}: not killed, status {status}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
