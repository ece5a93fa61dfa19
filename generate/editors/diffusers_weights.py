"""Load the weights of diffusers pipelines, part by part, and refuse those that do not arrive."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.records import JsonDict
from flipbench.models.loading_report import LoadingReport, load_pretrained
from flipbench.models.vlm.checkpoints import first_line

_LIBRARIES = ("diffusers", "transformers")
_CAUSES = (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, ImportError)


Parts = Mapping[str, tuple[Any, Path]]
"""Parts of a pipeline that come from elsewhere: class, and folder or file, by name."""


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
    inside = {name: (part, folder / name) for name, part in model_classes(cls, index)}
    models = {
        name: _load_part(part, path, name, kind)
        for name, (part, path) in (inside | dict(elsewhere)).items()
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
    inside = {name: (part, folder / name) for name, part in model_classes(cls, index)}
    for name, (part, path) in (inside | dict(elsewhere)).items():
        if path.is_dir() and not _is_quantized(path):
            model = _load(part, path, name, device_map={"": "meta"})
            transformer = model if name == "transformer" else transformer
    return transformer


def model_classes(cls: Any, index: JsonDict) -> Iterator[tuple[str, Any]]:
    """Yield name and class of each part of a pipeline that has weights of its own."""
    from torch import nn

    taken = inspect.signature(cls.__init__).parameters
    for name, kind in index.items():
        if name in taken and isinstance(kind, list) and kind[0] in _LIBRARIES:
            part = getattr(import_module(kind[0]), str(kind[1]), None)
            if inspect.isclass(part) and issubclass(part, nn.Module):
                yield name, part


def _check_components(cls: Any, folder: Path, index: JsonDict, elsewhere: Parts) -> None:
    """Refuse a pipeline without a part that has no default and is not listed as optional."""
    optional = {*elsewhere, *getattr(cls, "_optional_components", ())}
    missing = [
        p.name
        for p in inspect.signature(cls.__init__).parameters.values()
        if p.name != "self" and p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
        if p.name not in optional and _is_null(index.get(p.name))
    ]
    if missing:
        raise PrerequisiteError(
            f"{folder / 'model_index.json'}: it has no {' and no '.join(missing)}, without which a"
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
