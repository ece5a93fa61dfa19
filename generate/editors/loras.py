"""Add LoRA weights to a pipeline's transformer, and refuse those made for another one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flipbench.core.errors import ConfigError, PrerequisiteError
from flipbench.core.records import JsonDict
from flipbench.models.loading_report import first_names
from flipbench.models.vlm.checkpoints import file_hash, first_line

from .diffusers_loading import LORA_FILE, LoRA, find_file

_CAUSES = (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, IndexError)
_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
_MATRIX = re.compile(r"\.lora[_.]|\.norm(?:_[qk]|_added_[qk])?\.weight$")
_UP = re.compile(r"(lora_B|lora_up|\.up|lora\.up|lora_linear_layer\.up)(\.\w+)?\.weight$")


def find_lora(lora: LoRA) -> Path:
    """Return the file of weights, downloaded if it is on the hub."""
    path = lora.path if lora.path.endswith(".safetensors") else f"{lora.path}/{LORA_FILE}"
    return find_file(path, lora.revision)


def lora_settings(loras: Sequence[LoRA]) -> JsonDict:
    """Return what an edit depends on: hashes and factors; nothing if there are no LoRA weights.

    Raises
    ------
    PrerequisiteError
        If a file is missing.
    """
    if not loras:
        return {}
    made_of = [{"sha256": file_hash(find_lora(one))[:24], "weight": one.weight} for one in loras]
    return {"loras": made_of}


def check_loras(cls: Any, transformer: Any, loras: Sequence[LoRA]) -> None:
    """Check that LoRA weights were made for a transformer, before its weights are loaded.

    Diffusers only logs a warning if nothing or not everything in a file fits; here each of the
    file's matrices, in whatever layout it is, must have a place.

    Parameters
    ----------
    cls : type
        The pipeline's class.
    transformer : nn.Module or None
        Weights are not needed.

    Raises
    ------
    ConfigError
        If the pipeline's class takes no LoRA weights.
    PrerequisiteError
        If the weights were made for another model.
    """
    _check_takes_loras(cls, loras)
    if transformer is None:
        return
    modules = {name for name, _ in transformer.named_modules()}
    for lora in loras:
        file = find_lora(lora)
        stored, converted = _stored(file), _converted(cls, lora, file)
        parts = [name.partition(".") for name in converted]
        homeless = [
            name
            for name, (part, _, rest) in zip(converted, parts, strict=True)
            if part not in _ENCODERS and (part != "transformer" or _module(rest) not in modules)
        ]
        n_dropped = _n_rows(stored) - _n_rows(converted)
        if homeless or n_dropped or not converted:
            n_placed = len(converted) - len(homeless)
            lost = [*(homeless or sorted(stored))]
            raise _unfit(lora, type(transformer).__name__, n_placed, len(converted), lost)


def _check_takes_loras(cls: type, loras: Sequence[LoRA]) -> None:
    if loras and not hasattr(cls, "load_lora_weights"):
        raise ConfigError(f"loras: {cls.__name__} takes no LoRA weights; remove them")


def with_loras(pipeline: Any, loras: Sequence[LoRA]) -> Any:
    """Add LoRA weights, which `check_loras` has seen, to ``pipeline`` and return it.

    Raises
    ------
    ConfigError
        If the pipeline's class takes no LoRA weights.
    PrerequisiteError
        If the weights were made for another model.
    """
    _check_takes_loras(type(pipeline), loras)
    names = [f"lora{number}" for number in range(len(loras))]
    for name, lora in zip(names, loras, strict=True):
        file = find_lora(lora)
        base = type(pipeline.transformer).__name__
        try:
            pipeline.load_lora_weights(str(file.parent), weight_name=file.name, adapter_name=name)
        except _CAUSES as error:
            raise _not_fitting(lora, base, error) from error
        converted = _converted(type(pipeline), lora, file)
        placed = [
            key
            for part in pipeline.components.values()
            if hasattr(part, "named_parameters")
            for key, _ in part.named_parameters()
            if f".{name}." in key
        ]
        if len(placed) < len(converted):
            raise _unfit(lora, base, len(placed), len(converted), sorted(converted))
    if loras:
        pipeline.set_adapters(names, [lora.weight for lora in loras])
    return pipeline


def _stored(file: Path) -> dict[str, Any]:
    """Return the matrices of a file in its own layout."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Any] = load_file(str(file))
    except (SafetensorError, OSError) as error:
        raise PrerequisiteError(
            f"{file}: damaged LoRA weights, which do not fit anything ({first_line(error)}); copy"
            " or download them again"
        ) from error
    return tensors


def _converted(cls: Any, lora: LoRA, file: Path) -> dict[str, Any]:
    """Return a file's matrices under the names that diffusers gives them."""
    try:
        state = cls.lora_state_dict(str(file.parent), weight_name=file.name)
    except _CAUSES as error:
        raise _not_fitting(lora, cls.__name__, error) from error
    state = state[0] if isinstance(state, tuple) else state
    return {name: tensor for name, tensor in state.items() if not name.endswith("alpha")}


def _module(name: str) -> str:
    """Return the module that a matrix adapts.

    >>> _module("single_transformer_blocks.0.proj_out.lora_A.weight")
    'single_transformer_blocks.0.proj_out'
    """
    return _MATRIX.split(name)[0]


def _n_rows(matrices: Mapping[str, Any]) -> int:
    """Return the number of outputs that are adapted, which no change of layout changes."""
    return sum(m.shape[0] for name, m in matrices.items() if _UP.search(name) and m.ndim > 1)


def _not_fitting(lora: LoRA, base: str, error: Exception) -> PrerequisiteError:
    return PrerequisiteError(
        f"{lora.path}: these LoRA weights do not fit this {base} ({first_line(error)}); give"
        " weights made for this checkpoint"
    )


def _unfit(
    lora: LoRA, base: str, n_placed: int, n_matrices: int, names: list[str]
) -> PrerequisiteError:
    return PrerequisiteError(
        f"{lora.path}: {n_placed} of the file's {n_matrices} LoRA matrices fit this {base} (none:"
        f" {first_names(names)}); give weights made for this checkpoint"
    )
