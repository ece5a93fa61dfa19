"""Lessons 1 and 4, the autoencoder: pictures and edge maps, as crops and whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image
from torch.nn import functional

from flipbench.shapes.render import SIZE
from studies.tiny_models.flux.optimizing import Log, Mean, Optimizer
from studies.tiny_models.flux.pictures import as_tensor, edges, new_family, pixels_of

LATENTS = 8
_WIDTHS = (16, 24, 48, 64)
_KL = 1e-4
_LOG_VARIANCE = -6.0  # of the latents, at the start
_COLOR = 2.0  # weight of the error in opponent colours, without which hues are learned last
_EDGE_SHARE = 0.12
_SLOPE = 4.0  # weight, in lesson 4, of the error in slopes, which sharpens thin outlines
_NOISE = 0.1  # deviations of the latents
_POOL = 500  # pictures, rendered once
# (share of the steps, side in pixels, crops per step): the normalisation of a layer depends on the
# whole picture, so that crops alone would teach wrong backgrounds
_STAGES = ((0.70, 64, 16), (0.15, 112, 6), (0.15, SIZE, 2))


def new_autoencoder() -> Any:
    """Return an untrained AutoencoderKL that halves the sides three times."""
    autoencoder: Any = AutoencoderKL(  # type: ignore[no-untyped-call]
        down_block_types=("DownEncoderBlock2D",) * len(_WIDTHS),
        up_block_types=("UpDecoderBlock2D",) * len(_WIDTHS),
        block_out_channels=_WIDTHS,
        layers_per_block=1,
        latent_channels=LATENTS,
        norm_num_groups=1,  # more would hide the level of colours from the layers
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
        shift_factor=0.0,
        scaling_factor=1.0,
        sample_size=SIZE,
    )
    with torch.no_grad():  # hardly any noise at first, or hues would drown in it
        autoencoder.encoder.conv_out.bias[LATENTS:] = _LOG_VARIANCE
        _pass_colors(autoencoder)
    return autoencoder


def _pass_colors(autoencoder: Any) -> None:
    """Let the untrained autoencoder pass the average colour of 8 x 8 pixels through.

    Each colour travels as two channels of opposite sign, c and -c, which no residual branch changes
    at first, and which the last activation leaves linear: silu(c) - silu(-c) = c. Without such a
    start, hues are learned last and slowly.
    """
    encoder, decoder = autoencoder.encoder, autoencoder.decoder
    spread = torch.cat([torch.eye(3), -torch.eye(3)])  # three colours to six channels
    identity = torch.eye(6)
    _set_tap(encoder.conv_in, spread)
    _set_tap(decoder.conv_in, spread)
    _set_tap(encoder.conv_out, spread.T)
    _set_tap(decoder.conv_out, spread.T / 2)
    for half in (encoder, decoder):
        for name, module in half.named_modules():
            if name.endswith("conv2"):
                module.weight[:6], module.bias[:6] = 0, 0
            elif name.endswith("conv_shortcut") or ".upsamplers" in name and name.endswith("conv"):
                _set_tap(module, identity)
            elif ".downsamplers" in name and name.endswith("conv"):
                _set_tap(module, identity)
                module.weight[:6, :6, :2, :2] = identity[..., None, None] / 4


def _set_tap(convolution: Any, matrix: torch.Tensor) -> None:
    """Make the first channels a product of ``matrix`` and the first channels at the same pixel."""
    n_out, n_in = matrix.shape
    middle = convolution.weight.shape[-1] // 2
    convolution.weight[:n_out], convolution.bias[:n_out] = 0, 0
    convolution.weight[:n_out, :n_in, middle, middle] = matrix


def train_autoencoder(n_steps: int, rng: np.random.Generator, log: Log) -> Any:
    """Return a trained autoencoder whose scaled latents have mean 0 and deviation 1."""
    autoencoder, pool = new_autoencoder(), _pictures(rng, _POOL)
    _fit(autoencoder, pool, n_steps, rng, log)
    _normalize(autoencoder, pool, rng)
    return autoencoder


def sharpen(autoencoder: Any, n_steps: int, rng: np.random.Generator, log: Log) -> None:
    """Train only the decoder, on noisy latents, as the denoiser leaves them; latents stay."""
    autoencoder.encoder.requires_grad_(False)
    autoencoder.decoder.requires_grad_(True)
    _fit(autoencoder, _pictures(rng, _POOL), n_steps, rng, log, noise=_NOISE, rate=1.5e-3)
    autoencoder.requires_grad_(False)


def _fit(
    autoencoder: Any,
    pool: np.ndarray,
    n_steps: int,
    rng: np.random.Generator,
    log: Log,
    *,
    noise: float | None = None,
    rate: float = 1.5e-3,
) -> None:
    """Reduce the error of drawn crops; ``noise`` (in deviations of the latents) replaces theirs."""
    optimizer = Optimizer(autoencoder.named_parameters(), rate=rate)
    error, off, divergence = Mean(), Mean(), Mean()
    for step in range(n_steps):
        side, n_crops = _stage(step / n_steps)
        pictures = _crops(pool, rng, side, n_crops)
        with torch.autocast("cpu", torch.bfloat16):
            posterior = autoencoder.encode(pictures).latent_dist
            if noise is None:
                latents = posterior.sample()
            else:
                spread = noise / autoencoder.config.scaling_factor
                latents = posterior.mean + spread * torch.randn_like(posterior.mean)
            output = autoencoder.decode(latents).sample.float()
        difference = functional.l1_loss(output, pictures) + functional.mse_loss(output, pictures)
        hue = functional.l1_loss(_opponents(output), _opponents(pictures))
        kl = posterior.kl().float().mean() / posterior.mean[0].numel()
        loss = difference + _COLOR * hue + _KL * kl
        if noise is not None:
            loss = loss + _SLOPE * functional.l1_loss(_slopes(output), _slopes(pictures))
        optimizer.step(loss, step, step / n_steps)
        error.add(difference.item())
        off.add(hue.item())
        divergence.add(kl.item())
        if step % 50 == 49 or step == n_steps - 1:
            log(
                "autoencoder" if noise is None else "decoder",
                step=step + 1,
                side=side,
                error=error.value,
                hue=off.value,
                kl=divergence.value,
            )


def _opponents(pictures: torch.Tensor) -> torch.Tensor:
    """Return red against green and blue against both, shape (n, 2, height, width)."""
    red, green, blue = pictures.unbind(1)
    return torch.stack([red - green, blue - (red + green) / 2], dim=1)


def _slopes(pictures: torch.Tensor) -> torch.Tensor:
    """Return differences to the next pixel on the right and below, in one row."""
    horizontal, vertical = pictures.diff(dim=3), pictures.diff(dim=2)
    return torch.cat([horizontal.flatten(), vertical.flatten()])


def _stage(progress: float) -> tuple[int, int]:
    """Return the side of the crops and their number, when the fraction ``done`` is over."""
    ends = np.cumsum([share for share, _, _ in _STAGES])
    _, side, n_crops = _STAGES[min(int((progress >= ends).sum()), len(_STAGES) - 1)]
    return side, n_crops


def _crops(pool: np.ndarray, rng: np.random.Generator, side: int, n_crops: int) -> torch.Tensor:
    """Return crops of random pictures, some of them of the edges."""
    crops: list[np.ndarray] = []
    for picture in pool[rng.integers(len(pool), size=n_crops)]:
        y, x = (int(rng.integers(SIZE - side + 1)) for _ in range(2))
        if rng.random() < _EDGE_SHARE:
            picture = edges(Image.fromarray(picture))
        crops.append(picture[y : y + side, x : x + side])
    return as_tensor(crops)


def _pictures(rng: np.random.Generator, n_pictures: int) -> np.ndarray:
    """Return random members of families, shape (n, 224, 224, 3) of uint8."""
    families = [new_family(rng) for _ in range(n_pictures)]
    return np.stack([pixels_of(f.scenes[rng.integers(len(f.scenes))]) for f in families])


@torch.no_grad()
def _normalize(autoencoder: Any, pool: np.ndarray, rng: np.random.Generator) -> None:
    """Set the shift and the scale of the latents to those of whole pictures."""
    whole = torch.cat([_crops(pool, rng, SIZE, 8) for _ in range(4)])
    latents = autoencoder.encode(whole).latent_dist.mean
    autoencoder.register_to_config(
        shift_factor=float(latents.mean()), scaling_factor=float(1 / latents.std())
    )
