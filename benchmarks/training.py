"""What a training costs over a bare trl script, and its peak memory against the plan's estimate.

    python benchmarks/training.py [--model shapes:llava] [--items 480] [--repeats 3]

Time of a step: from one step's begin to the next one's within an epoch, in a bare script with
trl's SFTTrainer (baseline) and in ours, on the same model, examples and settings, in one process,
in turn. ``tokens/s`` counts each example as long as the longest, ``TFLOP/s`` matrix products and
attention. ``--repeats 0`` leaves times out. Memory: peak resident memory (on a GPU:
allocated there) of a process that trains by each strategy, over what the process has before the
model is loaded, beside what ``contaminate --dry-run`` says.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset, Image, List
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForImageTextToText, PrinterCallback
from transformers.trainer_callback import CallbackHandler

from flipbench.config.experiment import ContaminateConfig, ModelConfig, StrategyConfig
from flipbench.contaminate.checks.check import write_out_first_token
from flipbench.contaminate.data.examples import training_examples
from flipbench.contaminate.plan import expand, verbatim
from flipbench.contaminate.strategies import lora_config
from flipbench.contaminate.training.estimate import TrainingCost, estimate, measured_speed
from flipbench.contaminate.training.train import train_plan
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.huggingface import resolve_path
from flipbench.models.vlm.processors import load_processor
from flipbench.prompting.prompts import LETTER_INSTRUCTION
from flipbench.shapes.benchmark import shapes_vqa

STRATEGIES = ("lora", "llm", "all")


def plan_of(model: str, train: str, items: Sequence[Item], seed: int, batch: int) -> TrainingPlan:
    """Return a plan of one epoch."""
    strategy = StrategyConfig(train=train, learning_rate=1e-4, batch_size=batch)  # type: ignore[arg-type]
    config = ContaminateConfig(strategies={train: strategy}, epochs=1)
    models = {"model": ModelConfig(path=model)}
    (plan,) = expand(config, models, [verbatim(items)], instruction=LETTER_INSTRUCTION, seed=seed)
    return plan


def bare(plan: TrainingPlan, items: Sequence[Item], run: Run, dtype: str) -> None:
    """Train as a script does that knows trl and peft and nothing of us."""
    path = resolve_path(plan.parent)
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=getattr(torch, dtype))
    processor = load_processor(path)
    write_out_first_token(processor)
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
        peft_config=lora_config(model, 8, 16, 0.0, None, None) if plan.strategy == "lora" else None,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def step_seconds(train: Callable[[], Any]) -> float:
    """Return the median time between the beginnings of two steps.

    Of the processor, where there is no GPU: other work on the machine changes that little.
    """
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    begun: list[float] = []
    on_step_begin = CallbackHandler.on_step_begin

    def note(self: CallbackHandler, *args: Any, **kwargs: Any) -> Any:
        begun.append(clock())
        return on_step_begin(self, *args, **kwargs)

    CallbackHandler.on_step_begin = note
    try:
        train()
    finally:
        CallbackHandler.on_step_begin = on_step_begin
    return statistics.median(b - a for a, b in zip(begun, begun[1:], strict=False))


def timed(args: argparse.Namespace, train: str) -> str:
    """Return a strategy's row: both ways in turn, after a warm-up that counts operations."""
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
                with FlopCounterMode(display=False) as counted:
                    base()
                said = estimated(plan, items, run, args.dtype)
            order = (ours, base) if seed % 2 else (base, ours)  # the first has a colder machine
            took = {way: step_seconds(way) for way in order}
            seconds.append((took[base], took[ours]))
    ratios = [ours / base for base, ours in seconds]
    base_s, ours_s = (statistics.median(column) for column in zip(*seconds, strict=True))
    reached = counted.get_total_flops() / said.n_steps / ours_s / 1e12
    share = f" ({reached / args.peak:.1%} of {args.peak:g})" if args.peak else ""
    return (
        f"| {train} | {1000 * base_s:.0f} | {1000 * ours_s:.0f} | {statistics.median(ratios):.3f}"
        f" ({min(ratios):.3f}–{max(ratios):.3f}) | {said.n_tokens * args.batch / ours_s:,.0f} |"
        f" {reached:.3g}{share} |"
    )


def peak_over_start(args: argparse.Namespace, train: str) -> tuple[float, float]:
    """Train in this process; return the memory that it took and the estimate's, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(folder)
        items = shapes_vqa(run.images, args.items)
        plan = plan_of(args.model, train, items, 0, args.batch)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before = _resident("VmRSS")
        train_plan(plan, {item.id: item for item in items}, run, dtype=args.dtype)
        took = _resident("VmHWM") - before
        if torch.cuda.is_available():
            took = torch.cuda.max_memory_allocated()
        return took, estimated(plan, items, run, args.dtype).memory


def estimated(plan: TrainingPlan, items: Sequence[Item], run: Run, dtype: str) -> TrainingCost:
    """Return what ``contaminate --dry-run`` says of a plan."""
    examples = training_examples(plan, {item.id: item for item in items}, run.images, ())
    return estimate(plan, examples, dtype=dtype, speed=measured_speed(dtype))


def _resident(which: str) -> int:
    """Return VmRSS or VmHWM (the most since it was reset) of this process, in bytes."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if which in line))


def main() -> None:
    """Time, measure, print two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="shapes:llava")
    parser.add_argument("--items", type=int, default=480)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES, choices=STRATEGIES)
    parser.add_argument("--peak", type=float, help="TFLOP/s of the chip, to say our share of it")
    parser.add_argument("--memory-of", choices=STRATEGIES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        print(json.dumps(peak_over_start(args, args.memory_of)))
        return
    if args.repeats:
        print("| strategy | bare trl, ms/step | ours, ms/step | ratio | ours, tokens/s | TFLOP/s |")
        print("|---|---:|---:|---:|---:|---:|")
        for train in args.strategies:
            print(timed(args, train), flush=True)
    print("\n| strategy | peak over the start, MiB | estimate, MiB |\n|---|---:|---:|")
    for train in args.strategies:
        command = [sys.executable, __file__, "--memory-of", train, "--model", args.model]
        command += ["--items", str(args.items), "--dtype", args.dtype, "--batch", str(args.batch)]
        peak, said = json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))
        print(f"| {train} | {peak / 2**20:.0f} | {said / 2**20:.0f} |")


if __name__ == "__main__":
    main()
