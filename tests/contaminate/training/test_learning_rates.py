"""A projector that trains beside adapters, and parts of a model with their own learning rates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from flipbench.config.training import StrategyConfig
from flipbench.contaminate.backends.llamafactory_data import check_plan
from flipbench.contaminate.backends.llava_json import training_command
from flipbench.contaminate.checks.card import read_card
from flipbench.contaminate.strategies import lora_config, modules_of
from flipbench.contaminate.training.checkpointing import merged
from flipbench.contaminate.training.train import train_plan
from flipbench.core.errors import ConfigError
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.loading import load_model
from studies.tiny_models.tiny import FAMILIES, build

MakePlan = Callable[..., TrainingPlan]
NewRun = Callable[..., Run]
RATES = {"language": 1e-3, "projector": 1e-4, "vision": 1e-5}
N_STEPS = 2


def largest_steps(before: Any, after: Any) -> dict[str, float]:
    """Return each part's largest change of a weight, per step."""
    modules, old = modules_of(before), dict(before.named_parameters())
    steps: dict[str, float] = {}
    for name, new in after.named_parameters():
        change = float((new - old[name]).detach().abs().max()) / N_STEPS
        part = modules.part_of(name)
        steps[part] = max(steps.get(part, 0.0), change)
    return steps


def trained(
    family: str, train: str, make_plan: MakePlan, items: dict[str, Item], run: Run, **settings: Any
) -> tuple[TrainingPlan, Path]:
    plan = make_plan(family, train, n_items=16, batch_size=8, **settings)
    (checkpoint,) = train_plan(plan, items, run)
    return plan, run.path / checkpoint.path


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_part_has_its_own_learning_rate(
    family: str, make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    """A step of Adam changes a weight by about the learning rate, the first exactly by it."""
    rates = {part: RATES[part] for part in ("projector", "vision")}
    plan, folder = trained(
        family, "all", make_plan, items, new_run(),
        learning_rate=RATES["language"], learning_rates=rates,
    )  # fmt: skip
    steps = largest_steps(load_model(plan.parent, "float32"), load_model(str(folder), "float32"))
    for part, rate in RATES.items():
        assert 0.5 * rate < steps[part] < 1.1 * rate, part
    assert read_card(folder)["settings"]["learning_rates"] == rates


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_projector_trains_beside_adapters(
    family: str, make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    plan, folder = trained(
        family, "lora+projector", make_plan, items, new_run(), learning_rate=1e-2,
        learning_rates={"projector": RATES["projector"]},
    )  # fmt: skip
    parent, child = load_model(plan.parent, "float32"), load_model(str(folder), "float32")
    steps = largest_steps(parent, child)
    assert 0.5 * RATES["projector"] < steps["projector"] < 1.1 * RATES["projector"]
    assert steps["language"] > 0 and steps["vision"] == 0
    card = read_card(folder)
    projector = sum("modules_to_save" in name for name in card["trainable"])
    n_weights = sum(
        n.startswith(modules_of(parent).projector) for n, _ in parent.named_parameters()
    )
    assert projector == n_weights > 0
    assert all("lora_" in n or "modules_to_save" in n for n in card["trainable"])
    asked = HuggingFaceVLM(str(folder)).model
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        torch.testing.assert_close(asked(input_ids=ids).logits, child(input_ids=ids).logits)
    shown = {n: p for n, p in asked.named_parameters() if ".modules_to_save." in n}
    merged_weights = dict(child.named_parameters())
    for name, weight in shown.items():
        plain = name.replace(".modules_to_save.default", "")
        assert torch.equal(weight, merged_weights[plain])


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_and_projector_merge_as_peft_merges_them(family: str) -> None:
    import peft

    model = build(family, ["a few words"])[0]
    settings = {"lora_rank": 2, "lora_alpha": 4, "lora_dropout": 0.0}
    adapted = peft.get_peft_model(model, lora_config(model, settings, "lora+projector"))
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
    ours = merged(adapted, {k: v.clone() for k, v in adapted.state_dict().items()})
    theirs = adapted.merge_and_unload().state_dict()
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight)


def test_a_frozen_part_has_no_learning_rate() -> None:
    with pytest.raises(
        ValidationError, match="learning_rates.vision: train: lora.projector changes"
    ):
        StrategyConfig(train="lora+projector", learning_rate=1, learning_rates={"vision": 1})
    with pytest.raises(ValidationError, match="learning_rates.projector: train: lora changes only"):
        StrategyConfig(train="lora", learning_rate=1, learning_rates={"projector": 1})


def test_plans_with_one_learning_rate_keep_their_ids(make_plan: MakePlan) -> None:
    assert "learning_rates" not in make_plan("llava", "lora").settings


def test_other_trainers_get_or_refuse_the_rates(make_plan: MakePlan) -> None:
    beside = make_plan("llava", "lora+projector", learning_rates={"projector": 2e-5})
    command = training_command(beside)
    assert "--mm_projector_lr 2e-05" in command and "--lora_enable True" in command
    assert "freeze_mm_mlp_adapter" not in command
    with pytest.raises(ConfigError, match="use backend: trl, or train: lora"):
        check_plan(beside)
    slow = make_plan("llava", "llm+projector", learning_rates={"language": 1e-6})
    with pytest.raises(ConfigError, match="none for other parts"):
        training_command(slow)
    with pytest.raises(ConfigError, match="LLaMA-Factory has one learning rate"):
        check_plan(slow)
