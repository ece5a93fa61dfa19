"""A model under test behind a server, as a configuration names it."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator

from flipbench.config.chat import ChatSpec


class ServedModelConfig(ChatSpec):
    """A model under test behind an OpenAI-compatible server: vLLM, SGLang, a hosted model.

    It is asked greedily, and as a captioner or judge is reached (see `ChatSpec`).
    """

    not_taken: ClassVar[dict[str, str]] = {
        "max_tokens": "each probe says how long its reply may be",
        "structured": "a probe's reply is free text",
    }

    temperature: float | None = Field(
        default=0.0, ge=0, le=0, description="0: greedy; null: the server's default, not repeatable"
    )
    revision: str = Field(
        default="", description="the weights in your words, e.g. a commit; part of the fingerprint"
    )
    logprobs: bool | None = Field(
        default=None, description="whether the server tells log-probabilities; null: find out"
    )
    top_logprobs: int = Field(
        default=20, ge=2, description="how many of the likeliest tokens to ask for"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, why in self.not_taken.items():
            if getattr(self, name) != ServedModelConfig.model_fields[name].default:
                raise ValueError(f"{name} means nothing here: {why}")
        if self.logprobs and self.traits.reasoning:
            raise ValueError(
                "logprobs: a reasoning model's first token is a thought, not its answer"
            )
        return self
