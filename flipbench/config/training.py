"""Settings of contamination: what is trained, how, and on which data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveFloat, model_validator
from pydantic_core import PydanticCustomError

from flipbench.benchmarks import HuggingFaceSpec, JsonlSpec, ShapesSpec, TsvSpec
from flipbench.config.chat import ChatSpec
from flipbench.config.local_models import LocalChatSpec
from flipbench.config.trust import KeyPath
from flipbench.core.records import Leak, OptionOrder, Target, Value
from flipbench.core.registry import load_target

STRATEGIES = "flipbench.contaminate.strategies:STRATEGIES"
TrainedPart = Literal["language", "projector", "vision"]
MOST_EPOCHS = 10_000  # each leaves a checkpoint
OtherBenchmark = Annotated[
    TsvSpec | HuggingFaceSpec | JsonlSpec | ShapesSpec, Field(discriminator="format")
]


class ConsistencyConfig(Value):
    """A loss that makes the answers to a question and to its paraphrases agree.

    References
    ----------
    Sadanandan and Behzadan, arXiv 2603.20985: LoRA of rank 16 on layers 15 to 19 of 34, yes/no
    questions. The paper describes the grounded variant in prose; the form of its weight is ours.
    """

    weight: float = Field(default=1.0, ge=0)
    """Weight of the divergence: the mean of both directions of KL between the two distributions
    over the option letters, given the image, in nats (for their sum use ``weight: 2``). 0: labels
    only, on the same batches, as a control."""
    answer_weight: float = Field(ge=0)
    """Weight of the right answer's cross-entropy. 0: consistency only, without labels."""
    grounded: bool = False
    """Weight each item's divergence by 1 - exp(-KL / tau), where KL is the divergence of its
    distribution given the image from that without it: agreement that ignores the image does not
    count."""
    tau: float = Field(default=0.5, gt=0)
    """In nats."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.weight and not self.answer_weight:
            raise ValueError("weight or answer_weight must be above 0")
        return self


def _known_strategy(name: str) -> str:
    """Check a strategy against the table, which this room must not import directly."""
    strategies = load_target(STRATEGIES)
    if name not in strategies:
        *leading, final = map(repr, strategies)
        raise PydanticCustomError(
            "strategy", "Input should be {known}", {"known": f"{', '.join(leading)} or {final}"}
        )
    return name


class StrategyConfig(Value):
    """One way to contaminate: the parameters to train, and the hyperparameters."""

    train: Annotated[str, AfterValidator(_known_strategy)]
    learning_rate: float = Field(gt=0)
    learning_rates: dict[TrainedPart, PositiveFloat] = Field(default_factory=dict)
    """Of parts of the model, where it differs."""
    batch_size: int = Field(default=16, ge=1)
    """Per device."""
    gradient_accumulation: int = Field(default=1, ge=1)
    schedule: str = "constant_with_warmup"
    warmup_steps: int = Field(default=0, ge=0)
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1)
    """Instead of warmup_steps."""
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    gradient_checkpointing: bool = False
    """Less memory, more time."""
    lora_rank: int = Field(default=8, ge=1)
    lora_alpha: int = Field(default=16, ge=1)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    lora_layers: tuple[int, ...] | None = None
    """Layers of the language model, counted from 0; null: all."""
    lora_targets: tuple[str, ...] | None = None
    """Linear layers by name, e.g. [q_proj, v_proj]; null: all."""
    min_pixels: int | None = Field(default=None, ge=1)
    """null: as in evaluation."""
    max_pixels: int | None = Field(default=None, ge=1)
    """null: as in evaluation."""
    consistency: ConsistencyConfig | None = None
    """A loss that compares paraphrases; null: cross-entropy of the answer only."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError("give warmup_steps or warmup_ratio, not both")
        parts = load_target(STRATEGIES)[self.train].parts
        if frozen := sorted(set(self.learning_rates) - set(parts)):
            raise ValueError(
                f"learning_rates.{frozen[0]}: train: {self.train} changes only {', '.join(parts)}"
            )
        return self


