"""What an image takes in each phase of Flux with a ControlNet: memory and operations.

Nothing is loaded: the pipeline runs on tensors without values, with the configurations on this
machine or, of the reference's checkpoints, the published ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.models.footprint import Footprint
from flipbench.models.vlm.checkpoints import read_object, resolve_path

from .editors.diffusers_loading import diffusers
from .editors.flux_editor import FluxEditorSpec, FluxSettings, x_flux_shift
from .editors.true_guidance import true_guidance

FLUX_DEV = "black-forest-labs/FLUX.1-dev"
XLABS_CANNY = "XLabs-AI/flux-controlnet-canny-diffusers"
_TEXT_TOKENS_OF_CLIP = 77


@dataclass(frozen=True)
class Phase:
    """A part of an image's making.

    Attributes
    ----------
    weights, memory : int
        Bytes of the weights on the device, and of all that is there at the peak.
    flops : int
        Operations for one image.
    """

    name: str
    weights: int
    memory: int
    flops: int


@dataclass(frozen=True)
class Networks:
    """The networks of a Flux pipeline with a ControlNet; the encoders are CLIP's and T5's."""

    transformer: Any
    controlnet: Any
    vae: Any
    clip: Any
    t5: Any


def flux_phases(
    spec: FluxEditorSpec, size: tuple[int, int], networks: Networks | None = None
) -> list[Phase]:
    """Return what a batch of images of one size takes, phase by phase.

    Operations are those of `Footprint`, for one image of the batch. Not counted in memory are
    kernels' own buffers, such as cuDNN's for convolutions, and what an allocator holds in reserve.

    Parameters
    ----------
    size : tuple of int
        Width and height in pixels, as the editor runs: multiples of the pipeline's factor.
    networks : Networks, optional
        On the meta device; by default those of ``spec``. They cannot be used afterwards.

    Raises
    ------
    PrerequisiteError
        If a configuration is neither on this machine nor one of the reference's.
    """
    if networks is None:
        networks = published() if _is_reference(spec) else _configured(spec)
    footprint, dtype = Footprint(), getattr(torch, spec.dtype)
    held = {}
    for name, network in vars(networks).items():
        before = footprint.now
        footprint.load(torch.nn.Module.to(network, dtype).eval())
        held[name] = footprint.now - before
    weights = footprint.now
    runs = _Runs(spec, networks, footprint, size)
    phases = []
    for name, run, on_device in (
        ("caption as embeddings", runs.encode, ("clip", "t5")),
        ("denoising", runs.denoise, ("transformer", "controlnet", "vae")),
        ("decoding", runs.decode, ("transformer", "controlnet", "vae")),
    ):
        on_top, flops = run(weights)
        resident = sum(_resident(spec.offload, name, held, on_device))
        phases.append(Phase(name, resident, resident + on_top, flops))
    return phases


def _resident(offload: str, phase: str, held: dict[str, int], group: tuple[str, ...]) -> list[int]:
    """Return the bytes of each network that is on the device in a phase."""
    if offload == "none":
        return list(held.values())
    if offload == "text":
        return [held[name] for name in group]
    if phase == "caption as embeddings":
        return [max(held[name] for name in group)]
    # accelerate moves the ControlNet to the device at its first call and leaves it there
    return [held["controlnet"], held["transformer" if phase == "denoising" else "vae"]]


class _Runs:
    def __init__(
        self, spec: FluxEditorSpec, networks: Networks, footprint: Footprint, size: tuple[int, int]
    ) -> None:
        self.spec, self.networks, self.footprint, self.size = spec, networks, footprint, size
        self.dtype = getattr(torch, spec.dtype)

    def encode(self, weights: int) -> tuple[int, int]:
        n_tokens = self.spec.settings.max_text_tokens

        @torch.no_grad()
        def run() -> None:
            self.networks.clip(torch.ones(1, _TEXT_TOKENS_OF_CLIP, dtype=torch.long))
            self.networks.t5(torch.ones(1, n_tokens, dtype=torch.long))

        return self._measured(run, weights)

    def denoise(self, weights: int) -> tuple[int, int]:
        """Run one step with true guidance, if it is on, and count all steps' operations."""
        flux = self.spec.settings
        n_guided = max(0, flux.steps - flux.true_cfg_start) if flux.true_cfg != 1 else 0
        once = self._control_flops(weights)
        if not n_guided:
            peak, plain = self._measured(lambda: self._step(guided=False), weights)
            return peak, once + flux.steps * (plain - once)
        peak, guided = self._measured(lambda: self._step(guided=True), weights)
        plain = (guided - once) // 2  # each network runs once for either prompt
        if not flux.negative_control:
            plain = self._measured(lambda: self._step(guided=False), weights)[1] - once
        return peak, once + (flux.steps - n_guided) * plain + n_guided * (guided - once)

    def _control_flops(self, weights: int) -> int:
        """Return the operations that encode a control image, once for all steps."""
        if self.networks.controlnet.input_hint_block is not None:
            return 0  # XLabs' reads the pixels
        shape, vae = (self.spec.batch_size, 3, *self.size[::-1]), self.networks.vae

        @torch.no_grad()
        def run() -> None:
            vae.encode(self.footprint.empty(*shape, dtype=self.dtype))

        return self._measured(run, weights)[1]

    def decode(self, weights: int) -> tuple[int, int]:
        vae = self.networks.vae
        scale = int(2 ** (len(vae.config.block_out_channels) - 1))
        shape = (vae.config.latent_channels, self.size[1] // scale, self.size[0] // scale)

        @torch.no_grad()
        def run() -> None:
            vae.decode(self.footprint.empty(self.spec.batch_size, *shape, dtype=self.dtype))

        return self._measured(run, weights)

    def _measured(self, run: Any, weights: int) -> tuple[int, int]:
        before = self.footprint.flops
        peak = self.footprint.peak_of(run)
        return peak - weights, (self.footprint.flops - before) // self.spec.batch_size

    def _step(self, *, guided: bool) -> None:
        def empty(*shape: int) -> torch.Tensor:
            return self.footprint.empty(*shape, dtype=self.dtype)

        spec = self.spec
        draw_step(self.networks, spec.settings, self.size, spec.batch_size, empty, guided=guided)


def draw_step(
    networks: Networks,
    flux: FluxSettings,
    size: tuple[int, int],
    n_images: int,
    empty: Callable[..., torch.Tensor],
    *,
    guided: bool,
) -> None:
    """Run one denoising step of the pipeline that the editor uses, without decoding.

    Parameters
    ----------
    empty : callable
        Returns a tensor of a shape, for the embeddings of the captions.
    guided : bool
        Whether the networks also run for the negative prompt.
    """
    shift, config = x_flux_shift(*size), networks.transformer.config
    pipeline = diffusers().FluxControlNetPipeline(
        scheduler=diffusers().FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=shift, max_shift=shift
        ),
        vae=networks.vae,
        transformer=networks.transformer,
        controlnet=networks.controlnet,
        **dict.fromkeys(("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")),
    )
    pipeline.set_progress_bar_config(disable=True)

    def texts(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = empty(n, flux.max_text_tokens, config.joint_attention_dim)
        return tokens, empty(n, config.pooled_projection_dim)

    positive, negative = texts(n_images), texts(1)
    with true_guidance(
        networks.transformer,
        networks.controlnet,
        {"encoder_hidden_states": negative[0], "pooled_projections": negative[1]},
        scale=flux.true_cfg if guided else 1,
        start=0,
        negative_control=flux.negative_control,
    ):
        pipeline(
            prompt_embeds=positive[0],
            pooled_prompt_embeds=positive[1],
            control_image=torch.zeros(n_images, 3, size[1], size[0]),
            control_mode=flux.control_mode,
            controlnet_conditioning_scale=flux.control_weight,
            num_inference_steps=1,
            guidance_scale=flux.guidance,
            width=size[0],
            height=size[1],
            output_type="latent",
        )


def factor_of(spec: FluxEditorSpec) -> int:
    """Return what both sides of an image must be a multiple of.

    Raises
    ------
    PrerequisiteError
        As `flux_phases`.
    """
    if _is_reference(spec):
        return 16
    config = _configuration(_folder(spec.pipeline, spec.revision) / "vae")
    return int(2 ** len(config["block_out_channels"]))


def _is_reference(spec: FluxEditorSpec) -> bool:
    return spec.pipeline == FLUX_DEV and spec.controlnet == XLABS_CANNY


def published() -> Networks:
    """Return the reference's networks on the meta device: FLUX.1-dev and XLabs' ControlNet."""
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    package = diffusers()
    with torch.device("meta"):
        return Networks(
            transformer=package.FluxTransformer2DModel(guidance_embeds=True),
            controlnet=package.FluxControlNetModel(
                patch_size=2,
                num_layers=2,
                num_single_layers=0,
                guidance_embeds=True,
                conditioning_embedding_channels=16,
            ),
            vae=package.AutoencoderKL(
                down_block_types=("DownEncoderBlock2D",) * 4,
                up_block_types=("UpDecoderBlock2D",) * 4,
                block_out_channels=(128, 256, 512, 512),
                layers_per_block=2,
                latent_channels=16,
                norm_num_groups=32,
                use_quant_conv=False,
                use_post_quant_conv=False,
                scaling_factor=0.3611,
                shift_factor=0.1159,
            ),
            clip=CLIPTextModel(
                CLIPTextConfig(
                    hidden_size=768,
                    intermediate_size=3072,
                    num_hidden_layers=12,
                    num_attention_heads=12,
                    projection_dim=768,
                )
            ),
            t5=T5EncoderModel(
                T5Config(
                    vocab_size=32_128,
                    d_model=4096,
                    d_kv=64,
                    d_ff=10_240,
                    num_layers=24,
                    num_heads=64,
                    feed_forward_proj="gated-gelu",
                )
            ),
        )


def _configured(spec: FluxEditorSpec) -> Networks:
    """Return the networks of a pipeline on this machine, on the meta device.

    Raises
    ------
    PrerequisiteError
        If a configuration is not on this machine.
    """
    import transformers

    package, folder = diffusers(), _folder(spec.pipeline, spec.revision)
    control = folder / "controlnet"
    if spec.controlnet:
        control = _folder(spec.controlnet, spec.controlnet_revision)
    try:
        text = {
            name: transformers.AutoConfig.from_pretrained(folder / name)
            for name in ("text_encoder", "text_encoder_2")
        }
        with torch.device("meta"):
            return Networks(
                transformer=_network(package.FluxTransformer2DModel, folder / "transformer"),
                controlnet=_network(package.FluxControlNetModel, control),
                vae=_network(package.AutoencoderKL, folder / "vae"),
                clip=transformers.CLIPTextModel(text["text_encoder"]),
                t5=transformers.T5EncoderModel(text["text_encoder_2"]),
            )
    except (OSError, ValueError, TypeError) as error:
        raise PrerequisiteError(f"{spec.pipeline}: a configuration cannot be read") from error


def _network(cls: Any, folder: Path) -> Any:
    return cls.from_config(_configuration(folder))


def _configuration(folder: Path) -> dict[str, Any]:
    try:
        return read_object(folder / "config.json")
    except DataError as error:
        raise PrerequisiteError(f"{folder}: no configuration ({error})") from error


def _folder(path: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    folder = Path(resolve_path(path, "model_index.json"))
    if folder.is_dir():
        return folder
    try:
        return Path(snapshot_download(path, revision=revision, local_files_only=True))
    except (OSError, ValueError) as error:
        raise PrerequisiteError(f"{path}: its configuration is not on this machine") from error
