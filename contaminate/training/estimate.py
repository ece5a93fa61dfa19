"""What a plan would take: steps, examples, memory, time and disk; said before anything is done."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText

from flipbench.core.errors import PrerequisiteError
from flipbench.core.records import TrainingPlan
from flipbench.models.vlm.huggingface import base_of, resolve_path
from flipbench.models.vlm.processors import load_processor

from ..checks.check import (
    check_examples,
    set_pixel_budget,
    write_out_first_token,
)
from ..data.examples import Example
from ..plan import n_examples, n_steps
from ..strategies import lora_pattern, modules_of, select_parameters, strategy_of
from .load import check_4bit

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SHARE_OF_PEAK = 0.35  # what a training reaches of a device's matrix products; rough
STEP_OVERHEAD = 0.05  # seconds: what a step costs however small the model is
_OTHER_FILES = 16_000_000  # tokenizer, configuration, card


@dataclass(frozen=True)
class Shape:
    """A model's size, read off its configuration without its weights.

    Attributes
    ----------
    n_parameters, n_language, n_trainable : int
        All, those of the language model, those that train (an adapter's are not in the first two).
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
    """What one plan takes. Bytes, seconds, and a count of steps; all but the counts are rough."""

    n_examples: int
    n_steps: int
    n_tokens: int
    shape: Shape
    memory: int
    disk: int
    scratch: int
    seconds: float


def shape_of(plan: TrainingPlan) -> Shape:
    """Build the plan's model without weights, and count."""
    model = skeleton_of(resolve_path(plan.parent), plan.settings.get("revision"))
    return shape_of_model(model, plan)


def skeleton_of(where: str, revision: str | None = None) -> Any:
    """Return a checkpoint's model without its weights."""
    base, at = base_of(where, revision)
    config = AutoConfig.from_pretrained(base, **at)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    model.tie_weights()
    return model


def shape_of_model(model: Any, plan: TrainingPlan) -> Shape:
    """Count a model's parameters, and those that the plan's strategy trains."""
    language = modules_of(model).language
    trained = set(select_parameters(model, plan.strategy))
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    n_trainable = sum(size for name, size in sizes.items() if name in trained)
    if strategy_of(plan.strategy).adapter:
        n_trainable = _adapter_size(model, plan.settings)
    text = model.config.get_text_config()
    return Shape(
        n_parameters=sum(sizes.values()),
        n_language=sum(size for name, size in sizes.items() if name.startswith(language)),
        n_trainable=n_trainable,
        n_layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        context=getattr(text, "max_position_embeddings", None),
    )


def _adapter_size(model: Any, settings: Mapping[str, Any]) -> int:
    pattern = lora_pattern(model, settings.get("lora_layers"), settings.get("lora_targets"))
    matched = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and re.fullmatch(pattern, name)
    ]
    rank = int(settings["lora_rank"])
    return sum(rank * (module.in_features + module.out_features) for module in matched)


