"""What the table says against what a training really takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flipbench.contaminate.checks.card import read_card
from flipbench.contaminate.data.examples import training_examples
from flipbench.contaminate.plan import n_examples, n_steps, n_warmup
from flipbench.contaminate.training.estimate import (
    check_disk,
    estimate,
    table,
    trainable_weights,
)
from flipbench.contaminate.training.load import skeleton_of
from flipbench.contaminate.training.train import train_plan
from flipbench.core.errors import PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.estimates import size_text
from flipbench.models.vlm.loading import load_model

MakePlan = Callable[..., TrainingPlan]
NewRun = Callable[..., Run]


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
@pytest.mark.parametrize("strategy", ["lora", "llm+projector"])
def test_estimated_counts_and_disk_match_the_training(
    family: str, strategy: str, make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    run = new_run()
    plan = make_plan(
        family, strategy, n_items=7, copies=3, batch_size=4, gradient_accumulation=2, epochs=2
    )
    examples = training_examples(plan, items, run.images)
    cost = estimate(plan, examples, dtype="float32", speed=1e10)
    checkpoints = train_plan(plan, items, run)
    card = read_card(run.path / checkpoints[-1].path)
    assert n_examples(plan) == card["training"]["n_examples"] == 21
    assert n_steps(plan) == card["training"]["n_steps"] == 6
    assert cost.n_trainable == card["n_trainable"]
    model = load_model(plan.parent, "float32")
    assert cost.n_weights == sum(p.numel() for p in model.parameters())
    weights = sum(
        file.stat().st_size
        for c in checkpoints
        for file in (run.path / c.path).iterdir()
        if file.suffix == ".safetensors"
    )
    files = sum(f.stat().st_size for c in checkpoints for f in (run.path / c.path).iterdir())
    width = 4 * (cost.n_trainable if strategy == "lora" else cost.n_weights)
    assert weights == pytest.approx(2 * width, rel=0.05)
    assert cost.disk >= files
    assert cost.memory > width and cost.seconds > 0


def test_steps_and_warm_up(make_plan: MakePlan) -> None:
    plan = make_plan("llava", "llm", n_items=30, copies=5, batch_size=4, gradient_accumulation=8)
    assert n_steps(plan) == 5  # 150 examples in 38 batches
    assert n_warmup(plan) == 0
    ratio = make_plan("llava", "llm", n_items=30, copies=20, warmup_ratio=0.03, batch_size=4)
    assert (n_steps(ratio), n_warmup(ratio)) == (150, 5)


def test_a_disk_that_is_too_small_is_refused(
    make_plan: MakePlan,
    items: dict[str, Item],
    shapes_store: ImageStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = make_plan("llava", "all", n_items=4, epochs=3)
    examples = training_examples(plan, items, shapes_store)
    cost = estimate(plan, examples, dtype="float32", speed=1e10)
    needed = check_disk(tmp_path, [cost, cost])
    assert needed == 2 * cost.disk + cost.scratch

    class Usage:
        free = needed - 1

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    with pytest.raises(PrerequisiteError, match=f"take up to {size_text(needed)}"):
        check_disk(tmp_path, [cost, cost])
    check_disk(tmp_path, [cost])


def test_memory_grows_with_what_trains_and_shrinks_with_checkpointing(
    make_plan: MakePlan,
    items: dict[str, Item],
    shapes_store: ImageStore,
) -> None:
    def memory(strategy: str, times: int = 1, **settings: Any) -> int:
        plan = make_plan("qwen2_vl", strategy, n_items=4, **settings)
        asked = {
            key: item.model_copy(update={"question": times * item.question})
            for key, item in items.items()
        }
        examples = training_examples(plan, asked, shapes_store)
        return estimate(plan, examples, dtype="float32", speed=1e10).memory

    ladder = [memory(s) for s in ("lora", "llm", "llm+projector", "all")]
    assert ladder == sorted(ladder) and len(set(ladder)) == 4
    assert memory("all", gradient_checkpointing=True) < memory("all")
    assert memory("all", batch_size=32) > memory("all")
    assert memory("all", times=9) > memory("all"), "longer texts"
    plans = [make_plan("qwen2_vl", "lora", **layers) for layers in ({"lora_layers": [0]}, {})]
    fewer, more = (trainable_weights(skeleton_of(plan.parent), plan) for plan in plans)
    assert 0 < fewer["adapter"] < more["adapter"]


def test_the_table_names_every_plan(
    make_plan: MakePlan, items: dict[str, Item], shapes_store: ImageStore
) -> None:
    plans = [make_plan("llava", s, n_items=4, copies=2) for s in ("lora", "llm")]
    rows = []
    for plan in plans:
        examples = training_examples(plan, items, shapes_store)
        rows.append((plan, estimate(plan, examples, dtype="float32", speed=1e10), plan is plans[1]))
    head, first, second = table(rows).splitlines()
    assert head.split() == (
        "plan model strategy train benchmark items copies epochs examples steps weights memory"
        " time disk".split()
    )
    assert first.startswith(plans[0].id[:8]) and second.endswith("done")
    assert f"{rows[0][1].n_trainable:,}" in first
