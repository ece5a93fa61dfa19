from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from flipbench.config.experiment import ContaminateConfig, ModelConfig, StrategyConfig
from flipbench.config.training import DataConfig
from flipbench.contaminate.data.regimes import RegimeData
from flipbench.contaminate.plan import TrainingJob, checkpoint_folder, expand, n_steps, steps_done
from flipbench.contaminate.training.checkpointing import NoteSteps
from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.records import Checkpoint, Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.checkpoints import fingerprint

STRATEGIES = {
    "LoRA": StrategyConfig(train="lora", learning_rate=0.004, lora_rank=16),
    "gentle LoRA": StrategyConfig(train="lora", learning_rate=0.001),
    "LLM": StrategyConfig(train="llm", learning_rate=0.0005, warmup_steps=10),
}


@pytest.fixture
def models(tiny_folders: dict[str, Path]) -> dict[str, ModelConfig]:
    return {name: ModelConfig(path=str(path)) for name, path in tiny_folders.items()}


def plans(models: dict[str, ModelConfig], items: list[Item], **changes: int) -> list[TrainingPlan]:
    grid = {"strategies": STRATEGIES, "epochs": 3, "copies": 2} | changes
    config = ContaminateConfig.model_validate(grid)
    regime = RegimeData("verbatim", DataConfig(), tuple(items))
    return expand(config, models, [regime], instruction="Just the letter.", seed=4)


def test_every_model_is_trained_with_every_strategy(
    models: dict[str, ModelConfig], shapes_items: list[Item]
) -> None:
    made = plans(models, shapes_items[:5])
    assert [(p.model, p.strategy) for p in made] == [
        (family, train) for family in models for train in ("lora", "lora", "llm")
    ]
    for plan in made:
        assert plan.parent == models[plan.model].path
        assert plan.parent_fingerprint == fingerprint(plan.parent, "float32")
        assert plan.item_ids == tuple(item.id for item in shapes_items[:5])
        assert (plan.copies, plan.epochs, plan.seed) == (2, 3, 4)
        assert (plan.prompt, plan.benchmark) == ("Just the letter.", "shapes-vqa")
    assert made[0].settings["lora_rank"] == 16 and made[0].settings["learning_rate"] == 0.004
    assert made[2].settings["warmup_steps"] == 10
    assert len({plan.id for plan in made}) == len({checkpoint_folder(p) for p in made}) == 6


def test_a_plan_s_id_covers_everything_that_affects_training(
    models: dict[str, ModelConfig], shapes_items: list[Item]
) -> None:
    (first, *_) = plans(models, shapes_items[:5])
    changed = [
        plans(models, shapes_items[:4])[0],
        plans(models, shapes_items[:5][::-1])[0],
        plans(models, shapes_items[:5], epochs=2)[0],
        plans(models, shapes_items[:5], copies=1)[0],
        plans(
            {"llava": models["llava"].model_copy(update={"dtype": "bfloat16"})}, shapes_items[:5]
        )[0],
    ]
    assert len({first.id, *(plan.id for plan in changed)}) == 1 + len(changed)
    assert plans(models, shapes_items[:5])[0] == first


def test_steps_are_known_to_other_processes_while_a_plan_trains(
    models: dict[str, ModelConfig], shapes_items: list[Item], tmp_path: Path
) -> None:
    (plan, other, *_) = plans(models, shapes_items[:5])
    run, seen = Run(tmp_path), list[int]()
    callback = NoteSteps(TrainingJob(plan, {}, run, "float32", seen.append).note_step)
    assert steps_done(plan, run, ()) == 0
    for is_main, step in ((True, 1), (False, 7), (True, 2)):
        state = SimpleNamespace(is_world_process_zero=is_main, global_step=step)
        callback.on_step_end(None, state, None)
    assert seen == [1, 2]
    assert (steps_done(plan, run, ()), steps_done(other, run, ())) == (2, 0)
    last = Checkpoint.id_for(plan_id=plan.id, epoch=plan.epochs)
    assert steps_done(plan, run, {last}) == n_steps(plan) == 3


def test_folder_names_are_safe(models: dict[str, ModelConfig], shapes_items: list[Item]) -> None:
    odd = {"my/model: v1.5 ☂": models["llava"]}
    folder = checkpoint_folder(plans(odd, shapes_items[:2])[0])
    assert folder.parent == Path("checkpoints")
    assert "/" not in folder.name and ":" not in folder.name and " " not in folder.name


def test_an_empty_training_set_is_refused(models: dict[str, ModelConfig]) -> None:
    with pytest.raises(DataError, match="no item to contaminate with"):
        plans(models, [])


def test_a_missing_parent_is_named(shapes_items: list[Item]) -> None:
    with pytest.raises(PrerequisiteError, match="no/such-model: no such checkpoint"):
        plans({"m": ModelConfig(path="no/such-model")}, shapes_items[:2])


def test_tables_distinguish_two_strategies_of_one_kind(
    models: dict[str, ModelConfig], shapes_items: list[Item]
) -> None:
    made = plans(models, shapes_items[:5])
    assert [plan.label for plan in made] == list(STRATEGIES) * len(models)
