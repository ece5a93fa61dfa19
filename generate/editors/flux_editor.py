"""Redraw with Flux and a ControlNet: the reference's editor, on diffusers."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image
from pydantic import Field

from flipbench.config.kinds import Context
from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict, Value
from flipbench.models.protocols import Drawing
from flipbench.models.vlm.checkpoints import folder_hash

from .batching import Batches, Drawn, Prepared, Size, draw_all, drawn_images
from .controls import Control
from .diffusers_loading import (
    PipelineSpec,
    diffusers,
    find_part,
    find_pipeline,
    fingerprint,
    first_line,
    load_part,
    load_pipeline,
    place,
    resolve_device,
    size_factor,
)
from .sizes import SizeRule, fit
from .true_guidance import true_guidance

if TYPE_CHECKING:
    import torch

_TEXT_PARTS = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")


class FluxSettings(Value):
    """Sampling settings.

    The defaults are the reference's (Park et al., arXiv 2511.03774, and its released script).
    """

    steps: int = Field(default=25, ge=1, description="denoising steps")
    guidance: float = Field(
        default=4.0, description="distilled guidance, an input of the transformer"
    )
    control_weight: float = Field(default=0.8, description="scale of the ControlNet's output")
    control_start: float = Field(default=0.0, ge=0, le=1, description="fraction of the steps")
    control_end: float = Field(default=1.0, ge=0, le=1, description="fraction of the steps")
    control_mode: int | None = Field(
        default=None, description="for ControlNet-Union only: its control mode"
    )
    true_cfg: float = Field(
        default=3.5, description="scale of true classifier-free guidance; 1 disables it"
    )
    true_cfg_start: int = Field(default=5, ge=0, description="first step with true guidance")
    negative_control: bool = Field(
        default=True, description="whether the ControlNet also runs with the negative prompt"
    )
    negative_prompt: str = Field(default="", description="prompt to guide away from")
    schedule: Literal["x-flux", "pipeline"] = Field(
        default="x-flux",
        description="how noise levels shift with the image size: like the reference or diffusers",
    )
    max_text_tokens: int = Field(
        default=512, ge=1, le=512, description="T5 truncates captions to this length"
    )


class FluxEditorSpec(PipelineSpec):
    """Flux with a ControlNet, the reference's editor."""

    kind: Literal["flux-controlnet"] = "flux-controlnet"
    controlnet: str | None = Field(
        default=None, description="folder or hub id; not needed if the pipeline includes one"
    )
    controlnet_revision: str | None = None
    settings: FluxSettings = FluxSettings()
    control: Control = Control()

    def build(self, context: Context) -> FluxControlNetEditor:
        """Return the editor; weights are loaded when the first image is drawn."""
        return FluxControlNetEditor(
            controlnet=self.controlnet,
            controlnet_revision=self.controlnet_revision,
            settings=self.settings,
            control=self.control,
            **self.options(),
        )


@dataclass(frozen=True)
class _Task:
    caption: str
    control: Image.Image
    seed: int


