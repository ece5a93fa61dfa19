"""Estimates of a plan's steps, memory, time and disk before anything is trained."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flipbench.core.errors import PrerequisiteError
from flipbench.core.images import open_image
from flipbench.core.records import TrainingPlan
from flipbench.models.estimates import BYTES, SHARE_OF_PEAK, VLMShape, size_text, time_text
from flipbench.models.vlm.checkpoints import resolve_path
from flipbench.models.vlm.processors import load_processor

from ..checks.check import add_first_token, check_examples, set_pixel_budget
from ..data.examples import Example
from ..plan import loading_options, n_examples, n_steps
from ..strategies import lora_pattern, modules_of, select_parameters, strategy_of
from .load import skeleton_of

STEP_OVERHEAD = 0.05  # seconds per step, however small the model is
_OTHER_FILES = 16_000_000  # tokenizer, configuration, card


@dataclass(frozen=True)
class TrainingCost:
    """The cost of one plan, rough.

    Attributes
    ----------
    n_tokens : int
        Of the longest example.
    n_weights, n_trainable : int
        An adapter's are trainable, and not among the model's.
    memory, disk, scratch : int
        Bytes of a step at its peak, of all checkpoints, and of those to resume from.
    seconds : float
        Of all epochs.
    """

    n_tokens: int
    n_weights: int
    n_trainable: int
    memory: int
    disk: int
    scratch: int
    seconds: float


def trainable_weights(model: Any, plan: TrainingPlan) -> dict[str, int]:
    """Return the number of trainable weights of each part, and of the adapter."""
    modules, sizes = modules_of(model), Counter[str]()
    trained_names = set(select_parameters(model, plan.strategy))
    for name, parameter in model.named_parameters():
        if name in trained_names:
            sizes[modules.part_of(name)] += parameter.numel()
    if strategy_of(plan.strategy).adapter:
        layers = _adapted_layers(model, plan)
        rank = int(plan.settings["lora_rank"])
        sizes["adapter"] = rank * sum(m.in_features + m.out_features for m in layers)
    return dict(sizes)


def _adapted_layers(model: Any, plan: TrainingPlan) -> list[nn.Linear]:
    pattern = lora_pattern(model, plan.settings)
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and re.fullmatch(pattern, name)
    ]


def estimate(
    plan: TrainingPlan,
    examples: Sequence[Example],
    *,
    dtype: str,
    speed: float,
    merge: bool = False,
) -> TrainingCost:
    """Estimate the cost of a plan.

    Parameters
    ----------
    examples : sequence of Example
        One epoch's, or a sample of it; the longest one has T tokens.
    dtype : str
        Precision of the weights.
    speed : float
        Floating-point operations per second, from `flipbench.models.estimates.measured_speed`.
    merge : bool
        Whether adapters are also saved merged.

    Notes
    -----
    Memory: `flipbench.models.estimates.VLMShape.training_bytes` of a batch of the longest example;
    with ``qlora``, the language model's weights count 4 bits each, and without sharding over
    devices. The loss is that of a CPU, where trl scores every position; on a GPU it scores the
    targets alone, and needs less.
    Time: 6 operations per weight and token, 4 with an adapter, at 35 % of the device's peak. With
    consistency training, each paraphrase is another row of the batch. Disk: each epoch's
    checkpoint, and during training two resumable ones with optimiser state, because the new one is
    written before the old one is deleted.
    """
    strategy, settings = strategy_of(plan.strategy), plan.settings
    model = skeleton_of(resolve_path(plan.parent), settings.get("revision"))
    shape, n_trainable = VLMShape.of(model), trainable_weights(model, plan)
    processor = load_processor(resolve_path(plan.parent), **loading_options(plan))
    set_pixel_budget(processor, settings)
    add_first_token(processor)
    n_tokens = check_examples(examples, processor, shape.context)
    rows = 1 + max(len(example.others) for example in examples)
    n_at_once = settings["batch_size"] * rows
    width, adapter = BYTES[dtype], strategy.adapter
    master = 4 if dtype == "float32" or adapter or torch.cuda.is_available() else width
    copied = _adapted_layers(model, plan) if adapter and settings["lora_dropout"] else []
    memory = shape.training_bytes(
        n_trainable,
        n_tokens * n_at_once,
        _most_patches(examples, processor, shape) * n_at_once,
        dtype=dtype,
        master=master,
        accumulates=settings["gradient_accumulation"] > 1,
        checkpointed=settings.get("gradient_checkpointing", False),
        adapter_inputs=sum(module.in_features for module in copied),
    )
    if strategy.four_bits:
        memory -= shape.language.n_weights * (16 * width - 9) // 16
    n_all = sum(n_trainable.values())
    saves_adapter = adapter and not plan.after
    full = width * shape.n_weights + _OTHER_FILES
    checkpoint = 4 * n_all + _OTHER_FILES if saves_adapter else full
    resumable = checkpoint + 3 * master * n_all
    if merge and saves_adapter:
        checkpoint += full
    n_rows = n_examples(plan) * plan.epochs * rows
    flops = (4 if adapter else 6) * shape.language.n_weights * n_tokens * n_rows
    micro_steps = n_steps(plan) * settings["gradient_accumulation"]
    return TrainingCost(
        n_tokens=n_tokens,
        n_weights=shape.n_weights,
        n_trainable=n_all,
        memory=memory,
        disk=checkpoint * plan.epochs,
        scratch=2 * resumable,
        seconds=flops / (speed * SHARE_OF_PEAK) + micro_steps * STEP_OVERHEAD,
    )


def _most_patches(examples: Sequence[Example], processor: Any, shape: VLMShape) -> int:
    """Return the tokens of the vision tower for the example with the largest images."""
    files = {file for example in examples for file in example.images}
    n_pixels: dict[str, int] = {}
    for file in files:
        with open_image(file) as image:
            n_pixels[file] = image.width * image.height
    largest = max(examples, key=lambda e: sum(n_pixels[file] for file in e.images))
    if not largest.images:
        return 0
    images = [open_image(file).convert("RGB") for file in largest.images]
    return shape.n_patches(processor.image_processor(images, return_tensors="pt"))


def check_disk(folder: Path, estimates: Iterable[TrainingCost]) -> int:
    """Return the disk space that the plans need at most, in bytes.

    Raises
    ------
    PrerequisiteError
        If less is free.
    """
    costs = list(estimates)
    n_bytes = sum(cost.disk for cost in costs) + max((cost.scratch for cost in costs), default=0)
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise PrerequisiteError(
            f"{folder}: the checkpoints take up to {size_text(n_bytes)}, but only {size_text(free)}"
            " are free; train fewer plans or epochs, use lora, or choose another run directory"
        )
    return n_bytes


def table(rows: Sequence[tuple[TrainingPlan, TrainingCost, bool]]) -> str:
    """Return the grid as a text table, from rows of (plan, estimate, whether it is done)."""
    head = ["plan", "model", "strategy", "train", "benchmark", "items", "copies", "epochs"]
    head += ["examples", "steps", "weights", "memory", "time", "disk", ""]
    lines = [head]
    for plan, cost, is_done in rows:
        line = [plan.id[:8], plan.model, plan.label, plan.strategy, plan.benchmark]
        line += [f"{len(plan.item_ids):,}", str(plan.copies), str(plan.epochs)]
        line += [f"{n_examples(plan) * plan.epochs:,}", f"{n_steps(plan):,}"]
        line += [f"{cost.n_trainable:,}", size_text(cost.memory), time_text(cost.seconds)]
        line += [size_text(cost.disk), "done" if is_done else ""]
        lines.append(line)
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    right_aligned = range(5, 14)
    return "\n".join(
        "  ".join(
            cell.rjust(widths[i]) if i in right_aligned else cell.ljust(widths[i])
            for i, cell in enumerate(line)
        ).rstrip()
        for line in lines
    )
