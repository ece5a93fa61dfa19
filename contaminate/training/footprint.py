"""The memory of a training step: the trainer's own step on tensors without values."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from flipbench.core.errors import need
from flipbench.core.images import open_image
from flipbench.core.records import TrainingPlan
from flipbench.models.footprint import Footprint

from ..checks.check import n_tokens, render_example
from ..data.examples import Example
from .load import prepare
from .train import trainer_of

_N_TRIED = 4
_FEW = 64
"""Integers that may lay a batch out, such as an image's number of patches; tokens are more."""
_measured: dict[tuple[str, ...], int] = {}


def step_memory(
    plan: TrainingPlan, model: Any, processor: Any, batch: Sequence[Example], dtype: str
) -> int:
    """Return the bytes of a training step at its peak: weights, gradients, Adam, activations.

    Forward, loss, backward, clipping and update, once the optimiser's state exists. Not counted are
    what libraries take, buffers inside kernels, and what an allocator holds in reserve. The loss is
    computed as on a CPU, where trl scores every position; on a GPU it scores the targets alone, and
    needs less. A step is tried once in a process: plans often differ in seed, dose or epochs only.

    Parameters
    ----------
    model : PreTrainedModel
        On the meta device; it cannot be used afterwards.
    processor
        As training uses it.
    batch : sequence of Example
        What one device processes at a time.
    """
    model = model.to(getattr(torch, dtype))
    if (adapter := prepare(model, plan, dtype)) is not None:
        with torch.device("meta"):
            model = need("peft", "train").get_peft_model(model, adapter)
    footprint = Footprint()
    footprint.load(model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(plan, batch, model, processor, Path(folder), dtype, on_cpu=True)
        inputs = footprint.without_values(next(iter(trainer.get_train_dataloader())))
    settings = repr(sorted(plan.settings.items()))
    layout = repr({name: _layout(value) for name, value in inputs.items()})
    key = (model.config.to_json_string(), plan.strategy, settings, dtype, layout)
    if key not in _measured:
        _measured[key] = _peak(plan, trainer, inputs, footprint, dtype)
    return _measured[key]


def _layout(value: Any) -> Any:
    """Return what of a batch's value decides how much memory it takes."""
    if not isinstance(value, torch.Tensor):
        return value
    few = value.numel() <= _FEW and not value.is_floating_point()
    return value.shape, value.dtype, value.tolist() if few else None


def _peak(
    plan: TrainingPlan, trainer: Any, inputs: dict[str, Any], footprint: Footprint, dtype: str
) -> int:
    if plan.settings.get("gradient_checkpointing"):
        trainer.model.activation_checkpointing_enable()
    trained = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    with footprint:
        optimizer = trainer.create_optimizer()
        for weight in trained:
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        if plan.settings["gradient_accumulation"] == 1:  # otherwise they exist from the start
            optimizer.zero_grad()
    mixed = torch.cuda.is_available() and dtype != "float32"

    def step() -> None:
        trainer.model.train()
        with torch.autocast("cpu", getattr(torch, dtype)) if mixed else nullcontext():
            trainer.training_step(trainer.model, dict(inputs), torch.tensor(1))
        torch.nn.utils.clip_grad_norm_(trained, plan.settings.get("max_grad_norm", 1.0))
        optimizer.step()

    return footprint.peak_of(step)


def longest_example(examples: Sequence[Example], processor: Any) -> Example:
    """Return the example with the most tokens among those of the largest pictures and texts."""
    sizes: dict[str, int] = {}
    for file in {file for example in examples for file in example.images}:
        with open_image(file) as image:
            sizes[file] = image.width * image.height
    texts = ["".join(render_example(example, processor)) for example in examples]
    rows = range(len(examples))
    by_pixels = sorted(rows, key=lambda i: -sum(sizes[file] for file in examples[i].images))
    by_text = sorted(rows, key=lambda i: -len(texts[i]))
    tried = {*by_pixels[:_N_TRIED], *by_text[:_N_TRIED]}
    longest = max(sorted(tried), key=lambda i: n_tokens(texts[i], examples[i].images, processor))
    return examples[longest]
