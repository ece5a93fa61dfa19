"""How a diffusion editor is set, as a configuration says it and an edit remembers it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from flipbench.core.records import Value

Dtype = Literal["float32", "bfloat16", "float16"]
Offload = Literal["none", "text", "model"]


class FluxSettings(Value):
    """What the picture depends on beside weights, caption, control and seed.

    The defaults are the reference's (Park et al., arXiv 2511.03774, and its released script).
    """

    steps: int = Field(default=25, ge=1, description="denoising steps")
    guidance: float = Field(
        default=4.0, description="the distilled guidance, an input of the transformer"
    )
    control_weight: float = Field(default=0.8, description="multiplies what the ControlNet adds")
    control_start: float = Field(default=0.0, ge=0, le=1, description="share of the steps")
    control_end: float = Field(default=1.0, ge=0, le=1, description="share of the steps")
    control_mode: int | None = Field(
        default=None, description="for ControlNet-Union only: which of its kinds"
    )
    true_cfg: float = Field(
        default=3.5, description="scale of true classifier-free guidance; 1 switches it off"
    )
    true_cfg_start: int = Field(default=5, ge=0, description="the first step that is guided so")
    negative_control: bool = Field(
        default=True, description="whether the ControlNet sees the negative prompt"
    )
    negative_prompt: str = Field(default="", description="what is guided away from")
    schedule: Literal["x-flux", "pipeline"] = Field(
        default="x-flux",
        description="how noise levels shift with the picture's size: as the reference or diffusers",
    )
    max_text_tokens: int = Field(default=512, ge=1, le=512, description="where T5 cuts the caption")


class ControlSpec(Value):
    """Which control image a ControlNet is shown; `flipbench.generate.editors.controls.Control` makes it."""

    kind: str = "canny"
    detect: Literal["x-flux", "run size"] = "x-flux"
    low: int = 100
    high: int = 200
    arguments: dict[str, Any] = Field(default_factory=dict)
    weights: str = "lllyasviel/Annotators"


class SizeSpec(Value):
    """At which size a picture is edited; `flipbench.generate.editors.sizes.SizeRule` says how."""

    min_edge: int = Field(default=256, ge=1)
    max_pixels: int = Field(default=2048 * 2048, ge=1)
    small: Literal["enlarge", "refuse"] = "enlarge"


class ShapesEditorSpec(Value):
    """The embedded world's own editor."""

    kind: Literal["shapes"] = "shapes"
    wrong: float = Field(default=0.0, ge=0, le=1, description="share of pictures drawn wrong")


class _Drawing(Value):
    pipeline: str = Field(description="folder or hub id")
    revision: str | None = None
    sizes: SizeSpec = SizeSpec()
    batch_size: int = Field(default=1, ge=1, description="1 is the exact mode")
    dtype: Dtype = "bfloat16"
    device: str = "auto"
    offload: Offload = "none"
    compile: bool = False


class FluxEditorSpec(_Drawing):
    """Flux with a ControlNet, the reference's editor; it draws what a caption says."""

    kind: Literal["flux-controlnet"] = "flux-controlnet"
    controlnet: str | None = Field(
        default=None, description="folder or hub id, where the pipeline has none of its own"
    )
    controlnet_revision: str | None = None
    settings: FluxSettings = FluxSettings()
    control: ControlSpec = ControlSpec()


class DiffusersEditorSpec(_Drawing):
    """Any editing pipeline of diffusers: Flux Kontext, Qwen-Image-Edit, Flux Fill, and others."""

    kind: Literal["diffusers"] = "diffusers"
    pipeline_class: str | None = Field(default=None, description="the index's own if unset")
    arguments: dict[str, Any] = Field(default_factory=dict, description="of the pipeline's call")
    instruction: str = "{caption}"
    mask: Literal["none", "whole", "item"] = "none"


def by_kind(value: Any) -> Any:
    """Let ``shapes`` stand for ``{kind: shapes}``."""
    return {"kind": value} if isinstance(value, str) else value


EditorSpec = Annotated[
    Annotated[ShapesEditorSpec | FluxEditorSpec | DiffusersEditorSpec, Field(discriminator="kind")],
    BeforeValidator(by_kind),
]
