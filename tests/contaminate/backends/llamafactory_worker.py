"""Trains a plan with LLaMA-Factory and is killed when it reads of a step.

``llamafactory_worker.py FOLDER STEP``: FOLDER holds plan.json, items.jsonl and the run directory
``killed``; the id of LLaMA-Factory's process is in ``pid``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from flipbench.config.training import LlamaFactoryConfig
from flipbench.contaminate.backends import llamafactory
from flipbench.contaminate.training.train import train_plan
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run


def main(folder: Path, step: int) -> None:
    class KilledAt(tqdm):  # type: ignore[type-arg]
        seen = 0

        def update(self, n: float | None = 1) -> None:
            KilledAt.seen += 1
            if KilledAt.seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    class Told(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            (folder / "pid").write_text(str(self.pid))

    torch.set_num_threads(1)
    found = llamafactory.find_llamafactory(LlamaFactoryConfig())
    setattr(llamafactory, "tqdm", KilledAt)  # noqa: B010
    setattr(llamafactory.subprocess, "Popen", Told)  # noqa: B010
    plan = TrainingPlan.model_validate_json((folder / "plan.json").read_text())
    lines = (folder / "items.jsonl").read_text().splitlines()
    items = {item.id: item for item in map(Item.model_validate_json, lines)}
    train_plan(plan, items, Run(folder / "killed"), train_with=found.train)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