class FluxControlNetEditor:
    """Redraws an image from its caption; a ControlNet preserves the composition.

    Parameters
    ----------
    pipeline : str
        Folder or hub id of a Flux pipeline (``black-forest-labs/FLUX.1-dev``).
    controlnet : str, optional
        Folder or hub id of a Flux ControlNet in the layout of XLabs
        (``XLabs-AI/flux-controlnet-canny-diffusers``) or of diffusers. Not needed if the
        pipeline includes one.
    settings : FluxSettings
        The reference's by default.
    control : Control
        The control image; the reference's Canny edges by default.
    sizes : SizeRule
        The size at which an image is edited.
    batch_size : int
        Images of one size per batch. With 1, results are bit-identical whatever else is drawn.
    dtype : {'bfloat16', 'float16', 'float32'}
        Precision of the weights.
    device : str
        ``auto`` takes the first GPU if there is one.
    offload : {'none', 'text', 'model'}
        What to keep in main memory while not in use: nothing, the text encoders, or every model.
        Each level saves GPU memory and costs time.
    compile : bool
        Compile the transformer's repeated blocks; the first images take minutes longer.
    keep_control : bool
        Store the control image, with a reference in the edit's ``extra['control']``.
    revision, controlnet_revision : str, optional
        Commits of hub ids.
    name : str
        The editor's name in records.

    Raises
    ------
    PrerequisiteError
        If a folder is not a Flux pipeline or not a ControlNet.

    Notes
    -----
    Weights are loaded when the first image is drawn: resuming a finished run needs none.
    Each item's noise comes from its own CPU generator, so it depends on the seed alone. Text
    encoders run once per caption, one caption at a time.

    References
    ----------
    Park et al., arXiv 2511.03774, section 4. docs/editing.md lists the differences from its script.
    """

    def __init__(
        self,
        pipeline: str,
        controlnet: str | None = None,
        *,
        settings: FluxSettings | None = None,
        control: Control | None = None,
        sizes: SizeRule | None = None,
        batch_size: int = 1,
        dtype: str = "bfloat16",
        device: str = "auto",
        offload: str = "none",
        compile: bool = False,
        keep_control: bool = True,
        revision: str | None = None,
        controlnet_revision: str | None = None,
        name: str = "flux-controlnet",
    ) -> None:
        self.name, self.keep_control = name, keep_control
        self.flux, self.control = settings or FluxSettings(), control or Control()
        self.sizes, self.batches = sizes or SizeRule(), Batches(batch_size)
        self._device = resolve_device(device, offload)
        folder, index = find_pipeline(pipeline, revision)
        if not index["_class_name"].startswith("Flux"):
            raise PrerequisiteError(
                f"{pipeline}: a {index['_class_name']}, not a Flux pipeline; use the editor"
                " 'diffusers' for it"
            )
        if controlnet is None and "controlnet" not in index:
            raise PrerequisiteError(
                f"{pipeline}: does not include a ControlNet; set controlnet, for example to"
                " XLabs-AI/flux-controlnet-canny-diffusers"
            )
        control_folder = find_part(controlnet, controlnet_revision) if controlnet else None
        if self.flux.schedule == "x-flux" and not _shifts(folder):
            raise ConfigError(
                f"{pipeline}: its scheduler does not shift with the size (neither does"
                " FLUX.1-schnell's); set schedule to 'pipeline'"
            )
        self._folder, self._control_folder = folder, control_folder
        self._dtype, self._offload, self._compile = dtype, offload, compile
        self.settings: JsonDict = {
            **self.flux.model_dump(),
            "pipeline": fingerprint(folder, index),
            "controlnet": folder_hash(str(control_folder or folder / "controlnet"))[:24],
            "control": self.control.settings,
            "sizes": self.sizes.model_dump(),
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
            before=self._encode,
        )

    @property
    def factor(self) -> int:
        """Both sides of an image must be a multiple of this."""
        return size_factor(self._loaded)

    @cached_property
    def _loaded(self) -> Any:
        """The loaded pipeline, before it is placed on a device."""
        parts = {}
        if self._control_folder:
            parts["controlnet"] = load_part(
                self._control_folder, "FluxControlNetModel", self._dtype
            )
        return load_pipeline(self._folder, "FluxControlNetPipeline", self._dtype, **parts)

    @cached_property
    def _texts(self) -> _Texts:
        return _Texts(self._loaded, self.flux.max_text_tokens, self._device, self._offload)

    @cached_property
    def _pipeline(self) -> Any:
        """The pipeline without its text encoders."""
        parts = ("scheduler", "vae", "transformer", "controlnet")
        pipeline = type(self._loaded)(
            **{part: getattr(self._loaded, part) for part in parts},
            **dict.fromkeys(_TEXT_PARTS),
        )
        pipeline.set_progress_bar_config(disable=True)
        place(pipeline, self._device, self._offload)
        if self._compile:
            pipeline.transformer.compile_repeated_blocks(dynamic=True)
        return pipeline

    def _prepare(self, candidate: Candidate, seed: int, images: ImageStore) -> Prepared[_Task]:
        if candidate.caption is None or not candidate.item.images:
            raise DataError(f"{candidate.subject}: no caption or no image to edit")
        source = images.open(candidate.item.images[0])
        plan = self.sizes.plan(*source.size, self.factor, candidate.subject)
        control = self.control(fit(source, plan))
        extra = {}
        if self.keep_control:
            ref = images.put_image(control, f"control image of {candidate.subject}")
            extra["control"] = ref.model_dump(mode="json")
        return Prepared(plan, _Task(candidate.caption.text, control, seed), extra)

    def _encode(self, tasks: Sequence[_Task]) -> None:
        self._texts.encode([self.flux.negative_prompt, *(task.caption for task in tasks)])

    def _draw(self, size: Size, tasks: Sequence[_Task]) -> list[Drawn]:
        import torch

        pipeline, flux = self._pipeline, self.flux
        if flux.schedule == "x-flux":
            shift = x_flux_shift(*size)
            pipeline.scheduler.register_to_config(base_shift=shift, max_shift=shift)
        texts = [self._texts[task.caption] for task in tasks]
        negative = self._texts[flux.negative_prompt]
        guided = true_guidance(
            pipeline.transformer,
            pipeline.controlnet,
            {"encoder_hidden_states": negative[0], "pooled_projections": negative[1]},
            scale=flux.true_cfg,
            start=flux.true_cfg_start,
            negative_control=flux.negative_control,
        )
        with guided:
            result = pipeline(
                prompt_embeds=torch.cat([text for text, _ in texts]).to(self._device),
                pooled_prompt_embeds=torch.cat([pooled for _, pooled in texts]).to(self._device),
                control_image=[task.control for task in tasks],
                control_mode=flux.control_mode,
                controlnet_conditioning_scale=flux.control_weight,
                control_guidance_start=flux.control_start,
                control_guidance_end=flux.control_end,
                num_inference_steps=flux.steps,
                guidance_scale=flux.guidance,
                width=size[0],
                height=size[1],
                generator=[torch.Generator().manual_seed(task.seed) for task in tasks],
            )
        return drawn_images(result)


