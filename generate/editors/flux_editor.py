"""Redraw with Flux and a ControlNet: the reference's editor, on diffusers."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from flipbench.config.kinds import Context
from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict, Value
from flipbench.core.run import versions
from flipbench.models.estimates import BYTES, FluxShape, Phase
from flipbench.models.protocols import Drawing
from flipbench.models.vlm.checkpoints import first_line, read_object, resolve_path

from .bad_input import check_control, nan_as_errors, unread_text, watch_for_nan
from .batching import Batches, Drawn, Prepared, Size, Task, draw_all, drawn_images
from .caches import TextFolder, attention_kernel, fresh_cache
from .controls import Control
from .diffusers_loading import (
    PipelineSpec,
    diffusers,
    find_part,
    find_pipeline,
    part_hash,
    size_factor,
    with_controlnet,
)
from .lazy_pipeline import LazyPipeline
from .sizes import fit
from .true_guidance import true_guidance

if TYPE_CHECKING:
    import torch

_TEXT_PARTS = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
REFERENCE = ("black-forest-labs/FLUX.1-dev", "XLabs-AI/flux-controlnet-canny-diffusers")


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

    def check_effects(self) -> None:
        """Raise a `ConfigError` if one setting leaves another without an effect."""
        if self.true_cfg != 1 and self.true_cfg_start >= self.steps:
            raise ConfigError(
                f"generate.editor.settings: true guidance begins at step {self.true_cfg_start}, but"
                f" there are {self.steps} steps, so it never does; lower true_cfg_start, or set"
                " true_cfg: 1"
            )
        if self.control_start >= self.control_end:
            raise ConfigError(
                f"generate.editor.settings: control_start {self.control_start:g} is not before"
                f" control_end {self.control_end:g}, so the ControlNet would do nothing"
            )


class FluxEditorSpec(PipelineSpec):
    """Flux with a ControlNet, the reference's editor."""

    kind: Literal["flux-controlnet"] = "flux-controlnet"
    reads: ClassVar[Literal["caption", "instruction"] | None] = "caption"
    controlnet: str | None = Field(
        default=None,
        description="folder or hub id, in the layout of XLabs or of diffusers; not needed if the"
        " pipeline includes one",
    )
    controlnet_revision: str | None = None
    settings: FluxSettings = FluxSettings()
    control: Control = Control()
    text_embeddings: Path | None = Field(
        default=None,
        description="folder to keep the captions' embeddings in, 4 MB each, for other runs to read",
    )

    def memory(self) -> int | None:
        """Return the bytes on the device at a time; offloaded texts are there before the rest."""
        parts = self.n_weights()
        if self.offload != "text" or parts is None:
            return super().memory()
        texts = sum(n for part, n in parts.items() if part in _TEXT_PARTS)
        return BYTES[self.dtype] * max(texts, sum(parts.values()) - texts)

    def n_weights(self) -> dict[str, int] | None:
        """Return the number of weights of each part, of the ControlNet too."""
        return with_controlnet(super().n_weights(), self.controlnet, self.controlnet_revision)

    def shape(self) -> FluxShape:
        """Return the shape of the pipeline and its ControlNet, from their configurations.

        Raises
        ------
        PrerequisiteError
            If a configuration is neither on this machine nor one of the reference's.
        """
        if (self.pipeline, self.controlnet) == REFERENCE:
            return FluxShape()
        folder = _local_folder(self.pipeline, self.revision)
        control_folder = folder / "controlnet"
        if self.controlnet:
            control_folder = _local_folder(self.controlnet, self.controlnet_revision)
        try:
            transformer, control, vae, text = (
                read_object(part / "config.json")
                for part in (
                    *(folder / "transformer", control_folder),
                    *(folder / "vae", folder / "text_encoder_2"),
                )
            )
            return FluxShape(
                n_weights=self.n_weights() or {},
                hidden=transformer["num_attention_heads"] * transformer["attention_head_dim"],
                blocks=(transformer["num_layers"], transformer["num_single_layers"]),
                control_blocks=(control["num_layers"], control["num_single_layers"]),
                text_heads=text["num_heads"],
                channels=tuple(vae["block_out_channels"]),
                vae_layers=vae["layers_per_block"],
            )
        except (DataError, KeyError, TypeError) as error:
            raise PrerequisiteError(
                f"{self.pipeline}: a configuration cannot be read ({first_line(error)})"
            ) from error

    def phases(self, size: tuple[int, int]) -> list[Phase]:
        """Return what a batch of images of this width and height takes; raises as `shape`."""
        flux = self.settings
        n_guided = max(0, flux.steps - flux.true_cfg_start) if flux.true_cfg != 1 else 0
        return self.shape().phases(
            size,
            batch_size=self.batch_size,
            dtype=self.dtype,
            offload=self.offload,
            text_tokens=flux.max_text_tokens,
            n_plain=flux.steps - n_guided,
            n_guided=n_guided,
            guided_control=flux.negative_control,
        )

    def build(self, context: Context) -> FluxControlNetEditor:
        """Return the editor; weights are loaded when the first image is drawn.

        Raises
        ------
        ConfigError
            If one setting leaves another without an effect.
        """
        self.settings.check_effects()
        return FluxControlNetEditor(self)


