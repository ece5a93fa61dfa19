"""How models are contaminated, as a configuration names it: which weights, on which data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from flipbench.benchmarks import HuggingFaceSpec, JsonlSpec, TsvSpec
from flipbench.config.chat import ChatSpec
from flipbench.config.raters import LocalChatSpec
from flipbench.core.records import Leak, Target, Value
from flipbench.core.registry import load_target

STRATEGIES = "flipbench.contaminate.strategies:STRATEGIES"
OtherBenchmark = Annotated[TsvSpec | HuggingFaceSpec | JsonlSpec, Field(discriminator="format")]


class ConsistencyConfig(Value):
    """A loss that draws the answers to a question and to its paraphrases together.

    Attributes
    ----------
    weight : float
        Of the divergence: the mean of both directions of KL between the two distributions over
        the option letters, picture present, in nats (their sum is ``weight: 2``).
    answer_weight : float
        Of the right answer's cross-entropy. 0 is consistency alone, which never shows a label.
    grounded : bool
        Weigh each item's divergence by 1 - exp(-KL / tau), where KL is that of its distribution
        with the picture from the one without: being consistent without looking earns nothing.
    tau : float
        In nats.

    References
    ----------
    Sadanandan and Behzadan, arXiv 2603.20985: LoRA of rank 16 on layers 15 to 19 of 34, yes/no
    questions. The paper proposes the grounded variant in words; the form of its weight is ours.
    """

    weight: float = Field(default=1.0, gt=0)
    answer_weight: float = Field(ge=0)
    grounded: bool = False
    tau: float = Field(default=0.5, gt=0)


def _known_strategy(name: str) -> str:
    """Hold a strategy to the table, which a configuration must not import by name."""
    *others, last = (repr(known) for known in load_target(STRATEGIES))
    if name not in load_target(STRATEGIES):
        raise PydanticCustomError(
            "strategy", "Input should be {known}", {"known": f"{', '.join(others)} or {last}"}
        )
    return name


class StrategyConfig(Value):
    """One way to contaminate: which parameters, and how they are trained."""

    train: Annotated[str, AfterValidator(_known_strategy)]
    learning_rate: float = Field(gt=0)
    batch_size: int = Field(default=16, ge=1, description="on each device")
    gradient_accumulation: int = Field(default=1, ge=1)
    schedule: str = "constant_with_warmup"
    warmup_steps: int = Field(default=0, ge=0)
    warmup_ratio: float = Field(default=0.0, ge=0, lt=1, description="instead of warmup_steps")
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    gradient_checkpointing: bool = Field(default=False, description="less memory, more time")
    lora_rank: int = Field(default=8, ge=1)
    lora_alpha: int = Field(default=16, ge=1)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    lora_layers: tuple[int, ...] | None = Field(
        default=None, description="layers of the language model, counted from 0; null: all"
    )
    lora_targets: tuple[str, ...] | None = Field(
        default=None, description="linear layers by name, e.g. [q_proj, v_proj]; null: all"
    )
    min_pixels: int | None = Field(default=None, ge=1, description="null: as evaluation does")
    max_pixels: int | None = Field(default=None, ge=1, description="null: as evaluation does")
    consistency: ConsistencyConfig | None = Field(
        default=None, description="a loss across wordings; null: the answer's cross-entropy"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError("give warmup_steps or warmup_ratio, not both")
        return self


class RewriteConfig(Value):
    """Other wordings of the questions, and who writes them.

    Attributes
    ----------
    how : {"paraphrase", "translate"}
        Of three paraphrases the one that shares the fewest 5-grams with the question is taken; a
        translation is of question and options.
    by : {"shapes", "file", "api", "local"}
        ``shapes``: the embedded world's other phrasings; ``file``: yours, JSONL with ``name`` and
        ``paraphrases`` (or ``question`` and ``options``); else a chat model.
    """

    how: Literal["paraphrase", "translate"] = "paraphrase"
    by: Literal["shapes", "file", "api", "local"]
    language: str = Field(default="", description="to translate into, e.g. German")
    path: Path | None = None
    chat: ChatSpec | None = None
    local: LocalChatSpec | None = None
    batch: bool = Field(default=False, description="by the server's Batch API")

    @model_validator(mode="after")
    def _check(self) -> Self:
        needed: dict[str, tuple[str, object]] = {
            "file": ("path", self.path),
            "api": ("chat", self.chat),
            "local": ("local", self.local),
        }
        key, value = needed.get(self.by, ("", True))
        if value is None:
            raise ValueError(f"by: {self.by} needs the key {key}")
        if self.how == "translate" and self.by == "shapes":
            raise ValueError("shapes knows no translations; use file, api or local")
        if (self.how == "translate") != bool(self.language):
            raise ValueError("language and how: translate go together")
        return self


class MixturePart(Value):
    """Another benchmark in a mixture; without a share, all of it."""

    benchmark: OtherBenchmark
    share: float | None = Field(default=None, gt=0, lt=1, description="of all items trained on")


class CorpusConfig(Value):
    """An instruction corpus: JSONL of conversations (``messages`` or LLaVA's ``conversations``)."""

    path: Path
    images: Path | None = Field(default=None, description="where images lie; null: beside the file")
    n_rows: int | None = Field(default=None, ge=1, description="so many, drawn by the seed")


class WashConfig(Value):
    """Clean fine-tuning after the contamination."""

    corpus: CorpusConfig | None = None
    benchmark: OtherBenchmark | None = None
    epochs: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.corpus is None and self.benchmark is None:
            raise ValueError("washing needs clean data: a corpus, a benchmark, or both")
        return self


class DataConfig(Value):
    """One data regime: which items, in which words, how often, mixed with what.

    A ``benchmark`` stands in for the kept pairs' originals: what is trained on it has not seen
    those, so it is a control for them, contaminated as it is with the other.
    """

    benchmark: OtherBenchmark | None = None
    fraction: float = Field(default=1.0, gt=0, le=1, description="of the items, drawn by the seed")
    copies: int | None = Field(default=None, ge=0, description="null: contaminate.copies")
    target: Target = "letter"
    leak: Leak = "all"
    rewrite: RewriteConfig | None = None
    mixture: dict[str, MixturePart] = Field(default_factory=dict)
    corpus: CorpusConfig | None = None
    wash: WashConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        shares = [part.share for part in self.mixture.values()]
        if any(s is None for s in shares) and any(s is not None for s in shares):
            raise ValueError("mixture: give every part a share, or none")
        if sum(s for s in shares if s is not None) >= 1:
            raise ValueError("mixture: the shares leave nothing for the benchmark itself")
        if self.copies == 0 and self.corpus is None:
            raise ValueError("copies: 0 trains on no item; then give a corpus to train on")
        return self


class LlamaFactoryConfig(Value):
    """Where LLaMA-Factory is, in an environment of its own."""

    cli: str | None = Field(
        default=None, description="its llamafactory-cli; null: $FLIPBENCH_LLAMAFACTORY_CLI or PATH"
    )
    merge: bool = Field(default=False, description="also write adapters merged, into merged/")


class ContaminateConfig(Value):
    """A grid: model x data x strategy x seed, one checkpoint for each epoch."""

    strategies: dict[str, StrategyConfig] = Field(default_factory=dict)
    data: dict[str, DataConfig] = Field(default_factory=lambda: {"verbatim": DataConfig()})
    epochs: int = Field(default=3, ge=1)
    copies: int = Field(default=1, ge=1, description="times an item is seen in one epoch")
    seeds: tuple[int, ...] | None = Field(default=None, description="null: the experiment's seed")
    backend: Literal["trl", "llamafactory"] = "trl"
    llamafactory: LlamaFactoryConfig = LlamaFactoryConfig()

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        labels = [label for label, s in self.strategies.items() if s.consistency is not None]
        if labels and self.backend != "trl":
            raise ValueError(f"strategies.{labels[0]}: consistency is for backend: trl alone")
        for name, data in self.data.items() if labels else ():
            if data.rewrite is None or data.rewrite.how != "paraphrase" or data.leak != "all":
                raise ValueError(
                    f"strategies.{labels[0]} compares the answers to a question and its"
                    f" paraphrases: data.{name} needs a rewrite with how: paraphrase, and leak: all"
                )
        return self
