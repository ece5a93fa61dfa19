"""Who writes captions and who judges pairs, as a configuration names them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from flipbench.config.chat import ChatSpec
from flipbench.config.editors import Dtype, by_kind
from flipbench.core.records import Value
from flipbench.prompting.prompts import Asking

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


class _ByAPI(Value):
    kind: Literal["api"] = "api"
    chat: ChatSpec
    batch: bool = Field(default=False, description="by the server's Batch API: half the price")


class _ByLocal(Value):
    kind: Literal["local"] = "local"
    chat: LocalChatSpec


class _Captioning(Value):
    prompt: str = Field(
        default="caption-release-v1", description="a name of generate/prompts, or a .txt file"
    )
    counterfactual_prompt: str = Field(
        default="counterfactual-v1", description="how a free-form item's new answer is asked for"
    )


class ShapesCaptionerSpec(Value):
    """The embedded world's own captioner."""

    kind: Literal["shapes"] = "shapes"


class APICaptionerSpec(_ByAPI, _Captioning):
    """Captions from an OpenAI-compatible server."""


class LocalCaptionerSpec(_ByLocal, _Captioning):
    """Captions from a model on this machine."""


class _Judging(Value):
    prompt: str | None = Field(default=None, description="judge-v1, or judge-blind-v1 where blind")
    blind: bool = Field(default=False, description="the judge is not told the new answer")


class ShapesJudgeSpec(Value):
    """The embedded world's oracle, which knows the scene that was drawn."""

    kind: Literal["shapes"] = "shapes"


class APIJudgeSpec(_ByAPI, _Judging):
    """A judge model behind an OpenAI-compatible server."""


class LocalJudgeSpec(_ByLocal, _Judging):
    """A judge model on this machine."""


class VLMJudgeSpec(Value):
    """A model on this machine that answers the question, not told the new answer."""

    kind: Literal["vlm"] = "vlm"
    model: ModelConfig
    asking: Asking = Asking()
    sure: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="'unsure' where the answer has less of the options' probability; only with"
        " 'ask: choose'",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sure and self.asking.ask != "choose":
            raise ValueError("sure needs 'ask: choose': what is generated has no probability")
        return self


CaptionerSpec = Annotated[
    Annotated[
        ShapesCaptionerSpec | APICaptionerSpec | LocalCaptionerSpec, Field(discriminator="kind")
    ],
    BeforeValidator(by_kind),
]
JudgeSpec = Annotated[
    Annotated[
        ShapesJudgeSpec | APIJudgeSpec | LocalJudgeSpec | VLMJudgeSpec, Field(discriminator="kind")
    ],
    BeforeValidator(by_kind),
]
ChatBackedSpec = APICaptionerSpec | LocalCaptionerSpec | APIJudgeSpec | LocalJudgeSpec
