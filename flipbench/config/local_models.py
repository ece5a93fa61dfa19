"""Settings of vision-language models that run on this machine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from flipbench.config.trust import KeyPath
from flipbench.core.records import Value

Dtype = Literal["float32", "bfloat16", "float16"]
Quantization = Literal["4bit"]
ImagePadding = Literal["auto", "square", "none"]


class ModelConfig(Value):
    """A vision-language model: a folder, a hub id, or ``shapes:llava`` / ``shapes:qwen2_vl``."""

    path: str
    dtype: Dtype = "float32"
    device: str = "auto"
    revision: str | None = None
    trust_remote_code: bool = False
    quantization: Quantization | None = None
    """Load the language model's weights in 4 bits, for evaluation only."""
    image_padding: ImagePadding = "auto"
    """square: pad pictures to a square in the processor's mean colour instead of cropping them, in
    training and asking alike; none: leave them to the processor; auto: square for LLaVA-1.5, as its
    makers do, none for other models."""
    cache_mib: int | None = Field(default=None, ge=0)
    """Memory for the keys and values of pictures and texts that are asked about: it changes speed,
    not answers; default: 2048, or a quarter of a GPU's free memory."""

    def needs_trust(self) -> tuple[KeyPath, ...]:
        """Return the switch by which code beside the weights runs, if it is on."""
        return (("trust_remote_code",),) if self.trust_remote_code else ()


class LocalChatSpec(Value):
    """A vision-language model used as a chat model."""

    model: ModelConfig
    max_tokens: int = Field(default=800, ge=1)
    """Limit of a reply."""
    temperature: float = Field(default=0.0, ge=0)
    """0: greedy decoding."""


class LocalSpec(Value):
    """A chat model on this machine, as captioner, judge or rewriter."""

    kind: Literal["local"] = "local"
    chat: LocalChatSpec
