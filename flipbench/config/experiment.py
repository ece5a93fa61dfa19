"""An experiment as typed YAML: ``extends:``, ``key=value`` overrides, and errors that help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flipbench.benchmarks import HuggingFaceSpec, JsonlSpec, PairsSpec, TsvSpec
from flipbench.config.audit import AuditSettings
from flipbench.config.chat import ChatSpec
from flipbench.config.kinds import ByKind, CaptionerSpec, EditorSpec, JudgeSpec, PythonTarget
from flipbench.config.loading import find_config, read_mapping
from flipbench.config.policy import Policy
from flipbench.config.raters import LocalChatSpec
from flipbench.config.raters import ModelConfig as ModelConfig
from flipbench.config.served_model import ServedModelConfig
from flipbench.config.training import ContaminateConfig as ContaminateConfig
from flipbench.config.training import RewriteConfig
from flipbench.config.training import StrategyConfig as StrategyConfig
from flipbench.core.errors import ConfigError, nearest
from flipbench.prompting.prompts import PromptSettings


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ShapesSpec(_Part):
    """The embedded world's own benchmark."""

    format: Literal["shapes"] = "shapes"
    n_items: int = Field(default=480, ge=1, le=480, description="the first n of its 480 items")


class GenerateConfig(_Part):
    """How twins are made."""

    new_answers: Path | None = Field(
        default=None,
        description="CSV, TSV or JSONL with 'name' and 'new_answer', instead of a draw",
    )
    captioner: CaptionerSpec = Field(default="shapes", validate_default=True)
    editor: EditorSpec = Field(default="shapes", validate_default=True)
    batch_size: int = Field(default=16, ge=1, description="items between two writes to disk")


class FilterConfig(_Part):
    """Who decides that a pair is valid, and how; a pair is kept as the policy says."""

    judges: tuple[JudgeSpec, ...] = Field(default=("shapes",), validate_default=True)
    policy: Policy = Policy()
    batch_size: int = Field(default=16, ge=1, description="pairs between two writes to disk")


BenchmarkSpec = Annotated[
    ShapesSpec | TsvSpec | HuggingFaceSpec | JsonlSpec | PairsSpec, Field(discriminator="format")
]


class ModelUnderTestConfig(ModelConfig):
    """A model to ask, to contaminate, or to compare with.

    It is a checkpoint, a model behind a server, or an object of your own that keeps the protocol
    `flipbench.models.protocols.VLM`; of these three only a checkpoint can be trained.
    """

    path: str = ""
    api: ServedModelConfig | None = Field(default=None, description="instead of a path")
    python: PythonTarget | None = Field(default=None, description="instead of a path")
    family: str = Field(default="", description="models of one family share a clean reference")
    lineage: str = Field(default="", description="what it was trained from; counts as one model")
    external: bool = Field(
        default=False, description="it cannot have seen the benchmark, and is no clean reference"
    )
    dose: int | None = Field(
        default=0,
        ge=0,
        description="copies x epochs of the benchmark's items that it was trained on; null: nobody"
        " knows, so that it is judged, and judges no detector",
    )
    strategy: str = Field(
        default="",
        description="how it was trained on from its family's clean model, for a model that was"
        " trained elsewhere; with dose 0 a clean fine-tune; empty: it is the clean model itself",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.path) + (self.api is not None) + (self.python is not None) != 1:
            raise ValueError("give path or api or python, and only one of them")
        local = {
            name
            for name, field in ModelConfig.model_fields.items()
            if name != "path" and getattr(self, name) != field.default
        }
        if local and self.api is not None:
            raise ValueError(f"{min(local)} is for checkpoints; a server has api.revision only")
        if local and self.python is not None:
            raise ValueError(f"{min(local)} is for checkpoints; python has target and arguments")
        return self


class AuditConfig(AuditSettings):
    """Hygiene checks of the benchmark itself, and who helps with them."""

    text_models: tuple[str, ...] = Field(
        default=(), description="names of 'models' that are asked without the picture"
    )
    held_out: tuple[str, ...] = Field(
        default=(), description="the same, but only to measure what is left afterwards"
    )
    vlms: tuple[str, ...] = Field(default=(), description="names of 'models' that prune options")
    reader: ChatSpec | None = Field(default=None, description="who reads for revealed answers")
    train: BenchmarkSpec | None = Field(default=None, description="a training split to compare")


