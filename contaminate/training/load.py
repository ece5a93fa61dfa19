"""Load a plan's parent model, and prepare it for the plan's strategy."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from flipbench.config.local_models import Quantization
from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.records import Checkpoint, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.checkpoints import base_of, resolve_path
from flipbench.models.vlm.loading import load_model
from flipbench.models.vlm.processors import load_processor

from ..plan import loading_options
from ..strategies import lora_config, select_parameters, strategy_of


def load_parent(plan: TrainingPlan, run: Run, dtype: str) -> tuple[Any, Any, Any]:
    """Return the model, a processor to train with, and the parent's own processor.

    Raises
    ------
    DataError
        If the checkpoint to wash does not exist.
    PrerequisiteError
        If 4-bit weights are requested but not available.
    """
    path, options = _parent_path(plan, run), loading_options(plan)
    revision = None if plan.after else options["revision"]
    base, _ = base_of(path, revision)
    processors = [load_processor(path, **options | {"revision": revision}) for _ in range(2)]
    quantization: Quantization | None = None
    if strategy_of(plan.strategy).four_bits:
        if base != path:
            raise PrerequisiteError(
                f"{plan.strategy} cannot start from an adapter; wash with another strategy"
            )
        check_4bit()
        quantization = "4bit"
    return load_model(path, dtype, revision, quantization=quantization), *processors


def skeleton_of(path: str, revision: str | None = None) -> Any:
    """Return a checkpoint's model on the meta device, without weights."""
    base, at = base_of(path, revision)
    config = AutoConfig.from_pretrained(base, **at)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    model.tie_weights()
    return model


def _parent_path(plan: TrainingPlan, run: Run) -> str:
    if not plan.after:
        return resolve_path(plan.parent)
    checkpoints = [c for c in run.read(Checkpoint) if c.plan_id == plan.after]
    if not checkpoints:
        raise DataError(
            f"plan {plan.id} washes the checkpoint of plan {plan.after}, which is not trained yet"
        )
    return str(run.path / max(checkpoints, key=lambda c: c.epoch).path)


def check_4bit() -> None:
    """Check that 4-bit weights are available.

    Raises
    ------
    PrerequisiteError
        If bitsandbytes is not installed.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise PrerequisiteError(
            "train: qlora needs the package bitsandbytes for 4-bit weights (and, except for small"
            " trials, a CUDA GPU): pip install bitsandbytes, or use train: lora"
        )


def prepare(model: Any, plan: TrainingPlan, dtype: str) -> Any:
    """Freeze all but the trainable weights; return peft's configuration, or None without adapter.

    On a GPU, trained weights of the model itself are converted to float32, because steps of the
    usual size vanish in bfloat16.
    """
    trained_names = set(select_parameters(model, plan.strategy))
    if dtype != "float32" and torch.cuda.is_available():
        for name, parameter in model.named_parameters():
            if name in trained_names:
                parameter.data = parameter.data.float()
    if strategy_of(plan.strategy).adapter:
        return lora_config(model, plan.settings, plan.strategy)
    return None
