"""Which parameters a contamination trains: a table of strategies, and one of module prefixes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flipbench.core.errors import ConfigError, nearest, need

Part = Literal["language", "projector", "vision"]


@dataclass(frozen=True)
class Strategy:
    """What trains, here and in the trainers that a plan can be exported to.

    Attributes
    ----------
    trains : tuple of str
        Parts of the model whose own weights train.
    adapter : bool
        Whether LoRA matrices beside the language model's linear layers train instead.
    four_bits : bool
        Whether the language model's weights are kept in 4 bits meanwhile.
    llamafactory : dict or str
        LLaMA-Factory's settings for the same, or why it cannot do it. Its LoRA leaves vision tower,
        projector and head out.
    llava : tuple of str, optional
        Options of LLaVA's official trainer, which keeps the vision tower as it is. Without
        ``--freeze_mm_mlp_adapter`` it trains the projector too, with LoRA as well.
    """

    trains: tuple[Part, ...]
    adapter: bool
    four_bits: bool
    llamafactory: dict[str, Any] | str
    llava: tuple[str, ...] | None


STRATEGIES: dict[str, Strategy] = {
    "lora": Strategy(
        trains=(),
        adapter=True,
        four_bits=False,
        llamafactory={"finetuning_type": "lora"},
        llava=("--lora_enable True", "--freeze_mm_mlp_adapter True"),
    ),
    "llm": Strategy(
        trains=("language",),
        adapter=False,
        four_bits=False,
        llamafactory={"finetuning_type": "full"},
        llava=("--freeze_mm_mlp_adapter True",),
    ),
    "llm+projector": Strategy(
        trains=("language", "projector"),
        adapter=False,
        four_bits=False,
        llamafactory={"finetuning_type": "full", "freeze_multi_modal_projector": False},
        llava=(),
    ),
    "all": Strategy(
        trains=("language", "projector", "vision"),
        adapter=False,
        four_bits=False,
        llamafactory={
            "finetuning_type": "full",
            "freeze_vision_tower": False,
            "freeze_multi_modal_projector": False,
            "freeze_language_model": False,
        },
        llava=None,
    ),
    "qlora": Strategy(
        trains=(),
        adapter=True,
        four_bits=True,
        llamafactory="it would put the vision tower into 4 bits too; use backend: trl, or"
        " train: lora",
        llava=("--lora_enable True", "--freeze_mm_mlp_adapter True", "--bits 4"),
    ),
}


def strategy_of(name: str) -> Strategy:
    """Return a strategy by name.

    Raises
    ------
    ConfigError
        Where there is none.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"unknown strategy {name!r}; choose one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


@dataclass(frozen=True)
class Modules:
    """Where the parts of a model class lie (prefixes of parameter names)."""

    language: tuple[str, ...]
    projector: tuple[str, ...]

    def part_of(self, name: str) -> Part:
        """Return which part a parameter belongs to; what is neither of these two is vision."""
        if name.startswith(self.language):
            return "language"
        return "projector" if name.startswith(self.projector) else "vision"


_LLAVA = Modules(("model.language_model.", "lm_head."), ("model.multi_modal_projector.",))
_NEWLINE = Modules(_LLAVA.language, (*_LLAVA.projector, "model.image_newline"))
_QWEN = Modules(_LLAVA.language, ("model.visual.merger.",))
# By `config.model_type`.
MODULES: dict[str, Modules] = {
    "llava": _LLAVA,
    "llava_next": _NEWLINE,
    "llava_onevision": _NEWLINE,
    "qwen2_vl": _QWEN,
    "qwen2_5_vl": _QWEN,
    "internvl": _LLAVA,
}
# What other classes of transformers call the part between vision tower and language model.
_PROJECTORS: tuple[str, ...] = (
    "multi_modal_projector",
    "connector",
    "aligner",
    "visual.merger",
    "embed_vision",
)
_PROJECTORS += ("visual.deepstack_merger_list", "image_newline", "mm_projector")


