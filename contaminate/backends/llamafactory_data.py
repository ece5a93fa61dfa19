"""A plan in LLaMA-Factory's format: `dataset_info.json`, the data, and the training YAML.

Formats: LLaMA-Factory's `data/README.md` (sharegpt) and its `examples/`, version 0.9.5.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from torch import nn
from transformers.utils import is_torchvision_available

from flipbench.core.errors import ConfigError
from flipbench.core.images import open_image
from flipbench.core.records import TrainingPlan
from flipbench.models.vlm.checkpoints import base_of, resolve_path
from flipbench.models.vlm.processors import load_processor, padded

from ..checks.check import add_first_token, check_examples, context_of
from ..data.examples import Example
from ..plan import loading_options, n_warmup, per_device_batch
from ..strategies import lora_pattern, strategy_of
from ..training.load import skeleton_of
from .llamafactory_templates import Template, check_prompts, row, system_line, template_of

log = logging.getLogger(__name__)
_DATA, _INFO, _YAML = "data.json", "dataset_info.json", "train.yaml"


def check_plan(plan: TrainingPlan) -> None:
    """Check that LLaMA-Factory supports the plan's strategy and settings.

    Raises
    ------
    ConfigError
        If the plan has a strategy, a loss or learning rates that LLaMA-Factory lacks.
    """
    _strategy_settings(plan)
    if plan.settings.get("reinforcement"):
        raise ConfigError(f"{plan.label}: wash by: reinforcement needs backend: trl")
    if consistency := plan.settings.get("consistency"):
        raise ConfigError(
            f"{plan.model}, {plan.label or plan.strategy}: LLaMA-Factory has no equivalent of"
            f" consistency: {consistency}; use backend: trl"
        )
    if rates := plan.settings.get("learning_rates"):
        raise ConfigError(
            f"{plan.model}, {plan.label or plan.strategy}: LLaMA-Factory has one learning rate, not"
            f" learning_rates: {rates}; use backend: trl"
        )


def _strategy_settings(plan: TrainingPlan) -> dict[str, Any]:
    """Return LLaMA-Factory's settings for the plan's strategy."""
    settings = strategy_of(plan.strategy).llamafactory
    if isinstance(settings, str):
        raise ConfigError(
            f"{plan.model}, {plan.label or plan.strategy}: backend: llamafactory does not support"
            f" train: {plan.strategy}: {settings}"
        )
    return settings


def write_plan(
    plan: TrainingPlan,
    examples: Sequence[Example],
    skeleton: Any,
    processor: Any,
    *,
    parent: str,
    folder: Path,
    dtype: str,
    n_gpus: int,
    copy_images: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """Write data and configuration; return the configuration, and warnings for the card.

    Parameters
    ----------
    skeleton : model
        The parent, without its weights.
    processor : processor of the parent
        Its chat template is set to the one used in training.
    parent : str
        The path or hub id from which LLaMA-Factory loads the parent.
    n_gpus : int
        LLaMA-Factory starts a process on each; 0: on the CPU.
    copy_images : bool
        Whether to copy the images into the folder, to train on another machine. There the parent's
        own processor reads them, so they are copied with the padding that it lacks.

    Raises
    ------
    ConfigError, DataError, PrerequisiteError
        If LLaMA-Factory does not support the plan, or would train on different prompts.
    """
    check_plan(plan)
    template = template_of(skeleton.config.model_type, plan.model)
    add_first_token(processor)
    n_tokens = check_examples(examples, processor, context_of(skeleton.config))
    system = system_line(examples[0], processor, template)
    warnings = check_prompts(examples, processor, template, system)
    warnings += _loss_averaging_warnings(plan, examples, processor)
    last_only = not any(example.trained for example in examples)
    settings = _training(
        plan, template, skeleton, parent, system, n_tokens, dtype, n_gpus, last_only
    )
    rows = [row(example, template) for example in examples]
    _write_dataset(rows, folder, processor.image_processor if copy_images else None)
    write_yaml(settings, folder / _YAML)
    if limit := plan.corpus.get("max_tokens"):
        warnings.append(
            f"LLaMA-Factory cuts conversations after {settings['cutoff_len']} tokens, not after"
            f" max_tokens: {limit}"
        )
    return settings, warnings


def write_llamafactory(
    plan: TrainingPlan, examples: Sequence[Example], folder: Path, dtype: str
) -> list[Path]:
    """Write a folder to train with LLaMA-Factory elsewhere; return the files written.

    Raises
    ------
    ConfigError
        If the plan washes another plan's checkpoint.
    """
    if plan.after:
        raise ConfigError(
            f"{plan.model}, {plan.label}: washes the checkpoint of another plan, which does not"
            " exist yet; train both with backend: llamafactory"
        )
    parent = resolve_path(plan.parent)
    base, at = base_of(parent, plan.settings.get("revision"))
    settings, warnings = write_plan(
        plan,
        examples,
        skeleton_of(base, **at),
        load_processor(parent, **loading_options(plan)),
        parent=base,
        folder=folder,
        dtype=dtype,
        n_gpus=1,
        copy_images=True,
    )
    for warning in warnings:
        log.warning("%s, %s: %s", plan.model, plan.label, warning)
    settings |= {f"model_{key}": value for key, value in at.items()}
    pixels = {f"image_{key}": plan.settings.get(key) for key in ("min_pixels", "max_pixels")}
    settings |= {key: value for key, value in pixels.items() if value}
    write_yaml(settings, folder / _YAML)
    return [folder / name for name in (_DATA, _INFO, "images", _YAML)]


def _write_dataset(rows: Sequence[dict[str, Any]], folder: Path, copied_for: Any | None) -> None:
    """Write the rows; with an image processor, also copies of the images."""
    folder.mkdir(parents=True, exist_ok=True)
    if copied_for is not None:
        (folder / "images").mkdir(exist_ok=True)
        files = sorted({file for row in rows for file in row["images"]})
        copies = {file: f"images/{_copy(file, folder / 'images', copied_for)}" for file in files}
        rows = [{**row, "images": [copies[file] for file in row["images"]]} for row in rows]
    info = {
        "flipbench": {
            "file_name": _DATA,
            "formatting": "sharegpt",
            "columns": {"messages": "messages", "images": "images"},
            "tags": {
                "role_tag": "role",
                "content_tag": "content",
                "user_tag": "user",
                "assistant_tag": "assistant",
                "system_tag": "system",
            },
        }
    }
    text = json.dumps(list(rows), indent=1, ensure_ascii=False)
    (folder / _DATA).write_text(text + "\n", encoding="utf-8")
    (folder / _INFO).write_text(json.dumps(info, indent=2) + "\n")


def _copy(file: str, folder: Path, image_processor: Any) -> str:
    """Copy an image, padded if the processor pads; return the copy's name."""
    with open_image(file) as picture:
        if (square := padded(picture, image_processor)) is not picture:
            square.save(folder / (name := f"{Path(file).stem}.png"))
            return name
    shutil.copyfile(file, folder / (name := Path(file).name))
    return name


