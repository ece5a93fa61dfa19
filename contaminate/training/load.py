"""Load what a plan trains on top of, and get it ready for the plan's strategy."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.records import Checkpoint, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.huggingface import base_of, load_model, resolve_path
from flipbench.models.vlm.processors import load_processor

from ..strategies import lora_config, select_parameters, strategy_of


def load_parent(plan: TrainingPlan, run: Run, dtype: str) -> tuple[Any, Any, Any]:
    """Return the model, a processor to train with, and the parent's own processor.

    Raises
    ------
    DataError
        Where a washing's contaminated checkpoint is not there.
    PrerequisiteError
        Where 4-bit weights are asked for and cannot be had.
    """
    where, revision = _where(plan, run), None if plan.after else plan.settings.get("revision")
    base, at = base_of(where, revision)
    processors = [load_processor(base, **at) for _ in range(2)]
    if strategy_of(plan.strategy).four_bits:
        if base != where:
            raise PrerequisiteError(
                f"{plan.strategy} starts from plain weights; wash with another strategy"
            )
        check_4bit()
        model = load_model(where, dtype, revision, quantization="4bit")
    else:
        model = load_model(where, dtype, revision)
    return model, *processors


def _where(plan: TrainingPlan, run: Run) -> str:
    if not plan.after:
        return resolve_path(plan.parent)
    before = [c for c in run.read(Checkpoint) if c.plan_id == plan.after]
    if not before:
        raise DataError(
            f"plan {plan.id} washes what plan {plan.after} contaminates, which is not trained yet"
        )
    return str(run.path / max(before, key=lambda c: c.epoch).path)


def check_4bit() -> None:
    """Raise where 4-bit weights cannot be had.

    Raises
    ------
    PrerequisiteError
        Where bitsandbytes is not installed.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise PrerequisiteError(
            "train: qlora keeps the weights in 4 bits, which needs the package bitsandbytes (and,"
            " but for trials, a CUDA GPU): pip install bitsandbytes, or use train: lora"
        )


def prepare(model: Any, plan: TrainingPlan, dtype: str) -> Any:
    """Freeze what stays; return peft's configuration, or None where no adapter is trained.

    On a GPU the trained weights of full strategies are kept in float32: steps of the usual size
    are lost in bfloat16.
    """
    settings = plan.settings
    trained = set(select_parameters(model, plan.strategy))
    if strategy_of(plan.strategy).adapter:
        return lora_config(
            model,
            settings["lora_rank"],
            settings["lora_alpha"],
            settings["lora_dropout"],
            settings.get("lora_layers"),
            settings.get("lora_targets"),
        )
    if dtype != "float32" and torch.cuda.is_available():
        for name, parameter in model.named_parameters():
            if name in trained:
                parameter.data = parameter.data.float()
    return None
