"""A complete experiment as typed YAML, and error messages for invalid ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast, get_args

import yaml
from pydantic import BaseModel, Field, field_validator, model_validator

from flipbench.benchmarks import HuggingFaceSpec, JsonlSpec, PairsSpec, TsvSpec
from flipbench.benchmarks import ShapesSpec as ShapesSpec
from flipbench.config.audit import AuditSettings
from flipbench.config.chat import ChatSpec
from flipbench.config.corpus import CohortConfig, CorpusConfig
from flipbench.config.kinds import CaptionerSpec, EditorSpec, JudgeSpec, PythonTarget
from flipbench.config.loading import find_config, read_trusted
from flipbench.config.local_models import LocalChatSpec
from flipbench.config.local_models import ModelConfig as ModelConfig
from flipbench.config.policy import Policy
from flipbench.config.served_model import ServedModelConfig, VLLMConfig
from flipbench.config.training import ContaminateConfig as ContaminateConfig
from flipbench.config.training import RewriteConfig
from flipbench.config.training import StrategyConfig as StrategyConfig
from flipbench.config.trust import KeyPath
from flipbench.core.errors import ConfigError
from flipbench.core.records import Value
from flipbench.prompting.prompts import PromptSettings


class PictureConfig(Value):
    """Which image of an item with several is redrawn."""

    by: Literal["position", "largest", "captioner", "model"] = "position"
    """captioner: the captioning model is shown all images and names one; model: the image that
    alone gives the right answer the most probability."""
    position: int = 1
    """1: the first, -1: the last."""
    prompt: str = "choose-picture-v1"
    """What the captioner is asked: a prompt in generate/prompts, or a .txt file."""
    model: str = ""
    """The name of one of 'models'."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.position == 0:
            raise ValueError("position counts from 1, and from -1 backwards; 0 is no position")
        if (self.by == "model") != bool(self.model):
            raise ValueError("give 'model' with 'by: model', and only then")
        return self

    def __str__(self) -> str:
        """Return the rule for people."""
        if self.by == "position":
            return {1: "the first", -1: "the last"}.get(self.position, f"number {self.position}")
        if self.by == "largest":
            return "the largest"
        return f"chosen by {self.model or 'the captioner'}"


class AttemptStep(Value):
    """What is changed when an edit is tried again, besides the seed."""

    caption: bool = False
    """The caption is written again, with the judges' reason."""
    answer: bool = False
    """Another new answer is drawn, and captioned."""
    editor: EditorSpec | None = None
    """Changes to generate.editor, e.g. {settings: {control_weight: 0.6}}; or another editor, with
    its kind."""

    def __str__(self) -> str:
        """Return the step for people."""
        parts = ["other answer"] if self.answer else ["caption again"] if self.caption else []
        return ", ".join([*parts, *(["other editor"] if self.editor else [])]) or "other seed"