def write_yaml(settings: dict[str, Any], path: Path) -> None:
    """Write a configuration in the style of LLaMA-Factory's examples."""
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def _training(
    plan: TrainingPlan,
    template: Template,
    model: Any,
    parent: str,
    system: str,
    n_tokens: int,
    dtype: str,
    n_gpus: int,
    mask_history: bool,
) -> dict[str, Any]:
    """Return LLaMA-Factory's configuration for the plan, to run in the data's folder.

    As with trl, only the model's processor resizes images, and no item is truncated.
    """
    settings, on_cpu = plan.settings, n_gpus == 0
    batch_size, accumulation = per_device_batch(plan, max(1, n_gpus))
    lora = {key: settings[key] for key in ("lora_rank", "lora_alpha", "lora_dropout")}
    lora["lora_target"] = _lora_target(model, settings)
    return {
        "model_name_or_path": parent,
        "template": template.name,
        "default_system": system,
        "stage": "sft",
        "do_train": True,
        **_strategy_settings(plan),
        **(lora if strategy_of(plan.strategy).adapter else {}),
        "dataset": "flipbench",
        "dataset_dir": ".",
        "media_dir": ".",
        "cutoff_len": 2 * n_tokens,
        "mask_history": mask_history,  # the loss is on the last answer only
        "image_min_pixels": 1,
        "image_max_pixels": 10**12,
        "use_fast_tokenizer": is_torchvision_available(),  # decides how images are resized
        "output_dir": "trainer",
        "num_train_epochs": plan.epochs,
        "per_device_train_batch_size": batch_size,
        "gradient_accumulation_steps": accumulation,
        "learning_rate": settings["learning_rate"],
        "lr_scheduler_type": settings["schedule"],
        "warmup_steps": n_warmup(plan),
        "weight_decay": settings["weight_decay"],
        "max_grad_norm": settings.get("max_grad_norm", 1.0),
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "seed": plan.seed,
        "data_seed": plan.seed,
        "use_cpu": on_cpu,
        "bf16": not on_cpu and dtype == "bfloat16",
        "fp16": not on_cpu and dtype == "float16",
        "disable_gradient_checkpointing": not settings.get("gradient_checkpointing", False),
        "save_strategy": "epoch",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def _lora_target(model: Any, settings: dict[str, Any]) -> str:
    pattern = lora_pattern(model, settings)
    if settings.get("lora_layers") is None and settings.get("lora_targets") is None:
        return "all"
    modules = model.named_modules()
    return ",".join(n for n, m in modules if isinstance(m, nn.Linear) and re.fullmatch(pattern, n))


def _loss_averaging_warnings(
    plan: TrainingPlan, examples: Sequence[Example], processor: Any
) -> list[str]:
    """Return a warning if LLaMA-Factory averages the loss of a step differently from trl.

    With gradient accumulation it averages over each micro-batch, and then over the micro-batches;
    trl averages over all tokens of the step. The two agree if all answers have the same number of
    tokens, and all micro-batches the same number of answers.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    answers = list({example.answer for example in examples})
    lengths = {len(ids) for ids in tokenizer(answers, add_special_tokens=False)["input_ids"]}
    uniform = len(lengths) == 1 and len(examples) % plan.settings["batch_size"] == 0
    if plan.settings["gradient_accumulation"] == 1 or uniform:
        return []
    return [
        "with gradient_accumulation, LLaMA-Factory averages the loss over each micro-batch, not"
        " over all tokens of a step as trl does"
    ]
