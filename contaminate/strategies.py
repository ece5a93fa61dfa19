"""Which parameters each strategy trains, and the module prefixes of each model class."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
        Whether LoRA adapters on the language model's linear layers train, too.
    llamafactory : dict or str
        LLaMA-Factory's equivalent settings, or why it has none. Its LoRA skips vision tower,
        projector and head.
    llava : tuple of str, optional
        Options of LLaVA's official trainer, which never trains the vision tower. Without
        ``--freeze_mm_mlp_adapter`` it also trains the projector, even with LoRA.
    four_bits : bool
        Whether the language model's weights are quantised to 4 bits during training.
    """

    trains: tuple[Part, ...]
    llamafactory: dict[str, Any] | str
    llava: tuple[str, ...] | None
    adapter: bool = False
    four_bits: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the model that change, by their own weights or by adapters."""
        return ("language", *self.trains) if self.adapter else self.trains


STRATEGIES: dict[str, Strategy] = {
    "lora": Strategy(
        trains=(),
        llamafactory={"finetuning_type": "lora"},
        llava=("--lora_enable True", "--freeze_mm_mlp_adapter True"),
        adapter=True,
    ),
    "llm": Strategy(
        trains=("language",),
        llamafactory={"finetuning_type": "full"},
        llava=("--freeze_mm_mlp_adapter True",),
    ),
    "llm+projector": Strategy(
        trains=("language", "projector"),
        llamafactory={"finetuning_type": "full", "freeze_multi_modal_projector": False},
        llava=(),
    ),
    "all": Strategy(
        trains=("language", "projector", "vision"),
        llamafactory={
            "finetuning_type": "full",
            "freeze_vision_tower": False,
            "freeze_multi_modal_projector": False,
            "freeze_language_model": False,
        },
        llava=None,
    ),
    "lora+projector": Strategy(
        trains=("projector",),
        llamafactory="it saves the projector in another form; use backend: trl, or train: lora",
        llava=("--lora_enable True",),
        adapter=True,
    ),
    "qlora": Strategy(
        trains=(),
        llamafactory="it would quantise the vision tower too; use backend: trl, or train: lora",
        llava=("--lora_enable True", "--freeze_mm_mlp_adapter True", "--bits 4"),
        adapter=True,
        four_bits=True,
    ),
}


def strategy_of(name: str) -> Strategy:
    """Return a strategy by name.

    Raises
    ------
    ConfigError
        If there is no such strategy.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"unknown strategy {name!r}; choose one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


@dataclass(frozen=True)
class Modules:
    """Parameter-name prefixes of the parts of a model class."""

    language: tuple[str, ...]
    projector: tuple[str, ...]

    def part_of(self, name: str) -> Part:
        """Return the part that a parameter belongs to; anything else is vision."""
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
# Names of the projector in other model classes of transformers.
_PROJECTORS = (
    *("multi_modal_projector", "connector", "aligner", "visual.merger", "embed_vision"),
    *("visual.deepstack_merger_list", "image_newline", "mm_projector"),
)


def modules_of(model: Any) -> Modules:
    """Return a model's parameter-name prefixes.

    For a class missing from the table, the language model is its ``get_decoder()``, and the
    projector is recognised by name.

    Raises
    ------
    ConfigError
        If the language model cannot be identified.
    """
    model_type = model.config.model_type
    if model_type in MODULES:
        return MODULES[model_type]
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    named_modules = list(model.named_modules()) if hasattr(model, "named_modules") else []
    names = {id(module): name for name, module in reversed(named_modules)}
    language = names.get(id(decoder), "") if decoder is not None else ""
    if not language:
        raise ConfigError(
            f"no module prefixes are known for model type {model_type!r}; add a line to MODULES in"
            f" contaminate/strategies.py (known: {', '.join(MODULES)})"
        )
    head = names.get(id(model.get_output_embeddings()), "")
    root = language.rpartition(".")[0]
    parameters = [name for name, _ in model.named_parameters()]
    candidates = [f"{root}.{name}" if root else name for name in _PROJECTORS]
    projector = tuple(p for p in candidates if any(n.startswith(p) for n in parameters))
    return Modules((f"{language}.", *([f"{head}."] if head else [])), projector)


