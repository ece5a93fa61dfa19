"""Load what a plan trains on top of, and get it ready for the plan's strategy."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText, BitsAndBytesConfig

from flipbench.contaminate.strategies import ADAPTERS, lora_config, modules_of, select_parameters
from flipbench.errors import DataError, PrerequisiteError
from flipbench.models.huggingface import base_of, load_model, resolve_path
from flipbench.models.processors import load_processor
from flipbench.records import Checkpoint, TrainingPlan
from flipbench.run import Run


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
    if plan.strategy == "qlora":
        if base != where:
            raise PrerequisiteError("qlora starts from plain weights; wash with another strategy")
        model = _load_4bit(where, dtype, at)
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


def _load_4bit(where: str, dtype: str, at: dict[str, str]) -> Any:
    check_4bit()
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(where, **at)
        skeleton = AutoModelForImageTextToText.from_config(config)
    prefix = modules_of(skeleton).language[0]
    linear = [n for n, m in skeleton.named_modules() if isinstance(m, torch.nn.Linear)]
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, dtype),
        llm_int8_skip_modules=[name for name in linear if not name.startswith(prefix)],
    )
    try:
        return AutoModelForImageTextToText.from_pretrained(
            where,
            dtype=getattr(torch, dtype),
            use_safetensors=True,
            quantization_config=quantization,
            **at,
        )
    except (ImportError, RuntimeError) as error:
        raise PrerequisiteError(
            f"train: qlora: bitsandbytes cannot load 4-bit weights here ({error}); it needs a CUDA"
            " GPU and a version that fits torch; use train: lora without one"
        ) from error


def prepare(model: Any, plan: TrainingPlan, dtype: str) -> Any:
    """Freeze what stays; return peft's configuration, or None where no adapter is trained.

    On a GPU the trained weights of full strategies are kept in float32: steps of the usual size
    are lost in bfloat16.
    """
    settings = plan.settings
    trained = set(select_parameters(model, plan.strategy))  # type: ignore[arg-type]
    if plan.strategy in ADAPTERS:
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
