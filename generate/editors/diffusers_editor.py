"""Redraw with any diffusers editing pipeline, by class name."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from string import Formatter
from typing import Any, ClassVar, Literal

from PIL import Image, ImageDraw
from pydantic import Field, ValidationError

from flipbench.config.kinds import Context
from flipbench.core.errors import ConfigError, DataError, nearest
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import ImageRef, JsonDict
from flipbench.models.protocols import Drawing
from flipbench.models.vlm.checkpoints import read_object

from .bad_input import nan_as_errors, unread_text, watch_for_nan
from .batching import Batches, Drawn, Prepared, Size, Task, draw_all, drawn_images
from .caches import attention_kernel
from .diffusers_loading import (
    PipelineSpec,
    call_arguments,
    find_class,
    find_pipeline,
    seeded,
    size_factor,
)
from .lazy_pipeline import LazyPipeline, Parts
from .sizes import fit, fit_mask

_RESERVED = (
    *("image", "prompt", "mask_image", "control_image", "control_mask"),
    *("height", "width", "generator", "max_area", "_auto_resize"),
    *("num_images_per_prompt", "output_type", "return_dict", "latents", "images"),
)
_INSTRUCTED = re.compile(r"kontext|edit|pix2pix", re.I)
_DESCRIBED = re.compile(r"inpaint|fill|img2img|control", re.I)
_COMPUTED = ("_embeds", "_embeds_mask", "_latents")
"""How the arguments end that hold tensors computed before; they replace prompt or image."""
FIELDS = ("caption", "question", "old_answer", "new_answer")


@dataclass(frozen=True)
class Adapter:
    """How to call a pipeline class.

    Attributes
    ----------
    defaults : dict
        Default call arguments.
    distilled : dict
        Those of a checkpoint whose index says ``is_distilled``, where they differ.
    mask : bool
        Whether it takes a mask of what may change.
    batches : bool
        Whether it takes a list of images as a batch. Pipelines with several reference images take
        a list as those, so they draw one image per call.
    exact_size : bool
        Whether it needs the area, and a flag, to keep it from resizing the image (Flux Kontext).
    factor : int or None
        Both sides must be a multiple of this; None asks the pipeline.
    """

    defaults: JsonDict = field(default_factory=dict)
    distilled: JsonDict = field(default_factory=dict)
    mask: bool = False
    batches: bool = False
    exact_size: bool = False
    factor: int | None = None


_QWEN = {"num_inference_steps": 50, "true_cfg_scale": 4.0, "negative_prompt": " "}
ADAPTERS: dict[str, Adapter] = {
    "FluxKontextPipeline": Adapter(
        {"num_inference_steps": 28, "guidance_scale": 3.5}, batches=True, exact_size=True
    ),
    "FluxKontextInpaintPipeline": Adapter(
        {"num_inference_steps": 28, "guidance_scale": 3.5, "strength": 1.0},
        mask=True,
        exact_size=True,
    ),
    "FluxFillPipeline": Adapter(
        {"num_inference_steps": 50, "guidance_scale": 30.0, "strength": 1.0},
        mask=True,
        batches=True,
    ),
    "FluxInpaintPipeline": Adapter(
        {"num_inference_steps": 28, "guidance_scale": 7.0, "strength": 0.85},
        mask=True,
        batches=True,
    ),
    "FluxImg2ImgPipeline": Adapter(
        {"num_inference_steps": 28, "guidance_scale": 7.0, "strength": 0.85}, batches=True
    ),
    "Flux2Pipeline": Adapter({"num_inference_steps": 50, "guidance_scale": 4.0}),
    "Flux2KleinPipeline": Adapter(
        {"num_inference_steps": 50, "guidance_scale": 4.0},
        distilled={"num_inference_steps": 4, "guidance_scale": 1.0},
    ),
    "QwenImageEditPipeline": Adapter(_QWEN),
    "QwenImageEditPlusPipeline": Adapter(_QWEN | {"num_inference_steps": 40}),
    "QwenImageEditInpaintPipeline": Adapter(_QWEN | {"strength": 1.0}, mask=True),
    "StableDiffusionInstructPix2PixPipeline": Adapter(
        {"num_inference_steps": 100, "guidance_scale": 7.5, "image_guidance_scale": 1.5},
        batches=True,
        factor=64,
    ),
}


class CallSpec(PipelineSpec):
    """How any diffusers pipeline is called."""

    pipeline_class: str | None = Field(
        default=None, description="default: the class in the pipeline's index"
    )
    arguments: dict[str, Any] = Field(
        default_factory=dict,
        description="call arguments of the pipeline, such as num_inference_steps",
    )
    instruction: str = Field(
        default="{caption}",
        description="prompt template with {caption}, {question}, {old_answer} and {new_answer}",
    )
    mask: Literal["none", "whole", "item"] = Field(
        default="none",
        description="what may change, for pipelines that take a mask: the whole image, or the"
        " item's extra['mask']; pixels outside it are restored from the source",
    )


class DiffusersEditorSpec(CallSpec):
    """Any diffusers editing pipeline: Flux Kontext, Qwen-Image-Edit, Flux Fill, and others."""

    kind: Literal["diffusers"] = "diffusers"

    @property
    def reads(self) -> Literal["caption", "instruction"] | None:
        """What the pipeline is told, by its class or its name; None if neither says so.

        None, too, if ``instruction`` is a template of one's own.
        """
        if self.instruction != "{caption}":
            return None
        index = Path(self.pipeline) / "model_index.json"
        name = self.pipeline
        if index.is_file():
            with contextlib.suppress(DataError):
                name = str(read_object(index).get("_class_name") or name)
        if _DESCRIBED.search(name):
            return "caption"
        return "instruction" if _INSTRUCTED.search(name) else None

    def build(self, context: Context) -> DiffusersEditor:
        """Return the editor; weights are loaded when the first image is drawn."""
        return DiffusersEditor(self)


class DiffusersEditor:
    """Redraws an image with an editing pipeline that takes an image and an instruction.

    ``ADAPTERS`` describes the calls of known classes. Others get those of ``image``, ``prompt``,
    ``height``, ``width`` and ``mask_image`` that they accept. The ``text`` offload means ``none``.

    Raises
    ------
    ConfigError
        If class, arguments, template and mask are incompatible.
    PrerequisiteError
        If there is no such pipeline.

    Notes
    -----
    Weights are loaded when the first image is drawn: resuming a finished run needs none.
    """

    adapters: ClassVar[dict[str, Adapter]] = ADAPTERS

    def __init__(self, spec: CallSpec) -> None:
        self.spec, self.batches = spec, Batches(spec.batch_size)
        _check_template(spec.instruction)
        folder, index = find_pipeline(spec.pipeline, spec.revision)
        self.name: str = spec.pipeline_class or self._class_for(index["_class_name"])
        cls = find_class(self.name)
        self._parameters = call_arguments(cls)
        self.adapter = self.adapters.get(self.name) or self._default_adapter()
        _check_mask(spec.mask, self.name, self.adapter)
        distilled = self.adapter.distilled if index.get("is_distilled") is True else {}
        self.arguments = self._check_arguments(distilled | spec.arguments)
        elsewhere = self._find_parts(folder)
        self._source = LazyPipeline(
            spec, cls, folder, index, elsewhere, controlnet=self._has_controlnet
        )
        self.settings: JsonDict = {
            "pipeline_class": self.name,
            "arguments": self.arguments,
            "instruction": spec.instruction,
            "mask": spec.mask,
            **self._source.settings,
        }

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        """Redraw a batch, in order."""
        return draw_all(candidates, seeds, images, self._prepare, self._draw, self.batches)

    def release(self) -> None:
        """Drop the weights; the next image loads them again."""
        self._source.release()
        vars(self).pop("_pipeline", None)

    @property
    def factor(self) -> int:
        """Both sides of an image must be a multiple of this."""
        return self.adapter.factor or size_factor(self._source.loaded)

    @cached_property
    def _pipeline(self) -> Any:
        return self._source.placed(self._source.loaded)

    @property
    def _has_controlnet(self) -> bool:
        return False

    def _class_for(self, index_class: str) -> str:
        """Return the class to load a checkpoint as, by default that of its index."""
        return index_class

    def _find_parts(self, folder: Path) -> Parts:
        """Return the parts that are not in the pipeline's folder."""
        return {}

    def _default_adapter(self) -> Adapter:
        return _default_adapter(self.name, self._parameters)

    def _prepare(self, candidate: Candidate, seed: int, images: ImageStore) -> Prepared:
        prompt = self.spec.instruction.format(
            caption=candidate.caption_text,
            question=candidate.item.question,
            old_answer=candidate.item.answer_text,
            new_answer=candidate.flip.new_text if candidate.flip else "",
        )
        source = images.open(candidate.source)
        plan = self.spec.sizes.plan(*source.size, self.factor, candidate.subject)
        mask = None
        if self.spec.mask == "whole":
            mask = Image.new("L", source.size, 255)
        elif self.spec.mask == "item":
            mask = mask_of(candidate, source.size, images)
        task = Task(prompt, fit(source, plan), seed, mask and fit_mask(mask, plan))
        finish = partial(Image.composite, image2=source, mask=mask) if mask else None
        max_tokens = self.arguments.get(
            "max_sequence_length", self._parameters.get("max_sequence_length")
        )
        text_read = unread_text(self._source.loaded, prompt, max_tokens, candidate.subject)
        return Prepared(plan, task, {"prompt": prompt} | text_read, finish)

    def _draw(self, size: Size, tasks: Sequence[Task]) -> list[Drawn]:
        if self.adapter.batches:
            return self._call(size, tasks)
        return [self._call(size, [task])[0] for task in tasks]

    def _call(self, size: Size, tasks: Sequence[Task]) -> list[Drawn]:
        import torch

        arguments = self.arguments | self._inputs(tasks)
        arguments["prompt"] = one_or_list([task.prompt for task in tasks])
        if len(tasks) > 1 and isinstance(arguments.get("negative_prompt"), str):
            arguments["negative_prompt"] = [arguments["negative_prompt"]] * len(tasks)
        if "height" in self._parameters:
            arguments |= {"width": size[0], "height": size[1]}
        if self.adapter.exact_size:
            arguments |= {"max_area": size[0] * size[1], "_auto_resize": False}
        arguments["generator"] = [torch.Generator().manual_seed(task.seed) for task in tasks]
        pipeline = self._pipeline
        seed, kernels = (
            seeded(tasks[0].seed, self._source.device),
            attention_kernel(self.spec.attention),
        )
        with seed, kernels, watch_for_nan(pipeline) as flags:
            drawings = drawn_images(pipeline(**arguments))
        return nan_as_errors(drawings, flags, self.spec.dtype)

    def _inputs(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """Return the call arguments that are images."""
        inputs = {"image": one_or_list([task.image for task in tasks])}
        if tasks[0].mask is not None:
            inputs["mask_image"] = one_or_list([task.mask for task in tasks])
        return inputs

    def _check_arguments(self, configured: JsonDict) -> JsonDict:
        for key in configured:
            if key not in self._parameters:
                hint = nearest(key, list(self._parameters))
                raise ConfigError(f"arguments: {self.name} takes no {key!r}{hint}")
            if key in _RESERVED or key.endswith(_COMPUTED) or key.startswith("callback"):
                raise ConfigError(f"arguments: {key!r} is set by the editor; remove it")
        arguments = self.adapter.defaults | configured
        scale = arguments.get("true_cfg_scale", self._parameters.get("true_cfg_scale", 1))
        if "true_cfg_scale" in self._parameters and scale > 1:
            arguments.setdefault("negative_prompt", "")  # without one, the scale has no effect
        return arguments


def mask_of(candidate: Candidate, size: tuple[int, int], images: ImageStore) -> Image.Image:
    """Return an item's mask (L), 255 where the image may change.

    ``extra['mask']`` is either ``{"boxes": [[left, top, right, bottom], ...]}`` in pixels or an
    image reference (white may change), or a list of these: one for each of the item's images.

    Raises
    ------
    DataError
        If ``extra['mask']`` is missing or not a mask of this size.
    """
    source = candidate.item.extra.get("mask")
    if isinstance(source, list) and len(source) == len(candidate.item.images):
        source = source[candidate.picture]
    if isinstance(source, dict) and "boxes" in source:
        mask = Image.new("L", size, 0)
        try:
            for x0, y0, x1, y1 in source["boxes"]:
                ImageDraw.Draw(mask).rectangle((x0, y0, x1 - 1, y1 - 1), fill=255)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{candidate.subject}: extra['mask'] has a box that is not"
                f" [left, top, right, bottom] ({error})"
            ) from error
    else:
        try:
            mask = images.open(ImageRef.model_validate(source)).convert("L")
        except ValidationError as error:
            raise DataError(
                f"{candidate.subject}: extra['mask'] is neither boxes nor an image reference;"
                " set mask to 'whole', or give the item a mask"
            ) from error
        mask = mask.point([255 * (level >= 128) for level in range(256)])
    if mask.size != size:
        raise DataError(f"{candidate.subject}: the mask has {mask.size} pixels, the image {size}")
    if mask.getextrema()[1] == 0:
        raise DataError(f"{candidate.subject}: the mask is empty, so nothing may change")
    return mask


