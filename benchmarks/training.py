"""What a training costs over a bare trl script, and its peak memory against the plan's estimate.

    python benchmarks/training.py [--model shapes:llava] [--items 96] [--repeats 3]

Time of a step: from one step's begin to the next one's within an epoch, in a bare script with
trl's SFTTrainer (baseline) and in ours, on the same model, examples and settings, in one process,
in turn. Memory: peak resident memory of a process that trains by each strategy, over what the
process has before the model is loaded, beside what ``contaminate --dry-run`` says.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import trl
from datasets import Dataset, Image, List
from transformers import AutoModelForImageTextToText, PrinterCallback
from transformers.trainer_callback import CallbackHandler

from flipbench.config import ContaminateConfig, ModelConfig, StrategyConfig
from flipbench.contaminate.check import write_out_first_token
from flipbench.contaminate.estimate import estimate, measured_speed
from flipbench.contaminate.examples import training_examples
from flipbench.contaminate.plan import expand, verbatim
from flipbench.contaminate.strategies import lora_config
from flipbench.contaminate.train import carry_out
from flipbench.models.huggingface import resolve_path
from flipbench.models.processors import load_processor
from flipbench.prompts import LETTER_INSTRUCTION
from flipbench.records import Item, TrainingPlan
from flipbench.run import Run
from flipbench.shapes.benchmark import shapes_vqa

STRATEGIES = ("lora", "llm", "all")
BATCH = 16


def plan_of(model: str, train: str, items: Sequence[Item], seed: int) -> TrainingPlan:
    """Return a plan of one epoch."""
    strategy = StrategyConfig(train=train, learning_rate=1e-4, batch_size=BATCH)  # type: ignore[arg-type]
    config = ContaminateConfig(strategies={train: strategy}, epochs=1)
    models = {"model": ModelConfig(path=model)}
    (plan,) = expand(config, models, [verbatim(items)], instruction=LETTER_INSTRUCTION, seed=seed)
    return plan


def bare(plan: TrainingPlan, items: Sequence[Item], run: Run) -> None:
    """Train as a script does that knows trl and peft and nothing of us."""
    path = resolve_path(plan.parent)
    model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    processor = load_processor(path)
    write_out_first_token(processor)
    examples = training_examples(plan, {item.id: item for item in items}, run.images, ())
    dataset = Dataset.from_list([example.row() for example in examples])
    trainer = trl.SFTTrainer(
        model=model,
        args=trl.SFTConfig(
            output_dir=str(run.path / "bare"),
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            learning_rate=1e-4,
            lr_scheduler_type="constant_with_warmup",
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
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
    """Return the median time between the beginnings of two steps."""
    begun: list[float] = []
    on_step_begin = CallbackHandler.on_step_begin

    def note(self: CallbackHandler, *args: Any, **kwargs: Any) -> Any:
        begun.append(time.perf_counter())
        return on_step_begin(self, *args, **kwargs)

    CallbackHandler.on_step_begin = note
    try:
        train()
    finally:
        CallbackHandler.on_step_begin = on_step_begin
    return statistics.median(b - a for a, b in zip(begun, begun[1:], strict=False))


def peak_over_start(model: str, train: str, n_items: int) -> float:
    """Train in this process and return the memory that it took, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(folder)
        items = shapes_vqa(run.images, n_items)
        plan = plan_of(model, train, items, 0)
        before = _peak()
        carry_out(plan, {item.id: item for item in items}, run)
        return _peak() - before


def estimated(model: str, train: str, n_items: int) -> float:
    """Return the memory that the plan's estimate says, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(folder)
        items = shapes_vqa(run.images, n_items)
        plan = plan_of(model, train, items, 0)
        examples = training_examples(plan, {item.id: item for item in items}, run.images, ())
        return estimate(plan, examples, dtype="float32", speed=measured_speed("float32")).memory


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Time, measure, print two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="shapes:llava")
    parser.add_argument("--items", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-of", choices=STRATEGIES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of:
        print(json.dumps(peak_over_start(args.model, args.memory_of, args.items)))
        return
    print("| strategy | bare trl, ms a step | ours, ms a step | ratio |\n|---|---:|---:|---:|")
    for train in STRATEGIES:
        seconds: list[tuple[float, float]] = []
        for seed in range(args.repeats):
            with tempfile.TemporaryDirectory() as folder:
                run = Run(folder)
                items = shapes_vqa(run.images, args.items)
                plan = plan_of(args.model, train, items, seed)
                by_id = {item.id: item for item in items}
                ways = [partial(bare, plan, items, run), partial(carry_out, plan, by_id, run)]
                order = (1, 0) if seed % 2 else (0, 1)  # who comes first has the colder machine
                took = {which: step_seconds(ways[which]) for which in order}
                seconds.append((took[0], took[1]))
        ratios = [ours / base for base, ours in seconds]
        base, ours = (1000 * statistics.median(column) for column in zip(*seconds, strict=True))
        print(
            f"| {train} | {base:.0f} | {ours:.0f} | {statistics.median(ratios):.3f}"
            f" ({min(ratios):.3f}–{max(ratios):.3f}) |"
        )
    print("\n| strategy | peak over the start, MiB | estimate, MiB |\n|---|---:|---:|")
    for train in STRATEGIES:
        command = [sys.executable, __file__, "--memory-of", train, "--model", args.model]
        command += ["--items", str(args.items)]
        peak = json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))
        said = estimated(args.model, train, args.items)
        print(f"| {train} | {peak / 2**20:.0f} | {said / 2**20:.0f} |")


if __name__ == "__main__":
    main()