class AttemptsConfig(Value):
    """Edits that are rejected or doubtful are tried again; nothing else is."""

    n: int = Field(default=1, ge=1, le=50)
    """Most attempts for an item, the first included."""
    judges: tuple[JudgeSpec, ...] = ()
    """Who decides whether to try again. Trying again searches for their mistakes, so filter.judges,
    or people, have to be others."""
    policy: Policy = Policy()
    """How their verdicts become a decision."""
    steps: tuple[AttemptStep, ...] = (AttemptStep(),)
    """What the second attempt changes, the third, and so on; the last is repeated."""
    max_usd: float | None = Field(default=None, gt=0)
    """No further attempt begins once captions, edits and verdicts of the run have cost this much,
    by the configured prices."""
    stop_after: int = Field(default=40, ge=1)
    """No further attempt begins if this many edits or more were judged and none was kept."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n > 1 and not self.judges:
            raise ValueError("name the judges that decide whether an edit is tried again")
        if not self.steps:
            raise ValueError("steps is empty; [{}] tries other seeds")
        return self


class GenerateConfig(Value):
    """How perturbed versions are generated."""

    new_answers: Path | None = None
    """CSV, TSV or JSONL with 'name' and 'new_answer', instead of random new answers."""
    new_letters: Literal["matched", "uniform"] | None = None
    """How new answers are drawn: matched, with letters as frequent as those of the old answers;
    uniform, evenly from the other options (the paper's way). null: matched, but uniform for the
    embedded world, whose letters are drawn evenly."""
    captioner: CaptionerSpec = Field(default="shapes", validate_default=True)
    editor: EditorSpec = Field(default="shapes", validate_default=True)
    picture: PictureConfig = PictureConfig()
    attempts: AttemptsConfig = AttemptsConfig()
    batch_size: int = Field(default=16, ge=1)
    """Items between two writes to disk."""

    @model_validator(mode="before")
    @classmethod
    def _complete_steps(cls, data: Any) -> Any:
        """Complete the editors of attempts, which may name only what differs from the editor."""
        attempts = data.get("attempts") if isinstance(data, Mapping) else None
        steps = attempts.get("steps") if isinstance(attempts, Mapping) else None
        if not isinstance(attempts, Mapping) or not isinstance(steps, list | tuple):
            return data
        editor = data.get("editor", "shapes")
        if isinstance(editor, BaseModel):
            editor = editor.model_dump(mode="json")
        base = {"kind": editor} if isinstance(editor, str) else editor
        completed = [
            {**step, "editor": _merged(base, step["editor"])}
            if isinstance(step, Mapping) and isinstance(step.get("editor"), Mapping)
            else step
            for step in steps
        ]
        return {**data, "attempts": {**attempts, "steps": completed}}


def _merged(base: Any, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an editor with changes; one of another kind replaces it."""
    if not isinstance(base, Mapping) or changes.get("kind", base.get("kind")) != base.get("kind"):
        return changes
    merged: dict[str, Any] = dict(base)
    for name, value in changes.items():
        if isinstance(merged.get(name), Mapping) and isinstance(value, Mapping):
            merged[name] = merged[name] | value
        else:
            merged[name] = value
    return merged


class FilterConfig(Value):
    """Who judges the pairs, and the policy that turns verdicts into decisions."""

    judges: tuple[JudgeSpec, ...] = Field(default=("shapes",), validate_default=True)
    policy: Policy = Policy()
    batch_size: int = Field(default=16, ge=1)
    """Pairs between two writes to disk."""


BenchmarkSpec = Annotated[
    ShapesSpec | TsvSpec | HuggingFaceSpec | JsonlSpec | PairsSpec, Field(discriminator="format")
]


class ModelUnderTestConfig(ModelConfig):
    """A model to evaluate, to contaminate, or to use as a reference.

    It is a checkpoint, a model behind a server, or your own object that implements
    `flipbench.models.protocols.VLM`; only a checkpoint can be trained.
    """

    path: str = ""
    api: ServedModelConfig | None = None
    """Instead of a path."""
    python: PythonTarget | None = None
    """Instead of a path."""
    engine: VLLMConfig | None = None
    """vllm: it, and what is trained from it, is asked through a server that is started for it;
    null: by transformers, in this process."""
    family: str = ""
    """Models of one family share a clean reference."""
    lineage: str = ""
    """The model it was trained from; models of one lineage count as one cluster."""
    external: bool = False
    """It cannot have seen the benchmark, but is not used as a clean reference."""
    dose: int | None = Field(default=0, ge=0)
    """Copies x epochs of the benchmark's items that it was trained on; null: unknown, so it gets a
    verdict but is left out of the validation of detectors."""
    strategy: str = ""
    """For a model trained elsewhere: how it was fine-tuned from its family's clean model (a clean
    fine-tune if dose is 0); empty: it is the clean model itself."""

    @field_validator("engine", mode="before")
    @classmethod
    def _by_name(cls, engine: Any) -> Any:
        if isinstance(engine, str):
            return None if engine == "transformers" else {"kind": engine}
        return engine

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.engine and (not self.path or self.quantization):
            raise ValueError("engine: vllm serves checkpoints (path) without 4-bit quantization")
        if bool(self.path) + (self.api is not None) + (self.python is not None) != 1:
            raise ValueError("give exactly one of path, api and python")
        local = {
            name
            for name, field in ModelConfig.model_fields.items()
            if name != "path" and getattr(self, name) != field.default
        }
        if local and self.api is not None:
            raise ValueError(f"{min(local)} applies to checkpoints only; servers use api.revision")
        if local and self.python is not None:
            raise ValueError(
                f"{min(local)} applies to checkpoints only; python takes target and arguments"
            )
        return self


class AuditConfig(AuditSettings):
    """Quality checks of the benchmark itself, and the models they use."""

    text_models: tuple[str, ...] = ()
    """Names of 'models' that are asked without the image."""
    held_out: tuple[str, ...] = ()
    """Further text models, only to measure what remains solvable afterwards."""
    vlms: tuple[str, ...] = ()
    """Names of 'models' that prune options."""
    reader: ChatSpec | None = None
    """The chat model that looks for revealed answers."""
    train: BenchmarkSpec | None = None
    """A training split to check for overlap."""
    corpus: CorpusConfig | None = None
    """A training corpus of pictures."""
    cohort: CohortConfig | None = None
    """Models to compare on the items."""


class AnswerJudgeConfig(Value):
    """A chat model that judges replies and other texts of detectors."""

    chat: ChatSpec | None = None
    """Behind a server."""
    local: LocalChatSpec | None = None
    """On this machine."""
    batch: bool = False
    """Use the server's Batch API."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.chat is None) == (self.local is None):
            raise ValueError("give either chat or local")
        return self


class HintSettings(Value):
    """Where an item has texts that help, and whether models write their own."""

    hints: str = "hints"
    """Key in an item's extra: what each image shows, by an expert."""
    summary: str = "summary"
    """Key in an item's extra: what they show together."""
    own: bool = True
    """Also ask models for hints and a summary."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Limit of a text of their own."""


class EvaluateConfig(Value):
    """The detectors, and how questions are asked."""

    detectors: tuple[str, ...] = (
        "perturbation_gap",
        "old_answer_attraction",
        "circular_eval",
        "choice_confusion",
        "text_only_leakage",
    )
    parameters: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Parameters by detector name, as listed by 'flipbench detectors'."""
    prompt: PromptSettings = PromptSettings()
    """How multiple-choice questions are asked."""
    batch_size: int = Field(default=64, ge=1)
    originals: Literal["kept", "all"] = "kept"
    """all: clean models are also asked the original items without a kept pair, and the report
    compares their accuracy on the kept items with that on all."""
    diagnose: bool = False
    """Ask further questions about the items that fell, and report why they did."""
    hints: HintSettings = HintSettings()
    """Of 'flipbench reasoning': texts that help, and own ones."""
    rewording: RewriteConfig | None = None
    """Other wordings of questions and captions, in their own language (how: translate is
    back-translation); null: the templates of shapes, none elsewhere."""
    judge: AnswerJudgeConfig | None = None
    """Reads replies to free-form questions, completions, and options of choice confusion; null:
    rules compare words."""

    def needs_trust(self) -> list[KeyPath]:
        """Return the detectors, and the parameters of those, that are import paths."""
        imported = [("detectors", i) for i, name in enumerate(self.detectors) if ":" in name]
        return [*imported, *(("parameters", name) for name in self.parameters if ":" in name)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        rewording = self.rewording
        if rewording is not None and rewording.how == "translate" and rewording.by == "file":
            raise ValueError(
                "rewording: a file contains wordings in the same language; set how: paraphrase, or"
                " by: api or local for back-translation"
            )
        return self


StageName = Literal["caption", "edit", "judge", "rules", "ask", "embed"]


class RayStage(Value):
    """What each actor of a stage takes of a Ray cluster."""

    actors: int | None = Field(default=None, ge=1)
    """default: as many as the cluster has room for."""
    cpus: float = Field(default=1, ge=0)
    gpus: float | None = Field(default=None, ge=0)
    """default: 1 where the cluster has GPUs, none for rules; 0.5: two share one."""
    batch_size: int | None = Field(default=None, ge=1)
    """default: the stage's own."""


class SlurmConfig(Value):
    """What each job of ``--slurm`` asks for; a job does one worker's share."""

    cluster: Literal["slurm", "local"] = "slurm"
    """local: the jobs are processes of this machine, for a trial."""
    partition: str | None = Field(default=None, pattern=r"^\S+$")
    account: str | None = Field(default=None, pattern=r"^\S+$")
    qos: str | None = Field(default=None, pattern=r"^\S+$")
    """Quality of service."""
    minutes: int = Field(default=1440, ge=1)
    """Time limit of a job."""
    gpus: int = Field(default=1, ge=0)
    cpus: int = Field(default=4, ge=1)
    memory_gb: float | None = Field(default=None, gt=0)
    """null: the cluster's default."""
    parallel: int | None = Field(default=None, ge=1)
    """How many jobs may run at the same time; null: all."""
    extensions: int = Field(default=10, ge=0)
    """How often a share that reaches its time limit returns to the queue and goes on; after a
    preemption it always does."""
    setup: tuple[str, ...] = ()
    """Shell lines before a job, e.g. module load cuda."""

    def needs_trust(self) -> tuple[KeyPath, ...]:
        """Return the shell lines, if there are any."""
        return (("setup",),) if self.setup else ()


class ExecutorConfig(Value):
    """Where stages run; ``executor: ray`` is ``executor: {kind: ray}``."""

    kind: Literal["local", "ray"] = "local"
    address: str = Field(default="auto", min_length=1)
    """Of the Ray cluster; auto: the one that runs on this machine or is named by RAY_ADDRESS;
    local: one is started on this machine for the time of the command."""
    stages: dict[StageName, RayStage | None] = Field(default_factory=dict)
    """By stage; null: it stays in the process of the command."""
    slurm: SlurmConfig = SlurmConfig()
    """Of --slurm, with which workers are jobs of an array."""

    @model_validator(mode="before")
    @classmethod
    def _from_kind(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "local" and (self.address != "auto" or self.stages):
            raise ValueError("address and stages need kind: ray")
        return self

    def stage(self, name: str) -> RayStage | None:
        """Return what the actors of a stage take; None if it stays in one process."""
        key = name.partition(" ")[0]
        if self.kind == "local" or key not in get_args(StageName):
            return None
        return self.stages.get(cast(StageName, key), RayStage())


class Config(Value):
    """A complete experiment."""

    title: str = "flipbench"
    run: Path
    """The run directory."""
    seed: int = 0
    benchmark: BenchmarkSpec
    generate: GenerateConfig = Field(default_factory=GenerateConfig)
    filter: FilterConfig = Field(default_factory=FilterConfig)
    audit: AuditConfig = AuditConfig()
    models: dict[str, ModelUnderTestConfig] = Field(default_factory=dict)
    contaminate: ContaminateConfig = ContaminateConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    executor: ExecutorConfig = ExecutorConfig()

    @field_validator("run", mode="before")
    @classmethod
    def _named(cls, run: Any) -> Any:
        if isinstance(run, str) and not run.strip():
            raise ValueError("name the folder, e.g. runs/first")
        return run

    @model_validator(mode="after")
    def _has_another_final_rater(self) -> Self:
        attempts, judges = self.generate.attempts, self.filter.judges
        if attempts.n > 1 and judges and all(judge in attempts.judges for judge in judges):
            raise ValueError(
                "generate.attempts searches for the mistakes of its judges, so filter.judges must"
                " name another one ([] if people judge)"
            )
        return self

    def to_yaml(self) -> str:
        """Return the resolved configuration as YAML that loads to an equal one."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_config(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), *, trust: bool = False
) -> Config:
    """Read a configuration, the files it extends, and ``key=value`` overrides.

    Parameters
    ----------
    source : path or mapping
        A file, the name of one shipped with flipbench, such as ``configs/shapes.yaml``, or the
        contents of such a file.
    trust : bool
        Whether a file that came with an artefact (a run directory, a recipe, a checkpoint, an
        export) may name code and say where keys are sent. Other files, and runs made here, may.

    Raises
    ------
    ConfigError
        If the file is missing or not YAML, or the configuration is invalid; one message lists all
        problems, with the closest known name for each unknown key. If the file is that of a run
        which was moved or copied, and still names the other directory. If it came with an artefact
        and names code, without ``trust``.
    """
    if isinstance(source, Mapping):
        return read_trusted(Config, source, overrides, trust=trust)
    source = find_config(source)
    config = read_trusted(Config, source, overrides, trust=trust)
    if not any(override.startswith("run=") for override in overrides):
        _check_place(source, config.run)
    return config


def _check_place(path: Path, run: Path) -> None:
    """Refuse the configuration that lies in a run directory and names another."""
    folder, is_stored = path.parent, (path.parent / "environment.json").exists()
    if is_stored and path.name == "config.yaml" and folder.resolve() != run.resolve():
        raise ConfigError(
            f"{path}: it names the run {run}, which is not the directory it lies in; add"
            f" run={folder} to work here, or run={run} to work there"
        )