class FluxControlNetEditor:
    """Redraws an image from its caption; a ControlNet preserves the composition.

    The control image is stored, with a reference in the edit's ``extra['control']``.

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

    name = "flux-controlnet"

    def __init__(self, spec: FluxEditorSpec) -> None:
        self.spec, self.batches = spec, Batches(spec.batch_size)
        diffusers()  # missing? then before captions are paid for
        folder, index = find_pipeline(spec.pipeline, spec.revision)
        if not index["_class_name"].startswith("Flux"):
            raise PrerequisiteError(
                f"{spec.pipeline}: a {index['_class_name']}, not a Flux pipeline; use the editor"
                " 'diffusers' for it"
            )
        if spec.controlnet is None and "controlnet" not in index:
            raise PrerequisiteError(
                f"{spec.pipeline}: does not include a ControlNet; set controlnet, for example to"
                " XLabs-AI/flux-controlnet-canny-diffusers"
            )
        if spec.settings.schedule == "x-flux" and not _shifts(folder):
            raise ConfigError(
                f"{spec.pipeline}: its scheduler does not shift with the size (neither does"
                " FLUX.1-schnell's); set schedule to 'pipeline'"
            )
        control_folder, elsewhere = folder / "controlnet", dict[str, Any]()
        if spec.controlnet:
            control_folder = find_part(spec.controlnet, spec.controlnet_revision)
            elsewhere["controlnet"] = diffusers().FluxControlNetModel, control_folder
        cls = diffusers().FluxControlNetPipeline
        self._source = LazyPipeline(
            spec, cls, folder, index, elsewhere, controlnet=True, contexts=True
        )
        self.settings: JsonDict = {
            **spec.settings.model_dump(),
            "controlnet": part_hash(control_folder)[:24],
            "control": spec.control.settings,
            **self._source.settings,
        }

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> list[Drawing | Exception]:
        """Redraw a batch, in order."""
        return draw_all(
            candidates,
            seeds,
            images,
            self._prepare,
            self._draw,
            self.batches,
            before_drawing=self._encode,
        )

    def release(self) -> None:
        """Drop the weights; the next image loads them again."""
        self._source.release()
        for part in ("_texts", "_pipeline"):
            vars(self).pop(part, None)

    @property
    def factor(self) -> int:
        """Both sides of an image must be a multiple of this."""
        return size_factor(self._source.loaded)

    @cached_property
    def _texts(self) -> _TextEncoder:
        folder = self.spec.text_embeddings
        shared = TextFolder(folder, self._encoder) if folder else None
        return _TextEncoder(self._source.loaded, self.spec, self._source.device, shared)

    @property
    def _encoder(self) -> JsonDict:
        """What a text's embeddings depend on."""
        return {
            **{part: part_hash(self._source.folder / part) for part in _TEXT_PARTS},
            "dtype": self.spec.dtype,
            "device": self._source.device.partition(":")[0],
            "max_tokens": self.spec.settings.max_text_tokens,
            "libraries": {name: versions().get(name) for name in ("torch", "transformers")},
        }

    @cached_property
    def _pipeline(self) -> Any:
        """The pipeline without its text encoders."""
        pipeline, parts = self._source.loaded, ("scheduler", "vae", "transformer", "controlnet")
        components = {part: getattr(pipeline, part) for part in parts}
        return self._source.placed(type(pipeline)(**components, **dict.fromkeys(_TEXT_PARTS)))

    def _prepare(self, candidate: Candidate, seed: int, images: ImageStore) -> Prepared:
        source = images.open(candidate.source)
        plan = self.spec.sizes.plan(*source.size, self.factor, candidate.subject)
        control = self.spec.control(fit(source, plan))
        check_control(control, self.spec.control.settings, candidate.subject)
        ref = images.put_image(control, f"control image of {candidate.subject}")
        task = Task(candidate.caption_text, control, seed)
        max_tokens = self.spec.settings.max_text_tokens
        text_read = unread_text(self._source.loaded, task.prompt, max_tokens, candidate.subject)
        return Prepared(plan, task, {"control": ref.model_dump(mode="json")} | text_read)

    def _encode(self, tasks: Sequence[Task]) -> None:
        texts = [self.spec.settings.negative_prompt, *(task.prompt for task in tasks)]
        makes_room = self.spec.offload == "text" and "_pipeline" in vars(self)
        if makes_room and not self._texts.has(texts):
            self._pipeline.to("cpu")  # so that encoders and transformer are never there together
            self._texts.encode(texts)
            self._pipeline.to(self._source.device)
        else:
            self._texts.encode(texts)

    def _draw(self, size: Size, tasks: Sequence[Task]) -> list[Drawn]:
        import torch

        pipeline, flux, device = self._pipeline, self.spec.settings, self._source.device
        if flux.schedule == "x-flux":
            shift = x_flux_shift(*size)
            pipeline.scheduler.register_to_config(base_shift=shift, max_shift=shift)
        texts = [self._texts[task.prompt] for task in tasks]
        negative = self._texts[flux.negative_prompt]
        guided = true_guidance(
            pipeline.transformer,
            pipeline.controlnet,
            {"encoder_hidden_states": negative[0], "pooled_projections": negative[1]},
            scale=flux.true_cfg,
            start=flux.true_cfg_start,
            negative_control=flux.negative_control,
        )
        cache, kernels = fresh_cache(pipeline.transformer), attention_kernel(self.spec.attention)
        with cache, kernels, guided, watch_for_nan(pipeline) as flags:
            result = pipeline(
                prompt_embeds=torch.cat([text for text, _ in texts]).to(device),
                pooled_prompt_embeds=torch.cat([pooled for _, pooled in texts]).to(
                    self._source.device
                ),
                control_image=[task.image for task in tasks],
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
        return nan_as_errors(drawn_images(result), flags, self.spec.dtype)


def _local_folder(path: str, revision: str | None) -> Path:
    """Return a folder of configurations; of a hub id, only what is in the cache."""
    from huggingface_hub import snapshot_download

    folder = Path(resolve_path(path, "model_index.json"))
    if folder.is_dir():
        return folder
    try:
        return Path(snapshot_download(path, revision=revision, local_files_only=True))
    except (OSError, ValueError) as error:
        raise PrerequisiteError(f"{path}: its configuration is not on this machine") from error


def _shifts(folder: Path) -> bool:
    """Return whether a pipeline's scheduler shifts its noise levels with the image size."""
    try:
        config = json.loads((folder / "scheduler" / "scheduler_config.json").read_text())
    except (OSError, ValueError) as error:
        raise PrerequisiteError(
            f"{folder}: its scheduler cannot be read ({first_line(error)}); download it again"
        ) from error
    return bool(config.get("use_dynamic_shifting"))


class _TextEncoder:
    """Encodes each caption once, one at a time; can offload the encoders to main memory."""

    def __init__(
        self, pipeline: Any, spec: FluxEditorSpec, device: str, shared: TextFolder | None
    ) -> None:
        limit = pipeline.tokenizer_2.model_max_length  # a tiny T5 knows no longer texts
        self._max_tokens = min(spec.settings.max_text_tokens, limit)
        self._offloads = spec.offload != "none"
        self._device, self._shared = device, shared
        self._encoded: OrderedDict[str, tuple[torch.Tensor, torch.Tensor]] = OrderedDict()
        self._encoder = diffusers().FluxPipeline(
            **{part: getattr(pipeline, part) for part in ("scheduler", *_TEXT_PARTS)},
            vae=None,
            transformer=None,
        )
        self._encoder.to("cpu" if self._offloads else device)

    def __getitem__(self, text: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return embeddings (1, T, D) and pooled embeddings (1, P) of an encoded text."""
        return self._encoded[text]

    def has(self, texts: Sequence[str]) -> bool:
        """Return whether all texts are encoded, here or by another run."""
        self._recall(texts)
        return all(text in self._encoded for text in texts)

    def encode(self, texts: Sequence[str]) -> None:
        """Encode new texts; of those not in ``texts``, evict the oldest beyond 256."""
        import torch

        self._recall(texts)
        new_texts = [text for text in dict.fromkeys(texts) if text not in self._encoded]
        if new_texts and self._offloads:
            self._encoder.to(self._device)
        for text in new_texts:
            with torch.inference_mode():
                embeds, pooled, _ = self._encoder.encode_prompt(
                    prompt=[text], device=self._device, max_sequence_length=self._max_tokens
                )
            self._encoded[text] = embeds.cpu(), pooled.cpu()
            if self._shared:
                self._shared.write(text, self._encoded[text])
        if new_texts and self._offloads:
            self._encoder.to("cpu")
            torch.cuda.empty_cache()
        for text in dict.fromkeys(texts):
            self._encoded.move_to_end(text)
        while len(self._encoded) > max(256, len(set(texts))):
            self._encoded.popitem(last=False)

    def _recall(self, texts: Sequence[str]) -> None:
        for text in texts:
            if self._shared and text not in self._encoded and (tensors := self._shared.read(text)):
                self._encoded[text] = tensors


def x_flux_shift(width: int, height: int) -> float:
    """Return the reference's noise-level shift (mu).

    It follows Flux's line through (256 tokens, 0.5) and (4096 tokens, 1.15), but the reference
    counts 64 times fewer tokens than Flux: 64 instead of 4096 at 1024 x 1024.

    >>> round(x_flux_shift(1024, 1024), 4)
    0.4675
    """
    tokens = (width // 8) * (height // 8) // 256
    return 0.5 + (tokens - 256) * (1.15 - 0.5) / (4096 - 256)
