"""The one way in which editors load a diffusers pipeline: checked at once, loaded when first used.

Parts are loaded one by one, and a checkpoint or LoRA of which a tensor has no place is refused:
diffusers would draw at random what is missing, with a warning.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.core.records import JsonDict
from flipbench.models.loading_report import LoadingReport, first_names, load_pretrained
from flipbench.models.vlm.checkpoints import file_hash, first_line

from .caches import quantized, speed_settings, with_cache
from .diffusers_loading import (
    LORA_FILE,
    LoRA,
    PipelineSpec,
    find_file,
    fingerprint,
    place,
    resolve_device,
)

_LIBRARIES = ("diffusers", "transformers")
_CAUSES = (
    *(OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, ImportError),
    IndexError,
)
_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
_MATRIX = re.compile(r"\.lora[_.]|\.norm(?:_[qk]|_added_[qk])?\.weight$")
_UP = re.compile(r"(lora_B|lora_up|\.up|lora\.up|lora_linear_layer\.up)(\.\w+)?\.weight$")

Parts = Mapping[str, tuple[Any, Path]]
"""Parts of a pipeline that come from elsewhere: class, and folder or file, by name."""


class LazyPipeline:
    """A pipeline of an editor: resuming a finished run loads no weights.

    Parameters
    ----------
    cls : type
        The pipeline's class.
    folder, index : Path, dict
        As `flipbench.generate.editors.diffusers_loading.find_pipeline` returns them.
    elsewhere : mapping of str to (type, Path)
        Parts that are not in the folder.
    controlnet, contexts : bool
        As for `speed_settings`.

    Attributes
    ----------
    device : str
        Where it runs.
    settings : dict
        What an edit depends on.

    Raises
    ------
    ConfigError
        As `speed_settings` and `check_loras`.
    PrerequisiteError
        As `check_pipeline` and `check_loras`.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        cls: Any,
        folder: Path,
        index: JsonDict,
        elsewhere: Parts,
        *,
        controlnet: bool,
        contexts: bool = False,
    ) -> None:
        self.spec, self.cls, self.folder, self.index = spec, cls, folder, index
        self.elsewhere = elsewhere
        self.device = resolve_device(spec.device, spec.offload)
        # refuses what cannot be, before LoRA weights are fetched
        speed = speed_settings(spec, cls, controlnet=controlnet, contexts=contexts)
        transformer = check_pipeline(cls, folder, index, elsewhere)
        check_loras(cls, transformer, spec.loras)
        self.settings: JsonDict = {
            "pipeline": fingerprint(folder, index),
            "sizes": spec.sizes.model_dump(),
            "dtype": spec.dtype,
            **lora_settings(spec.loras),
            **speed,
        }

    @cached_property
    def loaded(self) -> Any:
        """The pipeline with its LoRA weights, before it is placed on a device."""
        pipeline = load(self.cls, self.folder, self.index, self.spec.dtype, self.elsewhere)
        return with_loras(pipeline, self.spec.loras)

    def placed(self, pipeline: Any) -> Any:
        """Return a loaded pipeline on its device, quantized and with its cache."""
        return with_cache(
            place(quantized(pipeline, self.spec), self.spec, self.device), self.spec.cache
        )

    def release(self) -> None:
        """Drop the weights; they are loaded again when they are used."""
        vars(self).pop("loaded", None)


def load(cls: Any, folder: Path, index: JsonDict, dtype: str, elsewhere: Parts) -> Any:
    """Load a pipeline from safetensors.

    Parameters
    ----------
    cls : type
        The pipeline's class.
    index : dict
        The contents of its ``model_index.json``.
    elsewhere : mapping of str to (type, Path)
        Parts that are not in the folder.

    Raises
    ------
    PrerequisiteError
        If the folder is not a ``cls``, its weights are not safetensors, or a part's tensors have
        not all found their places.
    """
    import torch

    kind = getattr(torch, dtype)
    own_parts = {name: (part, folder / name) for name, part in model_classes(cls, index)}
    models = {
        name: _load_part(part, path, name, kind)
        for name, (part, path) in (own_parts | dict(elsewhere)).items()
    }
    try:
        return cls.from_pretrained(folder, dtype=kind, use_safetensors=True, **models)
    except _CAUSES as error:
        raise _cannot_load(folder, cls, error) from error


def _load_part(cls: Any, path: Path, part: str, dtype: Any) -> Any:
    """Load a single model from its folder, or from one file of safetensors."""
    if path.is_dir():
        return _load(cls, path, part, dtype=dtype)
    try:
        model = cls.from_single_file(str(path), torch_dtype=dtype)
    except _CAUSES as error:
        raise _cannot_load(path, cls, error) from error
    empty = tuple(name for name, tensor in model.named_parameters() if tensor.is_meta)
    try:
        LoadingReport(missing=empty).check(part, path)
    except DataError as error:
        raise PrerequisiteError(str(error)) from error
    return model


