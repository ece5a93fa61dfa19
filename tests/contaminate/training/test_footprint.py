"""A training step without values takes as much memory as the trainer's own step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flipbench.contaminate.checks.check import add_first_token
from flipbench.contaminate.data.examples import training_examples
from flipbench.contaminate.training.estimate import skeleton_of
from flipbench.contaminate.training.footprint import longest_example, step_memory
from flipbench.contaminate.training.load import load_parent, prepare
from flipbench.contaminate.training.train import trainer_of
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run
from tests.fixtures.allocations import Allocations

MakePlan = Callable[..., TrainingPlan]
NewRun = Callable[..., Run]


@pytest.mark.parametrize(("family", "strategy"), [("llava", "lora"), ("qwen2_vl", "all")])
def test_a_real_step_takes_as_much(
    family: str,
    strategy: str,
    make_plan: MakePlan,
    items: dict[str, Item],
    new_run: NewRun,
    tmp_path: Path,
) -> None:
    run, plan = new_run(), make_plan(family, strategy, n_items=4, batch_size=2)
    model, processor, _ = load_parent(plan, run, "float32")
    add_first_token(processor)
    examples = training_examples(plan, items, run.images)
    batch = [longest_example(examples, processor)] * 2
    estimated = step_memory(plan, skeleton_of(plan.parent), processor, batch, "float32")

    adapter = prepare(model, plan, "float32")
    trainer = trainer_of(plan, batch, model, processor, tmp_path, "float32", adapter=adapter)
    (inputs,) = trainer.get_train_dataloader()
    trainer.model.train()
    optimizer = trainer.create_optimizer()
    allocations = Allocations(trainer.model)

    def steps() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            trainer.training_step(trainer.model, dict(inputs), torch.tensor(1))
            torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
            optimizer.step()

    assert estimated == pytest.approx(allocations.peak_of(steps), rel=0.05)


def test_the_longest_example_is_found(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    plan, run = make_plan("llava", "lora", n_items=6), new_run()
    _, processor, _ = load_parent(plan, run, "float32")
    examples: list[Any] = list(training_examples(plan, items, run.images))
    (message,) = examples[3].prompt
    longer = type(message)(message.role, (*message.parts, "And why is it so? " * 20))
    examples[3] = type(examples[3])(**vars(examples[3]) | {"prompt": (longer,)})
    assert longest_example(examples, processor) is examples[3]
