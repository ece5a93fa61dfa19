"""Settings of a model under test behind a server, and of a server that flipbench starts."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from flipbench.config.chat import ChatSpec
from flipbench.config.trust import KeyPath
from flipbench.core.records import JsonDict, Value


class ServedModelConfig(ChatSpec):
    """A model under test behind an OpenAI-compatible server: vLLM, SGLang, a hosted model.

    It is decoded greedily; the connection settings are those of `ChatSpec`.
    """

    unsupported: ClassVar[dict[str, str]] = {
        "max_tokens": "each probe limits the length of its reply",
        "structured": "replies to probes are free text",
    }

    temperature: float | None = Field(default=0.0, ge=0, le=0)
    """0: greedy; null: the server's default, not reproducible."""
    revision: str = ""
    """Your label of the weights, e.g. a commit; part of the fingerprint."""
    logprobs: bool | None = None
    """Whether the server returns log-probabilities; null: try it."""
    prompt_logprobs: bool | None = None
    """Whether the server returns log-probabilities of given texts; null: try it."""
    top_logprobs: int = Field(default=20, ge=2)
    """How many of the most likely tokens to request."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, reason in self.unsupported.items():
            if getattr(self, name) != ServedModelConfig.model_fields[name].default:
                raise ValueError(f"{name} has no effect here: {reason}")
        if self.logprobs and self.traits.reasoning:
            raise ValueError("logprobs: a reasoning model's first token is not its answer")
        if self.prompt_logprobs and (self.traits.reasoning or self.logprobs is False):
            raise ValueError("prompt_logprobs: needs logprobs, and a model that does not reason")
        return self


class VLLMConfig(Value):
    """A vLLM server that is started for a checkpoint; ``engine: vllm`` is all defaults."""

    kind: Literal["vllm"] = "vllm"
    executable: str = Field(default="vllm", min_length=1)
    """Of vLLM's own environment: /opt/vllm/bin/vllm."""
    batch_invariant: bool = False
    """Answers do not depend on what else is in the batch; slower, not on all GPUs."""
    mm_processor_kwargs: JsonDict = Field(default_factory=dict)
    """How pictures are prepared, e.g. {max_pixels: 1003520}."""
    images_per_prompt: int | None = Field(default=None, ge=1)
    """Limit of pictures in a question; null: vLLM's default."""
    max_lora_rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] | None = None
    """The largest rank of its adapters; null: it gets none."""
    max_length: int | None = Field(default=None, ge=16)
    """Context in tokens; null: the model's."""
    gpu_memory: float = Field(default=0.9, gt=0, le=1)
    """Share that vLLM may take."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs that share the weights."""
    arguments: tuple[str, ...] = ()
    """Further ones of 'vllm serve'."""
    n_concurrent: int = Field(default=64, ge=1)
    """Requests at the same time."""
    start_timeout: float = Field(default=1800, gt=0)
    """Seconds until it must be ready."""
    parity: int = Field(default=50, ge=0)
    """Of how many items the answers are compared with those of transformers; it asks them before
    the server starts."""

    @field_validator("arguments")
    @classmethod
    def _not_ours(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        reserved = ("--host", "--port", "--served-model-name", "--api-key")
        if conflicts := [a for a in arguments if a.partition("=")[0] in reserved]:
            raise ValueError(f"{conflicts[0]} is set by flipbench")
        return arguments

    def needs_trust(self) -> list[KeyPath]:
        """Return the program and its options, which can load code, unless they are the default."""
        fields = type(self).model_fields
        names = ("executable", "arguments")
        return [(name,) for name in names if getattr(self, name) != fields[name].default]

    @property
    def settings(self) -> dict[str, Any]:
        """What answers may depend on, for the fingerprint."""
        return self.model_dump(
            mode="json", include={"batch_invariant", "mm_processor_kwargs", "arguments"}
        )
