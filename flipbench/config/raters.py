"""Vision-language models on this machine, as a configuration names them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from flipbench.core.records import Value

Dtype = Literal["float32", "bfloat16", "float16"]
Quantization = Literal["4bit"]


class ModelConfig(Value):
    """A vision-language model: a folder, a hub id, or ``shapes:llava`` / ``shapes:qwen2_vl``."""

    path: str
    dtype: Dtype = "float32"
    device: str = "auto"
    revision: str | None = None
    trust_remote_code: bool = False
    quantization: Quantization | None = Field(
        default=None,
        description="the language model's matrices in 4 bits, to ask; such a model is not trained",
    )


class LocalChatSpec(Value):
    """A vision-language model on this machine that captions or judges."""

    model: ModelConfig
    max_tokens: int = Field(default=800, ge=1)
    temperature: float = Field(default=0.0, ge=0, description="0 takes the likeliest token")


class LocalSpec(Value):
    """Whoever writes or judges with a chat model on this machine."""

    kind: Literal["local"] = "local"
    chat: LocalChatSpec
