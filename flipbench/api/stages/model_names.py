"""Models named as other kits name them: ``hf:ID``, ``--model vllm --model-args base_url=…``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from flipbench.config.local_models import Dtype, ImagePadding, Quantization
from flipbench.core.errors import ConfigError

_LOCAL = ("hf", "hf-multimodal")
_SERVED = ("vllm", "sglang", "openai", "local-chat-completions")
_LOCAL_NAMES = ("pretrained", "path", "model")
_SERVED_NAMES = ("model", "model_name", "pretrained", "name")
_SETTINGS: dict[str, tuple[str, ...]] = {
    "dtype": get_args(Dtype),
    "quantization": get_args(Quantization),
    "image_padding": get_args(ImagePadding),
    "device": (),
    "batch_size": (),
}
"""What may be given beside a model, with the values allowed; any if there are none."""


@dataclass(frozen=True)
class NamedModel:
    """A model on a server if ``base_url`` is set, else a path or hub id.

    ``settings`` are those given beside it, by the names of this program's options.
    """

    name: str
    base_url: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def named_model(model: str, args: str = "", base_url: str = "") -> NamedModel:
    """Return the model that ``--model``, ``--model-args`` and ``--base-url`` name.

    Besides a path, a hub id and a server's name, this reads what lm-evaluation-harness and
    lmms-eval call models: ``hf`` with ``pretrained=ID``, and ``vllm``, ``sglang``, ``openai`` or
    ``local-chat-completions`` with ``base_url=URL,model=NAME``.

    Examples
    --------
    >>> named_model("hf:llava-hf/llava-1.5-7b-hf").name
    'llava-hf/llava-1.5-7b-hf'
    >>> named_model("vllm", "base_url=http://localhost:8000/v1,model=llava").base_url
    'http://localhost:8000/v1'
    """
    arguments = _parsed(args)
    kind, colon, name_after_colon = model.partition(":")
    if kind == "hf" and colon:
        return NamedModel(name_after_colon, base_url, _settings(arguments, args))
    if model in _SERVED and (arguments or base_url):
        url = arguments.pop("base_url", base_url)
        name = _first(arguments, _SERVED_NAMES)
        if not url or not name:
            raise ConfigError(f"--model {model} needs --model-args base_url=URL,model=NAME")
        return NamedModel(name, url.removesuffix("/chat/completions"), _settings(arguments, args))
    if model in (*_SERVED, *_LOCAL) and not arguments and not Path(model).exists():
        example = "pretrained=ID_OR_FOLDER" if model in _LOCAL else "base_url=URL,model=NAME"
        raise ConfigError(f"--model {model} needs --model-args {example}")
    if model in _LOCAL and arguments:
        if not (name := _first(arguments, _LOCAL_NAMES)):
            raise ConfigError(f"--model {model} needs --model-args pretrained=ID_OR_FOLDER")
        return NamedModel(name, base_url, _settings(arguments, args))
    return NamedModel(model, arguments.pop("base_url", base_url), _settings(arguments, args))


def _parsed(args: str) -> dict[str, str]:
    parts = [part.strip() for part in args.split(",") if part.strip()]
    if odd := [part for part in parts if "=" not in part]:
        raise ConfigError(f"--model-args: write name=value, with commas between; got {odd[0]!r}")
    return dict(part.split("=", 1) for part in parts)


def _first(arguments: dict[str, str], names: tuple[str, ...]) -> str:
    """Take the first of ``names`` that is given; empty if none is."""
    return next((arguments.pop(name) for name in names if name in arguments), "")


def _settings(arguments: Mapping[str, str], args: str) -> dict[str, Any]:
    if unknown := sorted(set(arguments) - {*_SETTINGS}):
        raise ConfigError(
            f"--model-args {args}: {unknown[0]!r} is not known; there are base_url, model,"
            f" pretrained, {', '.join(_SETTINGS)}"
        )
    for name, value in arguments.items():
        if (allowed := _SETTINGS[name]) and value not in allowed:
            raise ConfigError(f"--model-args {name}={value}: it may be {', '.join(allowed)}")
    settings: dict[str, Any] = dict(arguments)
    if (size := arguments.get("batch_size")) is not None:
        if not (size.isascii() and size.isdigit() and int(size) > 0):
            raise ConfigError(f"--model-args batch_size={size}: give a whole number above 0")
        settings["batch_size"] = int(size)
    return settings