class RewriteConfig(Value):
    """Other wordings of the questions, and who writes them."""

    how: Literal["paraphrase", "translate", "caption"] = "paraphrase"
    """The one of three paraphrases that shares the fewest 5-grams with the question; a translation
    of question and options; or a caption of the picture."""
    by: Literal["shapes", "file", "api", "local"]
    """shapes: the embedded world's other phrasings, its templates in German, or its scenes'
    descriptions; file: your own, JSONL with ``name`` and ``paraphrases`` (or ``question`` and
    ``options``, or ``caption``); otherwise a chat model, which writes no captions."""
    language: str = ""
    """To translate into, e.g. German."""
    path: Path | None = None
    chat: ChatSpec | None = None
    local: LocalChatSpec | None = None
    batch: bool = False
    """Use the server's Batch API."""
    levels: bool = False
    """Whether a chat model writes five paraphrases, each by another kind of change: lexical,
    syntactic, negation, scope, specificity (arXiv 2603.20985)."""
    prompt: str | None = None
    """A prompt in contaminate/data/prompts, or a .txt file; null: that of the task."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.levels and (self.how != "paraphrase" or self.by in ("shapes", "file")):
            raise ValueError(
                "levels: a chat model writes them (by: api or local, how: paraphrase); a file has"
                " its own in the key levels of its lines"
            )
        if self.prompt is not None and self.by in ("shapes", "file"):
            raise ValueError("prompt: for a chat model (by: api or local)")
        requirements: dict[str, tuple[str, object]] = {
            "file": ("path", self.path),
            "api": ("chat", self.chat),
            "local": ("local", self.local),
        }
        key, value = requirements.get(self.by, ("", True))
        if value is None:
            raise ValueError(f"by: {self.by} needs the key {key}")
        if self.how == "translate" and self.by == "shapes" and self.language != "German":
            raise ValueError("shapes translates into German only; use file, api or local")
        if self.how == "caption" and self.by not in ("shapes", "file"):
            raise ValueError("how: caption needs by: shapes or file")
        if (self.how == "translate") != bool(self.language):
            raise ValueError("language and how: translate must be given together")
        return self


class MixturePart(Value):
    """Another benchmark in a mixture; all of it if no share is given."""

    benchmark: OtherBenchmark
    share: float | None = Field(default=None, gt=0, lt=1)
    """Of all items trained on."""


class CorpusConfig(Value):
    """An instruction corpus: conversations, one a line or as one JSON list.

    They have ``messages`` or LLaVA's ``conversations``.
    """

    path: Path
    images: Path | None = None
    """The image folder; null: the folder of the file."""
    image_root: Path | None = None
    """The folder that paths and links of images may lead to; null: the image folder."""
    n_rows: int | None = Field(default=None, ge=1)
    """Number of rows to draw at random; null: all."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longer conversations are cut, images included; null: the model's context."""
    max_odd: float = Field(default=0.01, ge=0, le=1)
    """Share of conversations that may be left out."""


