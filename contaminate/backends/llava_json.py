"""A plan in the format of LLaVA's official trainer: a JSON list, its images, and the command.

Format: LLaVA's `docs/Finetune_Custom_Data.md` and `llava/train/train.py`; defaults of the command:
`scripts/v1_5/finetune_task.sh` and `finetune_task_lora.sh` (Liu et al., arXiv 2310.03744).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flipbench.core.errors import ConfigError, DataError
from flipbench.core.files import write_atomically
from flipbench.core.records import TrainingPlan

from ..data.examples import Example, Message
from ..strategies import STRATEGIES, strategy_of

_IMAGE = "<image>"
_SPEAKERS = {"user": "human", "assistant": "gpt"}
# llava-hf's checkpoints in the format that the official trainer loads
_ORIGINALS = {
    "llava-hf/llava-1.5-7b-hf": "liuhaotian/llava-v1.5-7b",
    "llava-hf/llava-1.5-13b-hf": "liuhaotian/llava-v1.5-13b",
}
_MODEL_HELP = "set it to a LLaVA-1.5 in its original format, such as liuhaotian/llava-v1.5-7b"
_DEFAULTS = (
    "--deepspeed ./scripts/zero3.json",
    "--version v1",
    "--vision_tower openai/clip-vit-large-patch14-336",
    "--mm_projector_type mlp2x_gelu",
    "--mm_vision_select_layer -2",
    "--mm_use_im_start_end False",
    "--mm_use_im_patch_token False",
    "--group_by_modality_length True",
    "--bf16 True",
    "--tf32 True",
    "--model_max_length 2048",
    "--gradient_checkpointing True",
    "--dataloader_num_workers 4",
    "--lazy_preprocess True",
    "--evaluation_strategy no",
    "--save_strategy epoch",
    "--logging_steps 1",
    "--report_to none",
)


def write_llava(plan: TrainingPlan, examples: Sequence[Example], folder: Path) -> list[Path]:
    """Write ``llava.json``, ``images/`` and ``train.sh``; return their paths.

    Raises
    ------
    ConfigError
        If the official trainer does not support the plan.
    DataError
        If an example does not fit its format.
    """
    command = training_command(plan)
    rows = [_row(f"{plan.id[:8]}-{i:06}", e) for i, e in enumerate(examples)]
    if not rows:
        raise DataError(f"{plan.model}, {plan.label}: the plan has no training example")
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    for file in {file for example in examples for file in example.images}:
        shutil.copyfile(file, images / Path(file).name)
    data, script = folder / "llava.json", folder / "train.sh"
    write_atomically(data, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    write_atomically(script, command)
    return [data, images, script]


def _turns(example: Example) -> tuple[Message, ...]:
    return (*example.prompt, Message("assistant", (example.answer,)))


def _row(name: str, example: Example) -> dict[str, Any]:
    if len(example.images) > 1:
        raise DataError(
            f"{example.subject}: has {len(example.images)} images, but LLaVA's official trainer"
            " allows one per example; leave this item out, or train with trl"
        )
    if example.prompt[0].role != "user":
        raise DataError(
            f"{example.subject}: starts with a {example.prompt[0].role} message, which LLaVA's"
            " official trainer would drop; remove it, or train with trl"
        )
    conversation = [
        {"from": _SPEAKERS[turn.role], "value": _value(example, turn)} for turn in _turns(example)
    ]
    image = {"image": Path(example.images[0]).name} if example.images else {}
    return {"id": name, **image, "conversations": conversation}


def _value(example: Example, turn: Message) -> str:
    if any(part is not None and _IMAGE in part for part in turn.parts):
        raise DataError(
            f"{example.subject}: its text contains {_IMAGE}, which is an image placeholder in"
            " LLaVA's format; leave this item out"
        )
    return "".join(f"{_IMAGE}\n" if part is None else part for part in turn.parts)


def training_command(plan: TrainingPlan) -> str:
    """Return a script that trains a plan with LLaVA's official trainer.

    The plan's settings override the official scripts' defaults. As there, the batch size is per
    device.

    Raises
    ------
    ConfigError
        If the plan trains the vision tower, LoRA on chosen layers, or another loss.
    """
    settings, strategy = plan.settings, strategy_of(plan.strategy)
    label = f"{plan.model}, {plan.label or plan.strategy}"
    if strategy.llava is None:
        exportable = ", ".join(name for name, row in STRATEGIES.items() if row.llava is not None)
        raise ConfigError(
            f"{label}: LLaVA's official trainer never trains the vision tower; export one of the"
            f" strategies {exportable}"
        )
    if settings.get("reinforcement"):
        raise ConfigError(
            f"{label}: LLaVA's official trainer has no reinforcement; wash by: supervised"
        )
    if settings.get("consistency"):
        raise ConfigError(
            f"{label}: LLaVA's official trainer has no consistency loss; leave out consistency"
        )
    for key in ("lora_layers", "lora_targets"):
        if strategy.adapter and settings.get(key) is not None:
            raise ConfigError(
                f"{label}: LLaVA's official trainer applies LoRA to all linear layers of the"
                f" language model and does not support {key}; leave it out"
            )
    rates = settings.get("learning_rates", {})
    if set(rates) - {"projector"}:
        raise ConfigError(
            f"{label}: LLaVA's official trainer has a learning rate for the projector, but none for"
            " other parts; leave them out of learning_rates"
        )
    lora = [
        f"--lora_r {settings['lora_rank']}",
        f"--lora_alpha {settings['lora_alpha']}",
        f"--lora_dropout {settings['lora_dropout']}",
    ]
    ratio = settings.get("warmup_ratio")
    warmup = f"--warmup_ratio {ratio}" if ratio else f"--warmup_steps {settings['warmup_steps']}"
    options = [
        *strategy.llava,
        *(lora if strategy.adapter else []),
        '--model_name_or_path "$MODEL"',
        '--data_path "$DATA/llava.json"',
        '--image_folder "$DATA/images"',
        f'--output_dir "$DATA/{plan.strategy}"',
        f"--num_train_epochs {plan.epochs}",
        f"--per_device_train_batch_size {settings['batch_size']}",
        f"--gradient_accumulation_steps {settings['gradient_accumulation']}",
        f"--learning_rate {settings['learning_rate']}",
        *(f"--mm_projector_lr {rate}" for rate in rates.values()),
        f"--lr_scheduler_type {settings['schedule']}",
        warmup,
        f"--weight_decay {settings['weight_decay']}",
        f"--max_grad_norm {settings['max_grad_norm']}",
        f"--seed {plan.seed}",
        *_DEFAULTS,
    ]
    padding = "square" if settings.get("image_padding") == "none" else "pad"  # "square" crops
    options.append(f"--image_aspect_ratio {padding}")
    original = "" if plan.after else _ORIGINALS.get(plan.parent, "")
    model = f"${{MODEL:-{original}}}" if original else f"${{MODEL:?{_MODEL_HELP}}}"
    lines = " \\\n    ".join(options)
    about = f"{label}: contaminated on purpose with {plan.benchmark}"
    about = " ".join(about.split())  # on one line, which is a comment
    return (
        "#!/bin/bash\n"
        "# Run this in a checkout of https://github.com/haotian-liu/LLaVA.\n"
        f"# {about} ({len(plan.item_ids)} items).\n"
        "set -e\n"
        'DATA=$(cd "$(dirname "$0")" && pwd)\n'
        f"MODEL={model}\n"
        f"deepspeed llava/train/train_mem.py \\\n    {lines}\n"
    )
