"""Add LoRA weights to a pipeline's transformer, and refuse those made for another one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flipbench.core.errors import ConfigError, PrerequisiteError
from flipbench.core.records import JsonDict
from flipbench.models.vlm.checkpoints import file_hash

from .diffusers_loading import LORA_FILE, LoRA, find_file, first_line


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


def with_loras(pipeline: Any, loras: Sequence[LoRA]) -> Any:
    """Add LoRA weights to ``pipeline`` and return it.

    Diffusers only logs a warning if nothing or not everything in a file fits the transformer; here
    each of the file's matrices must have a place in it.

    Raises
    ------
    ConfigError
        If the pipeline's class takes no LoRA weights.
    PrerequisiteError
        If the weights were made for another model.
    """
    if loras and not hasattr(pipeline, "load_lora_weights"):
        raise ConfigError(f"loras: {type(pipeline).__name__} takes no LoRA weights; remove them")
    names = [f"lora{number}" for number in range(len(loras))]
    for name, lora in zip(names, loras, strict=True):
        file = find_lora(lora)
        base = type(pipeline.transformer).__name__
        try:
            pipeline.load_lora_weights(str(file.parent), weight_name=file.name, adapter_name=name)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
            raise PrerequisiteError(
                f"{lora.path}: these LoRA weights do not fit this {base} ({first_line(error)});"
                " give weights made for this checkpoint"
            ) from error
        given = _n_in_file(file)
        placed = sum(f".{name}." in key for key, _ in pipeline.transformer.named_parameters())
        if placed == 0 or placed < given:
            raise PrerequisiteError(
                f"{lora.path}: {placed} of the file's {given} LoRA matrices fit this {base}; give"
                " weights made for this checkpoint"
            )
    if loras:
        pipeline.set_adapters(names, [lora.weight for lora in loras])
    return pipeline


def _n_in_file(file: Path) -> int:
    """Return the number of LoRA matrices of a transformer in a file of diffusers' own layout.

    Other layouts merge or split matrices as they are read, so they are not counted.
    """
    from safetensors import safe_open

    with safe_open(str(file), framework="pt") as stored:
        keys = list(stored.keys())
    return sum(
        key.startswith("transformer.") and (".lora_A." in key or ".lora_B." in key) for key in keys
    )