def one_or_list(values: list[Any]) -> Any:
    """Return a single value as it is, since some pipelines read a list otherwise."""
    return values[0] if len(values) == 1 else values


def _default_adapter(class_name: str, parameters: Mapping[str, Any]) -> Adapter:
    lacking = {"image", "prompt", "generator"} - set(parameters)
    if lacking:
        raise ConfigError(
            f"{class_name}: takes no {' and no '.join(sorted(lacking))}, so it cannot edit an image"
            f" from an instruction; these can: {', '.join(ADAPTERS)}"
        )
    return Adapter(mask="mask_image" in parameters)


def _check_template(instruction: str) -> None:
    try:
        names = {name for _, name, _, _ in Formatter().parse(instruction) if name is not None}
    except ValueError as error:
        raise ConfigError(f"instruction: {instruction!r} is not a template ({error})") from error
    for name in names - set(FIELDS):
        raise ConfigError(
            f"instruction: {{{name}}} is none of {FIELDS}{nearest(name, list(FIELDS))}"
        )
    if not names & {"caption", "new_answer"}:
        raise ConfigError(
            "instruction: it must contain {caption} or {new_answer}, or every edit is the same"
        )


def _check_mask(mask: str, class_name: str, adapter: Adapter) -> None:
    if adapter.mask and mask == "none":
        raise ConfigError(f"{class_name} needs a mask; set mask to 'whole' or 'item'")
    if mask != "none" and not adapter.mask:
        raise ConfigError(f"{class_name} takes no mask; set mask to 'none'")
