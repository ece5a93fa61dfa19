"""Redraw with any diffusers pipeline that is controlled by an image of the original's structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from flipbench.config.kinds import Context
from flipbench.core.errors import ConfigError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate

from .bad_input import check_control
from .batching import Prepared, Task
from .controls import Control
from .diffusers_editor import Adapter, CallSpec, DiffusersEditor, one_or_list
from .diffusers_loading import diffusers, find_part, part_hash, with_controlnet
from .lazy_pipeline import Parts


@dataclass(frozen=True)
class ControlAdapter(Adapter):
    """How to call a structure-controlled pipeline class.

    Attributes
    ----------
    controlnet : str or None
        Class of its ControlNet; None if the transformer itself was trained on control images.
    source : bool
        Whether it takes the source image too, of which it keeps what the mask does not cover.
    fills : bool
        Whether its control image is the source image, and its mask ``control_mask``
        (Qwen-Image's ControlNet for inpainting).
    """

    controlnet: str | None = None
    source: bool = False
    fills: bool = False


_FLUX = {"num_inference_steps": 28, "guidance_scale": 3.5, "controlnet_conditioning_scale": 0.8}
_FLUX_CONTROL = {"num_inference_steps": 50, "guidance_scale": 30.0}
_QWEN = {
    "num_inference_steps": 50,
    "true_cfg_scale": 4.0,
    "negative_prompt": " ",
    "controlnet_conditioning_scale": 1.0,
}
_Z_IMAGE = {
    "num_inference_steps": 50,
    "guidance_scale": 5.0,
    "negative_prompt": "",
    "controlnet_conditioning_scale": 0.75,
}
CONTROLLED: dict[str, ControlAdapter] = {
    "FluxControlNetPipeline": ControlAdapter(_FLUX, batches=True, controlnet="FluxControlNetModel"),
    "FluxControlNetInpaintPipeline": ControlAdapter(
        _FLUX | {"strength": 1.0},
        mask=True,
        batches=True,
        controlnet="FluxControlNetModel",
        source=True,
    ),
    "FluxControlPipeline": ControlAdapter(_FLUX_CONTROL, batches=True),
    "FluxControlInpaintPipeline": ControlAdapter(
        _FLUX_CONTROL | {"strength": 1.0}, mask=True, batches=True, source=True
    ),
    "QwenImageControlNetPipeline": ControlAdapter(_QWEN, controlnet="QwenImageControlNetModel"),
    "QwenImageControlNetInpaintPipeline": ControlAdapter(
        _QWEN, mask=True, controlnet="QwenImageControlNetModel", fills=True
    ),
    "ZImageControlNetPipeline": ControlAdapter(_Z_IMAGE, controlnet="ZImageControlNetModel"),
    "ZImageControlNetInpaintPipeline": ControlAdapter(
        _Z_IMAGE, mask=True, controlnet="ZImageControlNetModel", source=True
    ),
}
_PAIRS = {
    "FluxControlNet": ("FluxControlNetPipeline", "FluxControlNetInpaintPipeline"),
    "FluxControl": ("FluxControlPipeline", "FluxControlInpaintPipeline"),
    "QwenImageControlNet": ("QwenImageControlNetPipeline", "QwenImageControlNetInpaintPipeline"),
    "ZImageControlNet": ("ZImageControlNetPipeline", "ZImageControlNetInpaintPipeline"),
}
FAMILIES = _PAIRS | {
    "FluxPipeline": _PAIRS["FluxControlNet"],
    "QwenImagePipeline": _PAIRS["QwenImageControlNet"],
    "ZImagePipeline": _PAIRS["ZImageControlNet"],
}
"""How a checkpoint's class begins: the class without a mask, and the class with one."""


class ControlNetEditorSpec(CallSpec):
    """Flux, Qwen-Image or Z-Image with a ControlNet, or Flux Control (Canny, Depth)."""

    kind: Literal["controlnet"] = "controlnet"
    controlnet: str | None = Field(
        default=None,
        description="folder, hub id, or a file of safetensors in either; not needed if the pipeline"
        " includes one or its transformer reads control images (FLUX.1-Canny-dev)",
    )
    controlnet_revision: str | None = None
    control: Control = Control(detect="run size")

    def n_weights(self) -> dict[str, int] | None:
        """Return the number of weights of each part, of the ControlNet too."""
        return with_controlnet(super().n_weights(), self.controlnet, self.controlnet_revision)

    @property
    def reads(self) -> Literal["caption"] | None:
        """What the pipeline is told; None if its instruction is a template of one's own."""
        return "caption" if self.instruction == "{caption}" else None

    def build(self, context: Context) -> ControlNetEditor:
        """Return the editor; weights are loaded when the first image is drawn."""
        return ControlNetEditor(self)


class ControlNetEditor(DiffusersEditor):
    """Redraws an image from its caption, with the structure of the original.

    ``CONTROLLED`` describes the classes. A checkpoint's family decides which of them is used, and
    whether there is a mask; ``pipeline_class`` overrules that. The control image is stored, with
    a reference in the edit's ``extra['control']``. Otherwise it is a `DiffusersEditor`.

    Raises
    ------
    ConfigError
        If class, ControlNet, control image, arguments, template and mask are incompatible.
    PrerequisiteError
        If there is no such pipeline or ControlNet.
    """

    adapters: ClassVar[dict[str, Adapter]] = dict(CONTROLLED)
    spec: ControlNetEditorSpec
    adapter: ControlAdapter

    def __init__(self, spec: ControlNetEditorSpec) -> None:
        super().__init__(spec)
        self.settings["control"] = spec.control.settings
        if self.adapter.controlnet:
            own_folder = self._source.folder / "controlnet"
            _, path = self._source.elsewhere.get("controlnet", (None, own_folder))
            self.settings["controlnet"] = part_hash(path)[:24]

    def _find_parts(self, folder: Path) -> Parts:
        spec, class_name, parts = self.spec, self.adapter.controlnet, dict[str, Any]()
        if spec.controlnet is not None:
            if class_name is None:
                raise ConfigError(
                    f"{self.name} has no ControlNet: its transformer reads the control image;"
                    " remove controlnet"
                )
            path = find_part(spec.controlnet, spec.controlnet_revision)
            parts["controlnet"] = getattr(diffusers(), class_name), path
        if class_name and not (parts or (folder / "controlnet").is_dir()):
            raise PrerequisiteError(
                f"{spec.pipeline}: does not include a ControlNet; set controlnet to one for"
                f" {self.name}"
            )
        if self.adapter.fills and spec.control.kind != "none":
            raise ConfigError(
                f"{self.name}: its ControlNet fills in the masked image itself; set control to"
                " {kind: none}"
            )
        return parts

    @property
    def _has_controlnet(self) -> bool:
        return self.adapter.controlnet is not None

    def _class_for(self, index_class: str) -> str:
        fitting = [pair for start, pair in FAMILIES.items() if index_class.startswith(start)]
        if not fitting:
            raise ConfigError(
                f"{self.spec.pipeline}: a {index_class}, for which diffusers has no ControlNet;"
                f" these pipelines have one: {', '.join(CONTROLLED)}"
            )
        return fitting[0][self.spec.mask != "none"]

    def _default_adapter(self) -> Adapter:
        raise ConfigError(
            f"{self.name} is none of the structure-controlled pipelines"
            f" ({', '.join(CONTROLLED)}); use the editor 'diffusers' for others"
        )

    def _prepare(self, candidate: Candidate, seed: int, images: ImageStore) -> Prepared:
        prepared = super()._prepare(candidate, seed, images)
        control = self.spec.control(prepared.task.image)
        check_control(control, self.spec.control.settings, candidate.subject)
        ref = images.put_image(control, f"control image of {candidate.subject}")
        extra = prepared.extra | {"control": ref.model_dump(mode="json")}
        return replace(prepared, task=replace(prepared.task, control=control), extra=extra)

    def _inputs(self, tasks: Sequence[Task]) -> dict[str, Any]:
        inputs = {"control_image": one_or_list([task.control for task in tasks])}
        if self.adapter.source:
            inputs["image"] = one_or_list([task.image for task in tasks])
        if self.adapter.mask:
            name = "control_mask" if self.adapter.fills else "mask_image"
            inputs[name] = one_or_list([task.mask for task in tasks])
        return inputs