def _shifts(folder: Path) -> bool:
    """Return whether a pipeline's scheduler shifts its noise levels with the image size."""
    try:
        config = json.loads((folder / "scheduler" / "scheduler_config.json").read_text())
    except (OSError, ValueError) as error:
        raise PrerequisiteError(
            f"{folder}: its scheduler cannot be read ({first_line(error)}); download it again"
        ) from error
    return bool(config.get("use_dynamic_shifting"))


class _Texts:
    """Encodes each caption once, one at a time; can offload the encoders to main memory."""

    def __init__(self, loaded: Any, max_tokens: int, device: str, offload: str) -> None:
        self._max_tokens, self._device, self._offloads = max_tokens, device, offload != "none"
        self._encoded: OrderedDict[str, tuple[torch.Tensor, torch.Tensor]] = OrderedDict()
        self._encoder = diffusers().FluxPipeline(
            **{part: getattr(loaded, part) for part in ("scheduler", *_TEXT_PARTS)},
            vae=None,
            transformer=None,
        )
        self._encoder.to("cpu" if self._offloads else device)

    def __getitem__(self, text: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings (1, T, D) and pooled embeddings (1, P) of an encoded text."""
        return self._encoded[text]

    def encode(self, texts: Sequence[str]) -> None:
        """Encode new texts; of those not in ``texts``, evict the oldest beyond 256."""
        import torch

        new = [text for text in dict.fromkeys(texts) if text not in self._encoded]
        if new and self._offloads:
            self._encoder.to(self._device)
        for text in new:
            with torch.inference_mode():
                embeds, pooled, _ = self._encoder.encode_prompt(
                    prompt=[text], device=self._device, max_sequence_length=self._max_tokens
                )
            self._encoded[text] = embeds.cpu(), pooled.cpu()
        if new and self._offloads:
            self._encoder.to("cpu")
            torch.cuda.empty_cache()
        for text in dict.fromkeys(texts):
            self._encoded.move_to_end(text)
        while len(self._encoded) > max(256, len(set(texts))):
            self._encoded.popitem(last=False)


def x_flux_shift(width: int, height: int) -> float:
    """Return the reference's noise-level shift (mu).

    It follows Flux's line through (256 tokens, 0.5) and (4096 tokens, 1.15), but the reference
    counts 64 times fewer tokens than Flux: 64 instead of 4096 at 1024 x 1024.

    >>> round(x_flux_shift(1024, 1024), 4)
    0.4675
    """
    tokens = (width // 8) * (height // 8) // 256
    return 0.5 + (tokens - 256) * (1.15 - 0.5) / (4096 - 256)
