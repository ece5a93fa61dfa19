from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from flipbench.config.experiment import StrategyConfig
from flipbench.contaminate.strategies import (
    STRATEGIES,
    lora_config,
    modules_of,
    select_parameters,
)
from flipbench.core.errors import ConfigError
from studies.tiny_models.tiny import FAMILIES, build

pytestmark = pytest.mark.slow

LORA = {"lora_rank": 4, "lora_alpha": 8, "lora_dropout": 0.0}


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    """Return a model of its own: selecting parameters changes it."""
    return build(request.param, ["a few words"])[0]


def names_in(module: Any, model: Any) -> set[str]:
    """Return the model's names of a module's parameters: by identity, not by prefix."""
    ids = {id(parameter) for parameter in module.parameters()}
    return {name for name, p in model.named_parameters() if id(p) in ids}


def parts(model: Any) -> dict[str, set[str]]:
    """Return the parameters of the three parts, taken from the classes themselves."""
    language = names_in(model.model.language_model, model) | names_in(model.lm_head, model)
    if hasattr(model.model, "visual"):
        projector = names_in(model.model.visual.merger, model)
        vision = names_in(model.model.visual, model) - projector
    else:
        projector = names_in(model.model.multi_modal_projector, model)
        vision = names_in(model.model.vision_tower, model)
    return {"language": language, "projector": projector, "vision": vision}


@pytest.mark.parametrize(
    ("strategy", "trained"),
    [
        ("lora", []),
        ("llm", ["language"]),
        ("llm+projector", ["language", "projector"]),
        ("all", ["language", "projector", "vision"]),
        ("lora+projector", ["projector"]),
    ],
)
def test_a_strategy_trains_only_its_own_parts(
    model: Any, strategy: Any, trained: list[str]
) -> None:
    of = parts(model)
    everything = {name for name, _ in model.named_parameters()}
    assert set().union(*of.values()) == everything
    assert sum(map(len, of.values())) == len(everything)
    expected = set().union(*(of[part] for part in trained))
    for parameter in model.parameters():  # whatever was set before does not matter
        parameter.requires_grad_(strategy == "lora")
    assert set(select_parameters(model, strategy)) == expected
    assert {name for name, p in model.named_parameters() if p.requires_grad} == expected


def test_lora_adapts_exactly_the_linear_layers_of_the_language_model(model: Any) -> None:
    import peft

    linear = {
        name
        for name, module in model.model.language_model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    adapted = peft.get_peft_model(model, lora_config(model, LORA))
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    found = {re.sub(r".*language_model\.|\.lora_[AB].*", "", name) for name in trained}
    assert found == linear and len(linear) == 7 * model.config.text_config.num_hidden_layers
    assert not any("vis" in name or "projector" in name or "merger" in name for name in trained)
    layers = [module for module in adapted.modules() if hasattr(module, "lora_A")]
    assert len(layers) == len(linear)
    assert {(layer.r["default"], layer.scaling["default"]) for layer in layers} == {(4, 2.0)}


def test_every_configurable_strategy_is_implemented(model: Any) -> None:
    for strategy in STRATEGIES:
        assert StrategyConfig(train=strategy, learning_rate=1).train == strategy
        select_parameters(model, strategy)
    with pytest.raises(ConfigError, match="unknown strategy 'vision'.*lora, llm"):
        select_parameters(model, "vision")
    with pytest.raises(ValidationError, match="'lora\\+projector' or 'qlora'"):
        StrategyConfig(train="vision", learning_rate=1)


def test_a_new_strategy_is_one_new_row(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(STRATEGIES["all"], trains=("vision",))
    monkeypatch.setitem(STRATEGIES, "tower", row)
    assert StrategyConfig(train="tower", learning_rate=1).train == "tower"
    assert set(select_parameters(model, "tower")) == parts(model)["vision"]


def test_the_documentation_has_every_strategy() -> None:
    text = (Path(__file__).parents[2] / "docs" / "contamination.md").read_text()
    assert [name for name in STRATEGIES if f"| `{name}` |" not in text] == []


def test_an_unknown_model_class_is_refused_with_the_place_to_add_it() -> None:
    strange = SimpleNamespace(config=SimpleNamespace(model_type="idefics9"))
    with pytest.raises(ConfigError, match="'idefics9'; add a line to MODULES"):
        modules_of(strange)


def test_a_strategy_that_would_train_nothing_is_refused() -> None:
    class Bare(torch.nn.Linear):
        config = SimpleNamespace(model_type="llava")

    with pytest.raises(ConfigError, match="matches no parameter of Bare"):
        select_parameters(Bare(2, 2), "llm")
    with pytest.raises(ConfigError, match="LoRA pattern .* matches no module"):
        lora_config(Bare(2, 2), LORA)
