"""Which parameters a contamination trains: one table of module prefixes, five strategies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from flipbench.errors import ConfigError, need

Strategy = Literal["lora", "llm", "llm+projector", "all"]
STRATEGIES: tuple[Strategy, ...] = ("lora", "llm", "llm+projector", "all")


@dataclass(frozen=True)
class Modules:
    """Where the parts of a model class lie (prefixes of parameter names)."""

    language: tuple[str, ...]
    projector: tuple[str, ...]


# By `config.model_type`. Whatever is neither language model nor projector is the vision tower.
MODULES: dict[str, Modules] = {
    "llava": Modules(("model.language_model.", "lm_head."), ("model.multi_modal_projector.",)),
    "llava_next": Modules(("model.language_model.", "lm_head."), ("model.multi_modal_projector.",)),
    "llava_onevision": Modules(
        ("model.language_model.", "lm_head."), ("model.multi_modal_projector.",)
    ),
    "qwen2_vl": Modules(("model.language_model.", "lm_head."), ("model.visual.merger.",)),
    "qwen2_5_vl": Modules(("model.language_model.", "lm_head."), ("model.visual.merger.",)),
    "internvl": Modules(("model.language_model.", "lm_head."), ("model.multi_modal_projector.",)),
}
# Anchored on the language model: short names such as "q_proj" would hit vision towers too.
LORA_TARGETS = (
    r"model\.language_model\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
)


def modules_of(model: Any) -> Modules:
    """Return the prefixes of a loaded model.

    Raises
    ------
    ConfigError
        Where the class is not in the table.
    """
    model_type = model.config.model_type
    if model_type not in MODULES:
        raise ConfigError(
            f"no module prefixes are known for model type {model_type!r}; add a line to MODULES in"
            f" contaminate/strategies.py (known: {', '.join(MODULES)})"
        )
    return MODULES[model_type]


def select_parameters(model: Any, strategy: Strategy) -> list[str]:
    """Freeze all but the strategy's parameters, and return the names of those that train.

    For ``lora`` the base stays frozen; `lora_config` says what is added.

    Raises
    ------
    ConfigError
        Where nothing would train.
    """
    modules = modules_of(model)
    prefixes: dict[str, tuple[str, ...]] = {
        "lora": (),
        "llm": modules.language,
        "llm+projector": modules.language + modules.projector,
        "all": ("",),
    }
    if strategy not in prefixes:
        raise ConfigError(f"unknown strategy {strategy!r}; choose one of {', '.join(STRATEGIES)}")
    trained = []
    for name, parameter in model.named_parameters():
        wanted = name.startswith(prefixes[strategy]) if prefixes[strategy] else False
        parameter.requires_grad_(wanted)
        if wanted:
            trained.append(name)
    if strategy != "lora" and not trained:
        raise ConfigError(f"strategy {strategy!r} matches no parameter of {type(model).__name__}")
    return trained


def lora_config(model: Any, rank: int, alpha: int, dropout: float) -> Any:
    """Return a peft configuration on the language model's linear layers.

    Raises
    ------
    ConfigError
        Where the pattern matches no module.
    """
    if not any(re.fullmatch(LORA_TARGETS, name) for name, _ in model.named_modules()):
        raise ConfigError(f"the LoRA pattern {LORA_TARGETS!r} matches no module of this model")
    return need("peft", "train").LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=LORA_TARGETS,
        task_type="CAUSAL_LM",
    )
