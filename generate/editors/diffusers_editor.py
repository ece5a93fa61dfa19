"""Redraw with any editing pipeline of diffusers, by its class name."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, Literal

from PIL import Image, ImageDraw
from pydantic import Field, ValidationError

from flipbench.config.kinds import Context
from flipbench.core.errors import ConfigError, DataError, nearest
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import ImageRef, JsonDict
from flipbench.models.protocols import Drawing

from .batching import Batches, Drawn, Prepared, Size, draw_all, pictures
from .diffusers_loading import (
    PipelineSpec,
    call_arguments,
    diffusers,
    find_class,
    find_pipeline,
    fingerprint,
    load_pipeline,
    place,
    resolve_device,
    size_factor,
)
from .sizes import SizeRule, fit, fit_mask

MASKS = ("none", "whole", "item")
FIELDS = ("caption", "question", "old_answer", "new_answer")


@dataclass(frozen=True)
class Adapter:
    """How a pipeline class is called.

    Attributes
    ----------
    defaults : dict
        Arguments of the call, unless the user gives others.
    mask : bool
        Whether it takes a mask of what may change.
    batches : bool
        Whether a list of pictures is a batch. Pipelines that take several reference pictures read
        a list as such, and draw one at a time.
    exact_size : bool
        Whether it must be told the area and not to resize the picture (Flux Kontext).
    factor : int or None
        What both sides must be a multiple of; None asks the pipeline.
    """

    defaults: JsonDict = field(default_factory=dict)
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
    "Flux2KleinPipeline": Adapter({"num_inference_steps": 50, "guidance_scale": 4.0}),
    "QwenImageEditPipeline": Adapter(_QWEN),
    "QwenImageEditPlusPipeline": Adapter(_QWEN | {"num_inference_steps": 40}),
    "QwenImageEditInpaintPipeline": Adapter(_QWEN | {"strength": 1.0}, mask=True),
    "StableDiffusionInstructPix2PixPipeline": Adapter(
        {"num_inference_steps": 100, "guidance_scale": 7.5, "image_guidance_scale": 1.5},
        batches=True,
        factor=64,
    ),
}


class DiffusersEditorSpec(PipelineSpec):
    """Any editing pipeline of diffusers: Flux Kontext, Qwen-Image-Edit, Flux Fill, and others."""

    kind: Literal["diffusers"] = "diffusers"
    pipeline_class: str | None = Field(default=None, description="the index's own if unset")
    arguments: dict[str, Any] = Field(default_factory=dict, description="of the pipeline's call")
    instruction: str = "{caption}"
    mask: Literal["none", "whole", "item"] = "none"

    def build(self, context: Context) -> DiffusersEditor:
        """Return the editor; weights are read when the first picture is drawn."""
        return DiffusersEditor(
            pipeline_class=self.pipeline_class,
            arguments=self.arguments,
            instruction=self.instruction,
            mask=self.mask,
            **self.options(),
        )


@dataclass(frozen=True)
class _Task:
    prompt: str
    image: Image.Image
    mask: Image.Image | None
    seed: int


class DiffusersEditor:
    """Redraws a picture with an editing pipeline that takes picture and instruction.

    Parameters
    ----------
    pipeline : str
        Folder or hub id.
    pipeline_class : str, optional
        Class of diffusers to load it as; the one its index names by default. ``ADAPTERS`` says how
        the known ones are called; of others ``image``, ``prompt``, ``height``, ``width`` and
        ``mask_image`` are used as far as they exist.
    arguments : mapping, optional
        Further arguments of the call (``num_inference_steps``, ``guidance_scale``, ``strength``).
    instruction : str
        What the pipeline is told; ``{caption}``, ``{question}``, ``{old_answer}`` and
        ``{new_answer}`` are filled in.
    mask : {'none', 'whole', 'item'}
        What may change, for pipelines that take a mask: the whole picture, or what the item's
        ``extra['mask']`` says, either ``{"boxes": [[left, top, right, bottom], ...]}`` in pixels
        or an image reference (white may change). Outside of it the source's pixels are put back
        unchanged.
    sizes, batch_size, dtype, device, offload, revision, name
        As of ``FluxControlNetEditor``; here the ``text`` offload means ``none``.
    compile : bool
        Compile the transformer's repeated blocks.

    Raises
    ------
    ConfigError
        Where class, arguments, template and mask do not fit together.
    PrerequisiteError
        Where there is no such pipeline.

    Notes
    -----
    Weights are read when the first picture is drawn: a finished run needs none.
    """

    def __init__(
        self,
        pipeline: str,
        pipeline_class: str | None = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        instruction: str = "{caption}",
        mask: str = "none",
        sizes: SizeRule | None = None,
        batch_size: int = 1,
        dtype: str = "bfloat16",
        device: str = "auto",
        offload: str = "none",
        compile: bool = False,
        revision: str | None = None,
        name: str = "",
    ) -> None:
        _check_template(instruction)
        device = resolve_device(device, offload)
        folder, index = find_pipeline(pipeline, revision)
        class_name = pipeline_class or index["_class_name"]
        self._takes = call_arguments(find_class(class_name))
        self.adapter = ADAPTERS.get(class_name) or _guess(class_name, self._takes)
        _check_mask(mask, class_name, self.adapter)
        self.arguments = self._check_arguments(arguments or {}, class_name)
        self._folder, self._class_name, self._dtype = folder, class_name, dtype
        self._device, self._compile = device, compile
        self._offload = "none" if offload == "text" else offload
        self.name = name or class_name
        self.instruction, self.mask = instruction, mask
        self.sizes, self.batches = sizes or SizeRule(), Batches(batch_size)
        self.settings: JsonDict = {
            "pipeline_class": class_name,
            "pipeline": fingerprint(folder, index),
            "arguments": self.arguments,
            "instruction": instruction,
            "mask": mask,
            "sizes": self.sizes.to_json(),
            "dtype": dtype,
            "diffusers": diffusers().__version__,
        }

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        """Redraw a batch, in order."""
        return draw_all(
            candidates,
            seeds,
            lambda candidate, seed: self._prepare(candidate, seed, images),
            self._draw,
            self.batches,
        )

    @property
    def factor(self) -> int:
        """What both sides of a picture must be a multiple of."""
        return self.adapter.factor or size_factor(self._whole)

    @functools.cached_property
    def _whole(self) -> Any:
        """The pipeline as it lies on disk; read when the first picture is drawn."""
        return load_pipeline(self._folder, self._class_name, self._dtype)

    @functools.cached_property
    def _pipeline(self) -> Any:
        pipeline = self._whole
        pipeline.set_progress_bar_config(disable=True)
        place(pipeline, self._device, self._offload)
        if self._compile:
            pipeline.transformer.compile_repeated_blocks(dynamic=True)
        return pipeline

    def _prepare(self, candidate: Candidate, seed: int, images: ImageStore) -> Prepared[_Task]:
        if candidate.caption is None or not candidate.item.images:
            raise DataError(f"{candidate.subject}: no caption or no image to edit")
        prompt = self.instruction.format(
            caption=candidate.caption.text,
            question=candidate.item.question,
            old_answer=candidate.item.answer_text,
            new_answer=candidate.flip.new_text if candidate.flip else "",
        )
        source = images.open(candidate.item.images[0])
        plan = self.sizes.plan(*source.size, self.factor, candidate.subject)
        mask = None
        if self.mask == "whole":
            mask = Image.new("L", source.size, 255)
        elif self.mask == "item":
            mask = mask_of(candidate, source.size, images)
        task = _Task(prompt, fit(source, plan), mask and fit_mask(mask, plan), seed)
        finish = functools.partial(_paste, source, mask) if mask else None
        return Prepared(plan, task, {"prompt": prompt}, finish)

    def _draw(self, size: Size, tasks: Sequence[_Task]) -> list[Drawn]:
        if self.adapter.batches:
            return self._call(size, tasks)
        return [self._call(size, [task])[0] for task in tasks]

    def _call(self, size: Size, tasks: Sequence[_Task]) -> list[Drawn]:
        import torch

        given: dict[str, Any] = dict(self.arguments)
        given["image"] = _one_or_list([task.image for task in tasks])
        given["prompt"] = _one_or_list([task.prompt for task in tasks])
        if tasks[0].mask is not None:
            given["mask_image"] = _one_or_list([task.mask for task in tasks])
        if len(tasks) > 1 and isinstance(given.get("negative_prompt"), str):
            given["negative_prompt"] = [given["negative_prompt"]] * len(tasks)
        if "height" in self._takes:
            given |= {"width": size[0], "height": size[1]}
        if self.adapter.exact_size:
            given |= {"max_area": size[0] * size[1], "_auto_resize": False}
        given["generator"] = [torch.Generator().manual_seed(task.seed) for task in tasks]
        return pictures(self._pipeline(**given))

    def _check_arguments(self, given: Mapping[str, Any], class_name: str) -> JsonDict:
        ours = {"image", "prompt", "mask_image", "height", "width", "generator"}
        for key in given:
            if key not in self._takes:
                close = nearest(key, list(self._takes))
                raise ConfigError(f"arguments: {class_name} takes no {key!r}{close}")
            if key in ours:
                raise ConfigError(f"arguments: {key!r} is set by the editor; leave it out")
        merged = self.adapter.defaults | dict(given)
        scale = merged.get("true_cfg_scale", self._takes.get("true_cfg_scale", 1))
        if "true_cfg_scale" in self._takes and scale > 1:
            merged.setdefault("negative_prompt", "")  # without one the scale does nothing
        return merged


def mask_of(candidate: Candidate, size: tuple[int, int], images: ImageStore) -> Image.Image:
    """Return what may change in an item's picture: L, 255 where it may.

    Raises
    ------
    DataError
        Where ``extra['mask']`` is missing or is no mask of this size.
    """
    said = candidate.item.extra.get("mask")
    if isinstance(said, dict) and "boxes" in said:
        mask = Image.new("L", size, 0)
        try:
            for left, top, right, bottom in said["boxes"]:
                ImageDraw.Draw(mask).rectangle((left, top, right - 1, bottom - 1), fill=255)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{candidate.subject}: extra['mask'] has a box that is no [left, top, right,"
                f" bottom] ({error})"
            ) from error
    else:
        try:
            mask = images.open(ImageRef.model_validate(said)).convert("L")
        except ValidationError as error:
            raise DataError(
                f"{candidate.subject}: extra['mask'] is neither boxes nor an image reference;"
                " set mask to 'whole', or give the item one"
            ) from error
        mask = mask.point([255 * (level >= 128) for level in range(256)])
    if mask.size != size:
        raise DataError(f"{candidate.subject}: the mask has {mask.size} pixels, the image {size}")
    if mask.getextrema()[1] == 0:
        raise DataError(f"{candidate.subject}: the mask lets nothing change")
    return mask


def _paste(source: Image.Image, mask: Image.Image, drawn: Image.Image) -> Image.Image:
    return Image.composite(drawn, source, mask)


def _one_or_list(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else values


def _guess(class_name: str, takes: Mapping[str, Any]) -> Adapter:
    missing = {"image", "prompt", "generator"} - set(takes)
    if missing:
        raise ConfigError(
            f"{class_name}: takes no {' and no '.join(sorted(missing))}, so it edits no picture"
            f" from an instruction; these do: {', '.join(ADAPTERS)}"
        )
    return Adapter(mask="mask_image" in takes)


def _check_template(instruction: str) -> None:
    try:
        named = {name for _, name, _, _ in Formatter().parse(instruction) if name is not None}
    except ValueError as error:
        raise ConfigError(f"instruction: {instruction!r} is no template ({error})") from error
    for name in named - set(FIELDS):
        raise ConfigError(
            f"instruction: {{{name}}} is none of {FIELDS}{nearest(name, list(FIELDS))}"
        )
    if not named & {"caption", "new_answer"}:
        raise ConfigError(
            "instruction: name {caption} or {new_answer} in it, or all edits are alike"
        )


def _check_mask(mask: str, class_name: str, adapter: Adapter) -> None:
    if mask not in MASKS:
        raise ConfigError(f"mask: {mask!r} is none of {MASKS}")
    if adapter.mask and mask == "none":
        raise ConfigError(f"{class_name} redraws a mask; set mask to 'whole' or 'item'")
    if mask != "none" and not adapter.mask:
        raise ConfigError(f"{class_name} takes no mask; set mask to 'none'")
