"""An experiment as typed YAML: ``extends:``, ``key=value`` overrides, and errors that help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flipbench.benchmarks import HuggingFaceSpec, JsonlSpec, TsvSpec
from flipbench.errors import ConfigError, nearest
from flipbench.prompts import Asking


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShapesSpec(_Part):
    """The embedded world's own benchmark."""

    format: Literal["shapes"] = "shapes"
    n_items: int = Field(default=480, ge=1, le=480, description="the first n of its 480 items")


class GenerateConfig(_Part):
    """How twins are made."""

    captioner: Literal["shapes"] = "shapes"
    editor: Literal["shapes"] = "shapes"
    batch_size: int = Field(default=16, ge=1)


class FilterConfig(_Part):
    """Who decides that a pair is valid; a pair is kept if every judge keeps it."""

    judges: tuple[Literal["shapes"], ...] = ("shapes",)


class ModelConfig(_Part):
    """A vision-language model: a folder, a hub id, or ``shapes:llava`` / ``shapes:qwen2_vl``."""

    path: str
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "auto"
    revision: str | None = None
    trust_remote_code: bool = False


class StrategyConfig(_Part):
    """One way to contaminate: which parameters, and how they are trained."""

    train: Literal["lora", "llm", "llm+projector", "all"]
    learning_rate: float = Field(gt=0)
    batch_size: int = Field(default=16, ge=1)
    gradient_accumulation: int = Field(default=1, ge=1)
    schedule: str = "constant_with_warmup"
    warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    lora_rank: int = Field(default=8, ge=1)
    lora_alpha: int = Field(default=16, ge=1)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)


class ContaminateConfig(_Part):
    """A grid: every model x every strategy, one checkpoint for each epoch."""

    strategies: dict[str, StrategyConfig] = Field(default_factory=dict)
    epochs: int = Field(default=3, ge=1)
    copies: int = Field(default=1, ge=1, description="times an item is seen in one epoch")


class EvaluateConfig(_Part):
    """Which detectors, and how questions are put."""

    detectors: tuple[str, ...] = (
        "perturbation_gap",
        "circular_eval",
        "choice_confusion",
        "text_only_leakage",
    )
    asking: Asking = Asking()
    batch_size: int = Field(default=64, ge=1)


BenchmarkSpec = Annotated[
    ShapesSpec | TsvSpec | HuggingFaceSpec | JsonlSpec, Field(discriminator="format")
]


class Config(_Part):
    """A complete experiment."""

    title: str = "flipbench"
    run: Path = Field(description="the run directory")
    seed: int = 0
    benchmark: BenchmarkSpec
    generate: GenerateConfig = GenerateConfig()
    filter: FilterConfig = FilterConfig()
    models: dict[str, ModelConfig] = Field(default_factory=dict)
    contaminate: ContaminateConfig = ContaminateConfig()
    evaluate: EvaluateConfig = EvaluateConfig()

    def to_yaml(self) -> str:
        """Return the resolved configuration; loading it gives the same experiment."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file, what it extends, and ``key=value`` overrides.

    Raises
    ------
    ConfigError
        One message for all that is wrong: missing file, not YAML, unknown keys with the nearest
        right name, wrong types.
    """
    path = Path(path)
    data = _read(path, ())
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"{override!r}: overrides are written key=value, e.g. seed=1")
        try:
            _set(data, key.split("."), yaml.safe_load(value))
        except yaml.YAMLError as error:
            raise ConfigError(f"{override!r}: the value is not YAML ({error})") from error
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}:\n" + "\n".join(_explain(error))) from error


def _read(path: Path, readers: tuple[Path, ...]) -> dict[str, Any]:
    try:
        if path.resolve() in readers:
            raise ConfigError(f"{path}: 'extends' goes round in a circle")
        data = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        close = nearest(path.name, [p.name for p in path.parent.glob("*.yaml")])
        raise ConfigError(f"{path}: no such configuration{close}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML ({error})") from error
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: a configuration is a mapping of keys, not {type(data).__name__}"
        )
    extends = data.pop("extends", [])
    bases = [extends] if isinstance(extends, str) else extends
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"{path}: 'extends' is a file or a list of files, not {extends!r}")
    merged: dict[str, Any] = {}
    for base in bases:
        _merge(merged, _read(path.parent / base, (*readers, path.resolve())))
    _merge(merged, data)
    return merged


def _merge(into: dict[str, Any], data: dict[str, Any]) -> None:
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _set(data: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = data.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{'.'.join(keys)}: {key} holds {inner!r}, which has no keys")
        data = inner
    data[keys[-1]] = value


def _explain(error: ValidationError) -> Iterator[str]:
    tags = {"shapes", "vlmeval", "huggingface", "jsonl"}
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"] if part not in tags)
        if problem["type"] == "extra_forbidden":
            known = sorted(set(_field_names(Config)))
            yield f"  {where}: unknown key{nearest(str(problem['loc'][-1]), known)}"
        elif problem["type"] == "missing":
            yield f"  {where}: is missing"
        else:
            yield f"  {where}: {problem['msg']} (got {problem['input']!r})"


def _field_names(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        for inner in _models_in(field.annotation):
            yield from _field_names(inner)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
