"""Put an adapter's matrices into its base, each where it belongs, also under older names."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file

from flipbench.core.errors import DataError, PrerequisiteError, need
from flipbench.models.loading_report import LoadingReport
from flipbench.models.vlm.checkpoints import ADAPTER_WEIGHTS, check_card, first_line

_PREFIX = "base_model.model."
_WRAPPERS = re.compile(
    r"(^|(?<=\.))(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)
_REMEDY = (
    "give the base that it was trained on, or save the adapter again, whole (under DeepSpeed ZeRO-3"
    " its weights must be gathered first)"
)


@dataclass(frozen=True)
class Placement:
    """How many of an adapter's matrices have a place in its base, some under an older name."""

    n_placed: int
    n_stored: int
    n_renamed: int = 0

    def __str__(self) -> str:
        """Return the counts in words."""
        older = f", {self.n_renamed} of them renamed" * bool(self.n_renamed)
        return f"{self.n_placed} of {self.n_stored} matrices have a place{older}"


def attach_adapter(model: Any, folder: str, *, only_shapes: bool = False) -> tuple[Any, Placement]:
    """Insert an adapter's matrices into ``model``, which it changes.

    Names of transformers before 4.52 (Qwen2-VL, LLaVA and their kin) are renamed, as are those with
    an adapter's own name or a wrapper's inside. ``only_shapes`` is for a base on the meta device.

    Raises
    ------
    DataError
        If a matrix has no place, a place no matrix, or a shape differs; or if the adapter's card
        names another architecture than that of its base.
    PrerequisiteError
        If peft is missing, or it is an adapter that prepends tokens to the prompt.
    """
    peft = need("peft", "train")
    _check_architecture(model, folder)
    file = Path(folder) / ADAPTER_WEIGHTS
    if not file.exists():
        raise DataError(f"{file}: missing; copy the adapter again, saved as safetensors")
    with warnings.catch_warnings():
        # our mark of a contaminated adapter, which peft takes for a setting of a newer version
        warnings.filterwarnings("ignore", r"Unexpected keyword arguments \['flipbench'\]")
        # peft asks transformers for a property by its old name
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated")
        config = peft.PeftConfig.from_pretrained(folder)
        if config.is_prompt_learning:
            raise PrerequisiteError(
                f"{folder}: adapters of type {config.peft_type.value}, which prepend tokens to the"
                " prompt, are not supported; use LoRA or a similar method"
            )
        config.inference_mode = True
        _translate_patterns(config, model, _stored_names(file))
        try:
            adapted = peft.PeftModel(model, config, low_cpu_mem_usage=only_shapes)
        except ValueError as error:
            if "not found in the base model" not in str(error):
                raise
            raise DataError(
                f"{file}: no layer that it adapts is in its base {model.name_or_path}"
                f" ({first_line(error)}); {_REMEDY}"
            ) from error
        placement = _place(peft, adapted, file, only_shapes)
    return adapted, placement


def _check_architecture(model: Any, folder: str) -> None:
    base = list(model.config.architectures or [type(model).__name__])
    if (architectures := check_card(Path(folder)).get("architectures", base)) != base:
        raise DataError(
            f"{folder}: an adapter for {architectures}, but its base {model.name_or_path} is"
            f" {base}; peft would ignore what does not fit, so provide the right base"
        )