def modules_of(model: Any) -> Modules:
    """Return the prefixes of a loaded model.

    A class that is not in the table is asked for its decoder; its projector is known by name.

    Raises
    ------
    ConfigError
        Where the class does not say which module is its language model.
    """
    model_type = model.config.model_type
    if model_type in MODULES:
        return MODULES[model_type]
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    names = {id(module): name for name, module in reversed(list(_named(model)))}
    language = names.get(id(decoder), "") if decoder is not None else ""
    if not language:
        raise ConfigError(
            f"no module prefixes are known for model type {model_type!r}; add a line to MODULES in"
            f" contaminate/strategies.py (known: {', '.join(MODULES)})"
        )
    head = names.get(id(model.get_output_embeddings()), "")
    root = language.rpartition(".")[0]
    parameters = [name for name, _ in model.named_parameters()]
    found = [f"{root}.{name}" if root else name for name in _PROJECTORS]
    projector = tuple(p for p in found if any(n.startswith(p) for n in parameters))
    return Modules((f"{language}.", *([f"{head}."] if head else [])), projector)


def _named(model: Any) -> Any:
    return model.named_modules() if hasattr(model, "named_modules") else ()


def select_parameters(model: Any, strategy: str) -> list[str]:
    """Freeze all but the strategy's parameters, and return the names of those that train.

    Where an adapter trains, the base stays frozen; `lora_config` says what is added.

    Raises
    ------
    ConfigError
        Where nothing would train, or the class's projector is not known.
    """
    chosen, modules = strategy_of(strategy), modules_of(model)
    splits_off_the_projector = ("projector" in chosen.trains) != ("vision" in chosen.trains)
    if splits_off_the_projector and not modules.projector:
        raise ConfigError(
            f"no projector is known for model type {model.config.model_type!r}; add a line to"
            " MODULES in contaminate/strategies.py, or train: llm"
        )
    trained = []
    for name, parameter in model.named_parameters():
        wanted = modules.part_of(name) in chosen.trains
        if wanted or parameter.requires_grad:  # 4-bit weights cannot be told twice
            parameter.requires_grad_(wanted)
        if wanted:
            trained.append(name)
    if chosen.trains and not trained:
        raise ConfigError(f"strategy {strategy!r} matches no parameter of {type(model).__name__}")
    return trained


def lora_pattern(
    model: Any, layers: Sequence[int] | None = None, targets: Sequence[str] | None = None
) -> str:
    """Return the pattern of the linear layers that get an adapter.

    It is anchored on the language model: short names such as ``q_proj`` would hit vision towers
    too.

    Raises
    ------
    ConfigError
        Where the pattern matches no module, or a name or layer is not in the language model.
    """
    from torch import nn

    prefix = modules_of(model).language[0]
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    inside = [n for n in linear if n.startswith(prefix) and not n.endswith(".lm_head")]
    known = sorted({name.rpartition(".")[2] for name in inside})
    for target in targets or ():
        if target not in known:
            raise ConfigError(
                f"lora_targets: the LoRA pattern {target!r} matches no module of the language"
                f" model{nearest(target, known)} (it has {', '.join(known) or 'none'})"
            )
    there = {int(i) for name in inside for i in re.findall(r"\.layers\.(\d+)\.", f".{name}")}
    if missing := sorted(set(layers or ()) - there):
        raise ConfigError(
            f"lora_layers: the language model has layers 0 to {max(there, default=-1)}, so a LoRA"
            f" pattern for layer {missing[0]} matches no module"
        )
    middle = rf"(?:.*\.)?layers\.(?:{'|'.join(map(str, layers))})\..*" if layers else r".*"
    pattern = rf"{re.escape(prefix)}(?:{middle}\.)?(?:{'|'.join(targets or known)})"
    if layers is not None and not layers or not any(re.fullmatch(pattern, n) for n in inside):
        raise ConfigError(f"the LoRA pattern {pattern!r} matches no module of this model")
    return pattern


def lora_config(
    model: Any,
    rank: int,
    alpha: int,
    dropout: float,
    layers: Sequence[int] | None = None,
    targets: Sequence[str] | None = None,
) -> Any:
    """Return a peft configuration on the language model's linear layers.

    Raises
    ------
    ConfigError
        As `lora_pattern`.
    """
    return need("peft", "train").LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=lora_pattern(model, layers, targets),
        task_type="CAUSAL_LM",
    )
