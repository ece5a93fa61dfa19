"""Step time compared with a bare trl script.

    python benchmarks/training.py [--model shapes:llava] [--items 480] [--repeats 3]

From the start of one step to the start of the next within an epoch, in a bare script with trl's
SFTTrainer (baseline) and in flipbench, alternating in one process, with the same model, examples
and settings. ``tokens/s`` counts each example as long as the longest, ``TFLOP/s`` matrix products
and attention. Memory is measured by memory/estimates.py.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import trl
from datasets import Dataset, Image, List
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForImageTextToText, PrinterCallback
from transformers.trainer_callback import CallbackHandler

from flipbench.config.experiment import ContaminateConfig, ModelConfig, StrategyConfig
from flipbench.config.training import DataConfig
from flipbench.contaminate.checks.check import add_first_token
from flipbench.contaminate.data.examples import training_examples
from flipbench.contaminate.data.regimes import RegimeData
from flipbench.contaminate.plan import expand, n_steps
from flipbench.contaminate.strategies import lora_config
from flipbench.contaminate.training.estimate import TrainingCost, estimate
from flipbench.contaminate.training.train import train_plan
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.estimates import measured_speed
from flipbench.models.vlm.checkpoints import resolve_path
from flipbench.models.vlm.processors import load_processor
from flipbench.prompting.prompts import LETTER_INSTRUCTION
from flipbench.shapes.benchmark import shapes_vqa

STRATEGIES = ("lora", "llm", "all")


def plan_of(model: str, train: str, items: Sequence[Item], seed: int, batch: int) -> TrainingPlan:
    """Return a plan of one epoch."""
    strategy = StrategyConfig.model_validate(
        {"train": train, "learning_rate": 1e-4, "batch_size": batch}
    )
    config = ContaminateConfig(strategies={train: strategy}, epochs=1)
    models = {"model": ModelConfig(path=model)}
    regime = RegimeData("verbatim", DataConfig(), tuple(items))
    (plan,) = expand(config, models, [regime], instruction=LETTER_INSTRUCTION, seed=seed)
    return plan


def bare(plan: TrainingPlan, items: Sequence[Item], run: Run, dtype: str) -> None:
    """Train with trl and peft alone."""
    path = resolve_path(plan.parent)
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=getattr(torch, dtype))
    processor = load_processor(path)
    add_first_token(processor)
    examples = training_examples(plan, {item.id: item for item in items}, run.images, ())
    dataset = Dataset.from_list([example.row() for example in examples])
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(
            output_dir=str(run.path / "bare"),
            num_train_epochs=1,
            per_device_train_batch_size=plan.settings["batch_size"],
            learning_rate=1e-4,
            lr_scheduler_type="constant_with_warmup",
            use_cpu=not torch.cuda.is_available(),
            bf16=dtype == "bfloat16" and torch.cuda.is_available(),
            max_length=None,
            completion_only_loss=True,
            save_strategy="no",
            logging_steps=1,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            gradient_checkpointing=False,
        ),
        train_dataset=dataset.cast_column("images", List(Image())),
        processing_class=processor,
        peft_config=lora_config(model, plan.settings) if plan.strategy == "lora" else None,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def step_seconds(train: Callable[[], Any]) -> float:
    """Return the median time between the starts of consecutive steps.

    Without a GPU this is CPU time, which other work on the machine hardly changes.
    """
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    starts: list[float] = []
    on_step_begin = CallbackHandler.on_step_begin

    def record_start(self: CallbackHandler, *args: Any, **kwargs: Any) -> Any:
        starts.append(clock())
        return on_step_begin(self, *args, **kwargs)

    CallbackHandler.on_step_begin = record_start
    try:
        train()
    finally:
        CallbackHandler.on_step_begin = on_step_begin
    return statistics.median(b - a for a, b in itertools.pairwise(starts))


def timed(args: argparse.Namespace, train: str) -> str:
    """Return a strategy's row: both methods alternate, after a warm-up that counts operations."""
    seconds: list[tuple[float, float]] = []
    for seed in range(args.repeats):
        with tempfile.TemporaryDirectory() as folder:
            run = Run(folder)
            items = shapes_vqa(run.images, args.items)
            plan = plan_of(args.model, train, items, seed, args.batch)
            by_id = {item.id: item for item in items}
            base = partial(bare, plan, items, run, args.dtype)
            ours = partial(train_plan, plan, by_id, run, dtype=args.dtype)
            if seed == 0:
                with FlopCounterMode(display=False) as counter:
                    base()
                cost = estimated(plan, items, run, args.dtype)
            order = (ours, base) if seed % 2 else (base, ours)  # the machine warms up
            times = {method: step_seconds(method) for method in order}
            seconds.append((times[base], times[ours]))
    ratios = [ours / base for base, ours in seconds]
    base_s, ours_s = (statistics.median(column) for column in zip(*seconds, strict=True))
    reached = counter.get_total_flops() / n_steps(plan) / ours_s / 1e12
    share = f" ({reached / args.peak:.1%} of {args.peak:g})" if args.peak else ""
    return (
        f"| {train} | {1000 * base_s:.0f} | {1000 * ours_s:.0f} | {statistics.median(ratios):.3f}"
        f" ({min(ratios):.3f}–{max(ratios):.3f}) | {cost.n_tokens * args.batch / ours_s:,.0f} |"
        f" {reached:.3g}{share} |"
    )


def estimated(plan: TrainingPlan, items: Sequence[Item], run: Run, dtype: str) -> TrainingCost:
    """Return the estimate of ``contaminate --dry-run`` for a plan."""
    examples = training_examples(plan, {item.id: item for item in items}, run.images, ())
    return estimate(plan, examples, dtype=dtype, speed=measured_speed(dtype))


def main() -> None:
    """Measure times and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="shapes:llava")
    parser.add_argument("--items", type=int, default=480)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    parser.add_argument("--peak", type=float, help="the chip's peak TFLOP/s, to print our share")
    args = parser.parse_args()
    print("| strategy | bare trl, ms/step | ours, ms/step | ratio | ours, tokens/s | TFLOP/s |")
    print("|---|---:|---:|---:|---:|---:|")
    for train in args.strategies:
        print(timed(args, train), flush=True)


if __name__ == "__main__":
    main()