def _stored_names(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as tensors:
        return [_unwrapped_name(name) for name in tensors.keys()]  # noqa: SIM118


def _place(peft: Any, adapted: Any, file: Path, only_shapes: bool) -> Placement:
    """Load the file's tensors; refuse those without a place, and places without one."""
    places = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
    stored_tensors, current = load_file(file), CurrentNames(places)
    tensors, duplicates, n_renamed = dict[str, Any](), list[str](), 0
    for name, tensor in stored_tensors.items():
        renamed = current.of(name)
        if renamed in tensors:
            duplicates.append(name)
            continue
        n_renamed += renamed != name
        tensors[renamed] = tensor
    shapes = {
        name: (tensor.shape, places[name].shape)
        for name, tensor in tensors.items()
        if name in places and tensor.shape != places[name].shape
    }
    absent = sorted(places.keys() - tensors.keys())
    if shapes or absent or duplicates:
        odd = sorted(name for name in tensors.keys() - places.keys())
        report = LoadingReport.read(
            {
                "missing_keys": absent,
                "unexpected_keys": [*odd, *duplicates],
                "mismatched_keys": [(name, *pair) for name, pair in shapes.items()],
            }
        )
    else:
        result = peft.set_peft_model_state_dict(adapted, tensors, low_cpu_mem_usage=only_shapes)
        report = LoadingReport(unexpected=tuple(sorted(result.unexpected_keys)))
    n_placed = len(stored_tensors) - len(report.unexpected) - len(report.mismatched)
    placement = Placement(n_placed, len(stored_tensors), n_renamed)
    if problems := str(report):
        base = adapted.get_base_model().name_or_path
        raise DataError(f"{file}: not an adapter for {base}: {placement}; {problems}; {_REMEDY}")
    return placement


class CurrentNames:
    """Finds the name that a stored tensor has today, among those that peft would give it."""

    def __init__(self, current_names: Iterable[str]) -> None:
        self._expected = set(current_names)
        self._current: dict[str, str] = {}
        doubtful = set[str]()
        for name in sorted(self._expected):
            plain = name.removeprefix(_PREFIX)
            for older in (plain, *older_names(plain)):
                doubtful |= {older} if self._current.get(older, name) != name else set()
                self._current.setdefault(older, name)
        for name in doubtful - {name.removeprefix(_PREFIX) for name in self._expected}:
            del self._current[name]

    def of(self, stored_name: str) -> str:
        """Return the current name, or ``stored_name`` if it has none.

        >>> names = CurrentNames(["base_model.model.model.language_model.layers.0.q.lora_A.weight"])
        >>> names.of("base_model.model.model.layers.0.q.lora_A.mine.weight")
        'base_model.model.model.language_model.layers.0.q.lora_A.weight'
        """
        if stored_name in self._expected:
            return stored_name
        plain = _unwrapped_name(stored_name)
        *stem, second, last_part = ".".join(["", "", plain]).split(".")
        without = (stem + [last_part], stem + [second], stem)  # the adapter's name inside
        saved = re.sub(r"\.modules_to_save\.[^.]+", "", plain)
        candidates = (plain, *(".".join(parts).lstrip(".") for parts in without), saved)
        return next(
            (self._current[name] for name in candidates if name in self._current), stored_name
        )


def _unwrapped_name(name: str) -> str:
    """Return a stored name without what wraps the model."""
    return _WRAPPERS.sub("", name).removeprefix(_PREFIX)


def older_names(name: str) -> Iterator[str]:
    """Yield the names that a module or tensor of a vision-language model had in older versions.

    Until transformers 4.52, language model and vision tower stood side by side, without the common
    ``model``; until 5, CLIP's tower had a ``vision_model`` inside.

    >>> list(older_names("model.language_model.layers.0"))
    ['language_model.layers.0', 'language_model.model.layers.0', 'model.layers.0']
    """
    if name.startswith("model."):
        yield (bare := name.removeprefix("model."))
        if bare.startswith("language_model."):
            tail = bare.removeprefix("language_model.")
            yield f"language_model.model.{tail}"
            yield f"model.{tail}"
        if bare.startswith("vision_tower."):
            tail = bare.removeprefix("vision_tower.")
            yield f"vision_tower.vision_model.{tail}"
            yield f"model.vision_tower.vision_model.{tail}"
    elif name.startswith("lm_head"):
        yield f"language_model.{name}"


def _translate_patterns(config: Any, model: Any, stored_names: Iterable[str]) -> None:
    """Translate an older version's module names in an adapter's configuration."""
    modules = [name for name, _ in model.named_modules()]
    names, current = set(modules), {older: name for name in modules for older in older_names(name)}
    layers = {name.partition(".lora_")[0] for name in stored_names if ".lora_" in name}
    if not any(layer not in names and layer in current for layer in layers):
        return
    if isinstance(config.target_modules, str) and config.target_modules != "all-linear":
        excluded = getattr(config, "exclude_modules", None)
        config.target_modules = [
            name
            for name in modules
            if _matches_older_name(config.target_modules, name)
            and not (isinstance(excluded, str) and _matches_older_name(excluded, name))
        ]
        config.exclude_modules = None if isinstance(excluded, str) else excluded
    for field in ("rank_pattern", "alpha_pattern"):
        patterns: Mapping[str, Any] = getattr(config, field, None) or {}
        if patterns:
            setattr(config, field, {current.get(k, k): value for k, value in patterns.items()})


def _matches_older_name(pattern: str, module: str) -> bool:
    return any(re.fullmatch(pattern, name) for name in older_names(module))