class AnswerJudgeConfig(_Part):
    """A chat model that says which of two answers a free-form reply agrees with."""

    chat: ChatSpec | None = Field(default=None, description="behind a server")
    local: LocalChatSpec | None = Field(default=None, description="on this machine")
    batch: bool = Field(default=False, description="by the server's Batch API")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.chat is None) == (self.local is None):
            raise ValueError("give chat or local, and not both")
        return self


class EvaluateConfig(_Part):
    """Which detectors, and how questions are put."""

    detectors: tuple[str, ...] = (
        "perturbation_gap",
        "circular_eval",
        "choice_confusion",
        "text_only_leakage",
    )
    parameters: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="counts and fractions of detectors by name, as flipbench detectors lists them",
    )
    prompt: PromptSettings = Field(
        default=PromptSettings(), description="how multiple-choice questions are asked"
    )
    batch_size: int = Field(default=64, ge=1)
    rewording: RewriteConfig | None = Field(
        default=None,
        description="other wordings of questions and captions, in their own language (how:"
        " translate goes there and back); null: the templates of shapes, none elsewhere",
    )

    judge: AnswerJudgeConfig | None = Field(
        default=None, description="who reads replies to free-form questions; null: exact match"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        how = self.rewording
        if how is not None and how.how == "translate" and how.by == "file":
            raise ValueError(
                "rewording: a file holds wordings in the same language: how: paraphrase, or by: api"
                " or local to translate there and back"
            )
        return self


class Config(_Part):
    """A complete experiment."""

    title: str = "flipbench"
    run: Path = Field(description="the run directory")
    seed: int = 0
    benchmark: BenchmarkSpec
    generate: GenerateConfig = Field(default_factory=GenerateConfig)
    filter: FilterConfig = Field(default_factory=FilterConfig)
    audit: AuditConfig = AuditConfig()
    models: dict[str, ModelUnderTestConfig] = Field(default_factory=dict)
    contaminate: ContaminateConfig = ContaminateConfig()
    evaluate: EvaluateConfig = EvaluateConfig()

    def to_yaml(self) -> str:
        """Return the resolved configuration; loading it gives the same experiment."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_config(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Read a configuration, what it extends, and ``key=value`` overrides.

    Parameters
    ----------
    source : path or mapping
        A file, the name of one that comes with flipbench, such as ``configs/shapes.yaml``, or what
        such a file holds.

    Raises
    ------
    ConfigError
        One message for all that is wrong: missing file, not YAML, unknown keys with the nearest
        right name, wrong types.
    """
    if not isinstance(source, Mapping):
        source = find_config(source)
    data = read_mapping(source, overrides)
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        where = source if isinstance(source, Path) else "configuration"
        raise ConfigError(f"{where}:\n" + "\n".join(_explain(error, data))) from error


def _explain(error: ValidationError, data: Any) -> Iterator[str]:
    for problem in error.errors():
        where = ".".join(_keys(problem["loc"], data))
        if problem["type"] == "extra_forbidden":
            known = sorted(set(_field_names(Config)))
            name = str(problem["loc"][-1])
            others = [other for other in known if other != name]  # it may be known elsewhere
            yield f"  {where}: unknown key{nearest(name, others)}"
        elif problem["type"] == "missing":
            yield f"  {where}: is missing"
        else:
            yield f"  {where}: {problem['msg']} (got {problem['input']!r})"


def _keys(places: Sequence[int | str], data: Any) -> Iterator[str]:
    """Yield the keys to a problem; pydantic also names the format of a part, which is no key."""
    for place in places:
        is_mapping = isinstance(data, dict)
        if is_mapping and place not in data and place == data.get("format"):
            continue
        yield str(place)
        try:
            data = data[place]
        except (KeyError, IndexError, TypeError):
            data = None


def _field_names(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        for part in (field.annotation, *field.metadata):
            for inner in _models_in(part):
                yield from _field_names(inner)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, ByKind):
        yield from annotation.classes()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
