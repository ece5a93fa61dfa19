"""Settings of a model under test behind a server."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from flipbench.config.chat import ChatSpec


class ServedModelConfig(ChatSpec):
    """A model under test behind an OpenAI-compatible server: vLLM, SGLang, a hosted model.

    It is decoded greedily; the connection settings are those of `ChatSpec`.
    """

    unsupported: ClassVar[dict[str, str]] = {
        "max_tokens": "each probe limits the length of its reply",
        "structured": "replies to probes are free text",
    }

    temperature: float | None = Field(
        default=0.0,
        ge=0,
        le=0,
        description="0: greedy; null: the server's default, not reproducible",
    )
    revision: str = Field(
        default="",
        description="your label of the weights, e.g. a commit; part of the fingerprint",
    )
    logprobs: bool | None = Field(
        default=None, description="whether the server returns log-probabilities; null: try it"
    )
    prompt_logprobs: bool | None = Field(
        default=None,
        description="whether the server returns log-probabilities of given texts; null: try it",
    )
    top_logprobs: int = Field(
        default=20, ge=2, description="how many of the most likely tokens to request"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, why in self.unsupported.items():
            if getattr(self, name) != ServedModelConfig.model_fields[name].default:
                raise ValueError(f"{name} has no effect here: {why}")
        if self.logprobs and self.traits.reasoning:
            raise ValueError("logprobs: a reasoning model's first token is not its answer")
        if self.prompt_logprobs and (self.traits.reasoning or self.logprobs is False):
            raise ValueError("prompt_logprobs: needs logprobs, and a model that does not reason")
        return self