def select_parameters(model: Any, strategy: str) -> list[str]:
    """Freeze all but the strategy's parameters, and return the names of those that train.

    For adapters, which are not among them, see `lora_config`.

    Raises
    ------
    ConfigError
        If nothing would train, or the strategy needs a projector that cannot be identified.
    """
    trains, modules = strategy_of(strategy).trains, modules_of(model)
    if ("projector" in trains) != ("vision" in trains) and not modules.projector:
        raise ConfigError(
            f"no projector is known for model type {model.config.model_type!r}; add a line to"
            " MODULES in contaminate/strategies.py, or train: llm"
        )
    trainable = []
    for name, parameter in model.named_parameters():
        trains_it = modules.part_of(name) in trains
        if trains_it or parameter.requires_grad:  # 4-bit weights refuse a second requires_grad_
            parameter.requires_grad_(trains_it)
        if trains_it:
            trainable.append(name)
    if trains and not trainable:
        raise ConfigError(f"strategy {strategy!r} matches no parameter of {type(model).__name__}")
    return trainable


def lora_pattern(model: Any, settings: Mapping[str, Any]) -> str:
    """Return a regular expression for the names of the linear layers that get an adapter.

    It is anchored on the language model, because short names such as ``q_proj`` also match layers
    of vision towers.

    Raises
    ------
    ConfigError
        If the pattern matches no module, or a name or layer is not in the language model.
    """
    from torch import nn

    layers, targets = settings.get("lora_layers"), settings.get("lora_targets")
    prefix = modules_of(model).language[0]
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    linears = [n for n in linear if n.startswith(prefix) and not n.endswith(".lm_head")]
    layer_names = sorted({name.rpartition(".")[2] for name in linears})
    for target in targets or ():
        if target not in layer_names:
            raise ConfigError(
                f"lora_targets: the LoRA pattern {target!r} matches no module of the language"
                f" model{nearest(target, layer_names)} (it has {', '.join(layer_names) or 'none'})"
            )
    indices = {int(i) for name in linears for i in re.findall(r"\.layers\.(\d+)\.", f".{name}")}
    if absent := sorted(set(layers or ()) - indices):
        raise ConfigError(
            f"lora_layers: the language model has layers 0 to {max(indices, default=-1)}, so a LoRA"
            f" pattern for layer {absent[0]} matches no module"
        )
    middle = rf"(?:.*\.)?layers\.(?:{'|'.join(map(str, layers))})\..*" if layers else r".*"
    pattern = rf"{re.escape(prefix)}(?:{middle}\.)?(?:{'|'.join(targets or layer_names)})"
    if layers is not None and not layers or not any(re.fullmatch(pattern, n) for n in linears):
        raise ConfigError(f"the LoRA pattern {pattern!r} matches no module of this model")
    return pattern


def lora_config(model: Any, settings: Mapping[str, Any], strategy: str = "lora") -> Any:
    """Return a peft configuration for the language model's linear layers.

    The modules whose own weights the strategy trains are saved with the adapters.

    Raises
    ------
    ConfigError
        As `lora_pattern`; if a projector has weights outside modules, which peft cannot save.
    """
    modules = dict(model.named_modules())
    trained_modules = sorted(
        {
            prefix.rstrip(".")
            for part in strategy_of(strategy).trains
            for prefix in getattr(modules_of(model), part)
        }
    )
    if absent := [name for name in trained_modules if name not in modules]:
        raise ConfigError(
            f"train: {strategy} cannot save {absent[0]} of {model.config.model_type!r} beside"
            " adapters, since it is no module; use train: lora or llm+projector"
        )
    return need("peft", "train").LoraConfig(
        r=settings["lora_rank"],
        lora_alpha=settings["lora_alpha"],
        lora_dropout=settings["lora_dropout"],
        target_modules=lora_pattern(model, settings),
        modules_to_save=trained_modules or None,
        task_type="CAUSAL_LM",
    )
