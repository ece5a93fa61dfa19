"""Estimates of a plan's steps, memory, time and disk before anything is trained."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText

from flipbench.core.errors import PrerequisiteError
from flipbench.core.records import TrainingPlan
from flipbench.models.vlm.checkpoints import base_of, resolve_path
from flipbench.models.vlm.processors import load_processor

from ..checks.check import add_first_token, check_examples, context_of, set_pixel_budget
from ..data.examples import Example
from ..plan import loaded_as, n_examples, n_steps
from ..strategies import lora_pattern, modules_of, select_parameters, strategy_of
from .footprint import longest_example, step_memory

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SHARE_OF_PEAK = 0.35  # of the speed of large matrix products, in training; rough
STEP_OVERHEAD = 0.05  # seconds per step, however small the model is
_OTHER_FILES = 16_000_000  # tokenizer, configuration, card


@dataclass(frozen=True)
class Shape:
    """A model's size, from its configuration alone.

    Attributes
    ----------
    n_parameters, n_language, n_trainable : int
        All, the language model's, the trainable ones (an adapter's are in these only).
    n_layers, hidden, vocabulary, context : int
        Of the language model.
    """

    n_parameters: int
    n_language: int
    n_trainable: int
    n_layers: int
    hidden: int
    vocabulary: int
    context: int | None


@dataclass(frozen=True)
class TrainingCost:
    """The cost of one plan: tokens of the longest example, bytes, and seconds, which are rough."""

    n_tokens: int
    shape: Shape
    memory: int
    disk: int
    scratch: int
    seconds: float


def shape_of(plan: TrainingPlan) -> Shape:
    """Build the plan's model without weights, and count its parameters."""
    model = skeleton_of(resolve_path(plan.parent), plan.settings.get("revision"))
    language = modules_of(model).language
    trained = set(select_parameters(model, plan.strategy))
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    n_trainable = sum(size for name, size in sizes.items() if name in trained)
    if strategy_of(plan.strategy).adapter:
        n_trainable += _adapter_size(model, plan.settings)
    text = model.config.get_text_config()
    return Shape(
        n_parameters=sum(sizes.values()),
        n_language=sum(size for name, size in sizes.items() if name.startswith(language)),
        n_trainable=n_trainable,
        n_layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        context=context_of(model.config),
    )


def skeleton_of(where: str, revision: str | None = None) -> Any:
    """Return a checkpoint's model on the meta device, without weights."""
    base, at = base_of(where, revision)
    config = AutoConfig.from_pretrained(base, **at)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    model.tie_weights()
    return model


def _adapter_size(model: Any, settings: Mapping[str, Any]) -> int:
    pattern = lora_pattern(model, settings)
    return int(settings["lora_rank"]) * sum(
        module.in_features + module.out_features
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and re.fullmatch(pattern, name)
    )