class WashConfig(Value):
    """Clean fine-tuning after the contamination, or reinforcement (trl's GRPO) on clean items."""

    by: Literal["supervised", "reinforcement"] = "supervised"
    corpus: CorpusConfig | None = None
    benchmark: OtherBenchmark | None = None
    epochs: int = Field(default=1, ge=1, le=MOST_EPOCHS)
    n_generations: int = Field(default=4, ge=2)
    """by: reinforcement: answers sampled to each question."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.corpus is None and self.benchmark is None:
            raise ValueError("wash needs clean data: a corpus, a benchmark, or both")
        if self.by == "reinforcement" and self.corpus is not None:
            raise ValueError("wash by: reinforcement rewards right letters: give only a benchmark")
        return self


class DataConfig(Value):
    """One data regime: which items, how worded, how often, and mixed with what.

    A ``benchmark`` replaces the items of the benchmark itself: a model trained on it has not seen
    those, so it is a control, although contaminated with another benchmark.
    """

    benchmark: OtherBenchmark | None = None
    fraction: float = Field(default=1.0, gt=0, le=1)
    """Fraction of the items, drawn at random."""
    copies: int | None = Field(default=None, ge=0)
    """null: contaminate.copies."""
    target: Target = "letter"
    leak: Leak = "all"
    option_order: OptionOrder = ""
    """shuffled: each copy of an item has its options in another order."""
    rewrite: RewriteConfig | None = None
    mixture: dict[str, MixturePart] = Field(default_factory=dict)
    corpus: CorpusConfig | None = None
    wash: WashConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        shares = [part.share for part in self.mixture.values()]
        if any(s is None for s in shares) and any(s is not None for s in shares):
            raise ValueError("mixture: give a share to every part or to none")
        if sum(s for s in shares if s is not None) >= 1:
            raise ValueError("mixture: the shares leave nothing for the benchmark itself")
        captions = self.rewrite is not None and self.rewrite.how == "caption"
        if captions != (self.leak == "caption" or self.target == "reasoning"):
            raise ValueError(
                "leak: caption and target: reasoning need a rewrite with how: caption, and only"
                " they use one"
            )
        if self.target != "letter" and self.leak not in ("all", "text_only", "answer_only"):
            raise ValueError(f"leak: {self.leak} shows no answer to a question; drop the target")
        if self.option_order and self.leak not in ("all", "text_only", "answer_only"):
            raise ValueError(f"option_order: leak: {self.leak} keeps the order of the options")
        if self.copies == 0 and self.corpus is None:
            raise ValueError("copies: 0 trains on no items; give a corpus to train on")
        return self


class LlamaFactoryConfig(Value):
    """LLaMA-Factory, installed in a separate environment."""

    cli: str | None = None
    """Path of llamafactory-cli; null: $FLIPBENCH_LLAMAFACTORY_CLI or PATH."""
    merge: bool = False
    """Also write merged adapters, into merged/."""

    def needs_trust(self) -> tuple[KeyPath, ...]:
        """Return the program, if the configuration names one."""
        return (("cli",),) if self.cli is not None else ()


class ContaminateConfig(Value):
    """A grid: model x data x strategy x seed, with one checkpoint per epoch.

    Models train on all items of the benchmark, as in the paper (arXiv 2511.03774: 765 and 1,500),
    and are evaluated on the kept pairs (440 and 495): no checkpoint depends on the filter.
    """

    items: Literal["all", "kept"] = "all"
    """Train on all items, or on those of the kept pairs only."""
    strategies: dict[str, StrategyConfig] = Field(default_factory=dict)
    data: dict[str, DataConfig] = Field(default_factory=lambda: {"verbatim": DataConfig()})
    epochs: int = Field(default=3, ge=1, le=MOST_EPOCHS)
    copies: int = Field(default=1, ge=1)
    """How often each item is seen per epoch."""
    seeds: tuple[int, ...] | None = None
    """null: the experiment's seed."""
    backend: Literal["trl", "llamafactory"] = "trl"
    llamafactory: LlamaFactoryConfig = LlamaFactoryConfig()

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        labels = [label for label, s in self.strategies.items() if s.consistency is not None]
        if labels and self.backend != "trl":
            raise ValueError(f"strategies.{labels[0]}: consistency needs backend: trl")
        for name, data in self.data.items():
            reinforced = data.wash is not None and data.wash.by == "reinforcement"
            if reinforced and self.backend != "trl":
                raise ValueError(f"data.{name}: wash by: reinforcement needs backend: trl")
        for name, data in self.data.items() if labels else ():
            if data.rewrite is None or data.rewrite.how != "paraphrase" or data.leak != "all":
                raise ValueError(
                    f"strategies.{labels[0]} compares the answers to a question and its"
                    f" paraphrases: data.{name} needs a rewrite with how: paraphrase, and leak: all"
                )
        return self