def check_pipeline(cls: Any, folder: Path, index: JsonDict, elsewhere: Parts) -> Any:
    """Check a pipeline's parts by the names and shapes of their tensors, without loading them.

    Parameters are those of `load`.

    Returns
    -------
    nn.Module or None
        Its transformer without weights, if it has one.

    Raises
    ------
    PrerequisiteError
        If a part is missing, or its tensors do not all have places.
    """
    _check_components(cls, folder, index, elsewhere)
    transformer = None
    own_parts = {name: (part, folder / name) for name, part in model_classes(cls, index)}
    for name, (part, path) in (own_parts | dict(elsewhere)).items():
        if path.is_dir() and not _is_quantized(path):
            model = _load(part, path, name, device_map={"": "meta"})
            transformer = model if name == "transformer" else transformer
    return transformer


def model_classes(cls: Any, index: JsonDict) -> Iterator[tuple[str, Any]]:
    """Yield name and class of each part of a pipeline that has weights of its own."""
    from torch import nn

    parameters = inspect.signature(cls.__init__).parameters
    for name, kind in index.items():
        if name in parameters and isinstance(kind, list) and kind[0] in _LIBRARIES:
            part = getattr(import_module(kind[0]), str(kind[1]), None)
            if inspect.isclass(part) and issubclass(part, nn.Module):
                yield name, part


def _check_components(cls: Any, folder: Path, index: JsonDict, elsewhere: Parts) -> None:
    """Refuse a pipeline without a part that has no default and is not listed as optional."""
    optional = {*elsewhere, *getattr(cls, "_optional_components", ())}
    absent = [
        p.name
        for p in inspect.signature(cls.__init__).parameters.values()
        if p.name != "self" and p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        if p.name not in optional and _is_null(index.get(p.name))
    ]
    if absent:
        raise PrerequisiteError(
            f"{folder / 'model_index.json'}: it has no {' and no '.join(absent)}, without which a"
            f" {cls.__name__} cannot draw; download the whole pipeline"
        )


def _is_null(component: Any) -> bool:
    return component is None or isinstance(component, list) and not (component and component[0])


def _is_quantized(folder: Path) -> bool:
    """Return whether a model's weights have other names and shapes until they are loaded."""
    try:
        return "quantization_config" in json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False


def _load(cls: Any, folder: Path, part: str, **options: Any) -> Any:
    try:
        return load_pretrained(cls, folder, part, **options)
    except DataError as error:
        raise PrerequisiteError(str(error)) from error
    except _CAUSES as error:
        raise _cannot_load(folder, cls, error) from error


def _cannot_load(path: Path, cls: Any, error: Exception) -> PrerequisiteError:
    return PrerequisiteError(
        f"{path}: cannot load a {cls.__name__} ({first_line(error)}); give a folder or hub id"
        " with its configuration and safetensors weights"
    )


def _lora_file(lora: LoRA) -> Path:
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
    hashes = [{"sha256": file_hash(_lora_file(lora))[:24], "weight": lora.weight} for lora in loras]
    return {"loras": hashes} if loras else {}


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
    if loras and not hasattr(cls, "load_lora_weights"):
        raise ConfigError(f"loras: {cls.__name__} takes no LoRA weights; remove them")
    if transformer is None:
        return
    modules = {name for name, _ in transformer.named_modules()}
    for lora in loras:
        file = _lora_file(lora)
        matrices, converted = _stored(file), _converted(cls, lora, file)
        parts = [name.partition(".") for name in converted]
        homeless = [
            name
            for name, (part, _, key) in zip(converted, parts, strict=True)
            if part not in _ENCODERS and (part != "transformer" or _module(key) not in modules)
        ]
        n_dropped = _n_rows(matrices) - _n_rows(converted)
        if homeless or n_dropped or not converted:
            n_placed = len(converted) - len(homeless)
            lost = [*(homeless or sorted(matrices))]
            raise _unfit(lora, type(transformer).__name__, n_placed, len(converted), lost)


def with_loras(pipeline: Any, loras: Sequence[LoRA]) -> Any:
    """Add LoRA weights, which `check_loras` has seen, to ``pipeline`` and return it.

    Raises
    ------
    PrerequisiteError
        If the weights were made for another model.
    """
    names = [f"lora{number}" for number in range(len(loras))]
    for name, lora in zip(names, loras, strict=True):
        file = _lora_file(lora)
        base = type(pipeline.transformer).__name__
        try:
            pipeline.load_lora_weights(str(file.parent), weight_name=file.name, adapter_name=name)
        except _CAUSES as error:
            raise _not_fitting(lora, base, error) from error
        converted = _converted(type(pipeline), lora, file)
        placed_keys = [
            key
            for part in pipeline.components.values()
            if hasattr(part, "named_parameters")
            for key, _ in part.named_parameters()
            if f".{name}." in key
        ]
        if len(placed_keys) < len(converted):
            raise _unfit(lora, base, len(placed_keys), len(converted), sorted(converted))
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