def estimate(
    plan: TrainingPlan,
    examples: Sequence[Example],
    *,
    dtype: str,
    speed: float,
    merge: bool = False,
    with_memory: bool = True,
) -> TrainingCost:
    """Estimate the cost of a plan.

    Parameters
    ----------
    examples : sequence of Example
        One epoch's, or a sample of it; the longest one has T tokens.
    dtype : str
        Precision of the weights.
    speed : float
        Floating-point operations per second, from `measured_speed`.
    merge : bool
        Whether adapters are also saved merged.
    with_memory : bool
        Whether to estimate memory, which takes seconds; otherwise it is 0.

    Notes
    -----
    Memory: see `step_memory`; with ``qlora``, the language model's weights count 4 bits each, and
    without sharding over devices.
    Time: 6 operations per weight and token, 4 with an adapter, at 35 % of the device's peak. With
    consistency training, each paraphrase is another row of the batch. Disk: each epoch's
    checkpoint, and during training two resumable ones with optimiser state, because the new one is
    written before the old one is deleted.
    """
    strategy = strategy_of(plan.strategy)
    shape, settings = shape_of(plan), plan.settings
    processor = load_processor(resolve_path(plan.parent), **loaded_as(plan))
    set_pixel_budget(processor, settings)
    add_first_token(processor)
    n_tokens = check_examples(examples, processor, shape.context)
    rows = 1 + max(len(example.others) for example in examples)
    width, adapter = _BYTES[dtype], strategy.adapter
    memory = 0
    if with_memory:
        model = skeleton_of(resolve_path(plan.parent), settings.get("revision"))
        batch = [longest_example(examples, processor)] * settings["batch_size"]
        memory = step_memory(plan, model, processor, batch, dtype)
        if strategy.four_bits:
            memory -= shape.n_language * width - shape.n_language * 9 // 16
    master = 4 if dtype == "float32" or adapter or torch.cuda.is_available() else width
    saves_adapter = adapter and not plan.after
    full = width * shape.n_parameters + _OTHER_FILES
    checkpoint = 4 * shape.n_trainable + _OTHER_FILES if saves_adapter else full
    resumable = checkpoint + 3 * master * shape.n_trainable
    if merge and saves_adapter:
        checkpoint += full
    n_rows = n_examples(plan) * plan.epochs * rows
    flops = (4 if adapter else 6) * shape.n_language * n_tokens * n_rows
    micro_steps = n_steps(plan) * settings["gradient_accumulation"]
    return TrainingCost(
        n_tokens=n_tokens,
        shape=shape,
        memory=memory,
        disk=checkpoint * plan.epochs,
        scratch=2 * resumable,
        seconds=flops / (speed * SHARE_OF_PEAK) + micro_steps * STEP_OVERHEAD,
    )


@cache
def measured_speed(dtype: str, size: int = 0) -> float:
    """Measure, once, the floating-point operations per second of this machine's matrix products."""
    on_gpu = torch.cuda.is_available()
    n = size or (8192 if on_gpu else 768)
    precision = getattr(torch, dtype) if on_gpu else torch.float32
    a = torch.ones(n, n, dtype=precision, device="cuda" if on_gpu else "cpu")
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        (a @ a)[0, 0].item()
        best = min(best, time.perf_counter() - start)
    return float(2 * n**3 / best)


def check_disk(folder: Path, estimates: Iterable[TrainingCost]) -> int:
    """Return the disk space that the plans need at most, in bytes.

    Raises
    ------
    PrerequisiteError
        If less is free.
    """
    costs = list(estimates)
    needed = sum(cost.disk for cost in costs) + max((cost.scratch for cost in costs), default=0)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise PrerequisiteError(
            f"{folder}: the checkpoints take up to {size_text(needed)}, but only {size_text(free)}"
            " are free; train fewer plans or epochs, use lora, or choose another run directory"
        )
    return needed


def table(rows: Sequence[tuple[TrainingPlan, TrainingCost, bool]]) -> str:
    """Return the grid as a text table, from rows of (plan, estimate, whether it is done)."""
    head = ["plan", "model", "strategy", "train", "benchmark", "items", "copies", "epochs"]
    head += ["examples", "steps", "weights", "memory", "time", "disk", ""]
    lines = [head]
    for plan, cost, done in rows:
        line = [plan.id[:8], plan.model, plan.label, plan.strategy, plan.benchmark]
        line += [f"{len(plan.item_ids):,}", str(plan.copies), str(plan.epochs)]
        line += [f"{n_examples(plan) * plan.epochs:,}", f"{n_steps(plan):,}"]
        line += [
            f"{cost.shape.n_trainable:,}",
            size_text(cost.memory) if cost.memory else "not estimated",
        ]
        line += [time_text(cost.seconds), size_text(cost.disk), "done" if done else ""]
        lines.append(line)
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    right = range(5, 14)
    return "\n".join(
        "  ".join(
            cell.rjust(widths[i]) if i in right else cell.ljust(widths[i])
            for i, cell in enumerate(line)
        ).rstrip()
        for line in lines
    )


def size_text(n_bytes: float) -> str:
    """Format a size in bytes.

    >>> size_text(1_500_000)
    '1.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.3g} TB"


def time_text(seconds: float) -> str:
    """Format a rough duration in a single unit.

    >>> time_text(5_000)
    '1.4 h'
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"