def estimate(
    plan: TrainingPlan,
    examples: Sequence[Example],
    *,
    dtype: str,
    speed: float,
    merge: bool = False,
) -> TrainingCost:
    """Estimate a plan.

    Parameters
    ----------
    plan : TrainingPlan
    examples : sequence of Example
        One epoch's, or a sample of it: the longest of them sets the length T.
    dtype : str
        Precision of the weights.
    speed : float
        Floating-point operations a second, as `measured_speed` returns.
    merge : bool
        Whether adapters are also written merged.

    Notes
    -----
    Memory: weights (4 bits each in the language model with ``qlora``), gradients and two Adam
    moments of what trains (float32 on a GPU), and activations of 34 bytes x hidden x T x layers
    for each example in bfloat16 (Korthikanti et al., arXiv 2205.05198, section 4, attention not
    materialised), a tenth of it with gradient checkpointing, and three copies of the logits in
    float32. Time: 6 operations for each weight and token where weights train, 4 where an adapter
    does, at 35 % of the device's peak. Where the loss compares wordings, each paraphrase is a row
    of the batch. Disk: each epoch's checkpoint, and while it trains a resumable one with optimiser
    state, twice, since the new is written before the old goes.
    """
    strategy = strategy_of(plan.strategy)
    if strategy.four_bits:
        check_4bit()
    shape, settings = shape_of(plan), plan.settings
    base, at = base_of(resolve_path(plan.parent), settings.get("revision"))
    processor = load_processor(base, **at)
    set_pixel_budget(processor, settings.get("min_pixels"), settings.get("max_pixels"))
    write_out_first_token(processor)
    others = [other for example in examples for other in example.in_other_words()]
    n_tokens = check_examples([*examples, *others], processor, shape.context)
    rows = 1 + max(len(example.others) for example in examples)
    width, adapter = _BYTES[dtype], strategy.adapter
    weights = shape.n_parameters * width
    if strategy.four_bits:
        weights -= shape.n_language * width - shape.n_language * 9 // 16
    master = 4 if dtype == "float32" or adapter or torch.cuda.is_available() else width
    if not adapter:
        weights += shape.n_trainable * (master - width)
    batch = settings["batch_size"] * rows
    activations = 17 * width * shape.hidden * n_tokens * shape.n_layers * batch
    if settings.get("gradient_checkpointing"):
        activations //= 10
    logits = 3 * 4 * batch * n_tokens * shape.vocabulary
    memory = weights + 3 * master * shape.n_trainable + activations + logits
    merged = adapter and bool(plan.after)
    kept = 4 * shape.n_trainable if adapter and not merged else width * shape.n_parameters
    kept += _OTHER_FILES
    resumable = kept + 3 * master * shape.n_trainable
    if merge and adapter and not merged:
        kept += width * shape.n_parameters + _OTHER_FILES
    n_rows = n_examples(plan) * plan.epochs * rows
    flops = (4 if adapter else 6) * shape.n_language * n_tokens * n_rows
    steps = n_steps(plan)
    micro_steps = steps * settings["gradient_accumulation"]
    return TrainingCost(
        n_examples=n_examples(plan),
        n_steps=steps,
        n_tokens=n_tokens,
        shape=shape,
        memory=memory,
        disk=kept * plan.epochs,
        scratch=2 * resumable,
        seconds=flops / (speed * SHARE_OF_PEAK) + micro_steps * STEP_OVERHEAD,
    )


def measured_speed(dtype: str, size: int = 0) -> float:
    """Return the floating-point operations a second that this machine's matrix products reach."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    n = size or (8192 if device == "cuda" else 768)
    kind = getattr(torch, dtype) if device == "cuda" else torch.float32
    a = torch.ones(n, n, dtype=kind, device=device)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        (a @ a)[0, 0].item()
        best = min(best, time.perf_counter() - start)
    return float(2 * n**3 / best)


def check_disk(folder: Path, estimates: Iterable[TrainingCost]) -> int:
    """Return the bytes that the plans take at most; refuse where the disk has fewer.

    Raises
    ------
    PrerequisiteError
        Where the disk is too small.
    """
    listed = list(estimates)
    needed = sum(e.disk for e in listed) + max((e.scratch for e in listed), default=0)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise PrerequisiteError(
            f"{folder}: the checkpoints take up to {size_text(needed)}, and {size_text(free)} are"
            " free there; train fewer plans or epochs, use lora, or choose another run directory"
        )
    return needed


def table(rows: Sequence[tuple[TrainingPlan, TrainingCost, bool]]) -> str:
    """Return the grid for people: a line for each plan, (plan, estimate, done already)."""
    head = ["plan", "model", "strategy", "train", "benchmark", "items", "copies", "epochs"]
    head += ["examples", "steps"]
    head += ["weights", "memory", "time", "disk", ""]
    lines = [head]
    for plan, e, done in rows:
        line = [plan.id[:8], plan.model, plan.label, plan.strategy, plan.benchmark]
        line += [f"{len(plan.item_ids):,}", str(plan.copies), str(plan.epochs)]
        line += [f"{n_examples(plan) * plan.epochs:,}", f"{n_steps(plan):,}"]
        line += [f"{e.shape.n_trainable:,}", size_text(e.memory)]
        line += [time_text(e.seconds), size_text(e.disk)]
        lines.append([*line, "done" if done else ""])
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
    """Return a size for people.

    >>> size_text(1_500_000)
    '1.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.3g} TB"


def time_text(seconds: float) -> str:
    """Return a time for people; it is rough, so it has one unit.

    >>> time_text(5_000)
    '1.4 h'
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
