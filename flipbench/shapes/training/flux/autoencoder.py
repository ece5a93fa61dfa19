"""Lesson 1, the autoencoder: pictures and edge maps, as crops and whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image
from torch.nn import functional

from flipbench.shapes.render import SIZE
from flipbench.shapes.training.flux.optimizing import Log, Mean, Optimizer
from flipbench.shapes.training.flux.pictures import as_tensor, edges, new_family, pixels_of

LATENTS = 8
_WIDTHS = (16, 24, 48, 64)
_KL = 1e-3
_EDGE_SHARE = 0.12
# (share of the steps, side in pixels, crops per step): the normalisation of a layer depends on the
# whole picture, so that crops alone would teach wrong backgrounds
_STAGES = ((0.60, 64, 16), (0.25, 112, 6), (0.15, SIZE, 2))


def new_autoencoder() -> Any:
    """Return an untrained AutoencoderKL that halves the sides three times."""
    return AutoencoderKL(  # type: ignore[no-untyped-call]
        down_block_types=("DownEncoderBlock2D",) * len(_WIDTHS),
        up_block_types=("UpDecoderBlock2D",) * len(_WIDTHS),
        block_out_channels=_WIDTHS,
        layers_per_block=1,
        latent_channels=LATENTS,
        norm_num_groups=8,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
        shift_factor=0.0,
        scaling_factor=1.0,
        sample_size=SIZE,
    )


def train_autoencoder(n_steps: int, rng: np.random.Generator, log: Log) -> Any:
    """Return a trained autoencoder whose scaled latents have mean 0 and deviation 1."""
    autoencoder = new_autoencoder()
    optimizer = Optimizer(autoencoder.named_parameters(), rate=1.5e-3)
    error, divergence = Mean(), Mean()
    for step in range(n_steps):
        side, n_crops = _stage(step / n_steps)
        pictures = _crops(rng, side, n_crops)
        with torch.autocast("cpu", torch.bfloat16):
            posterior = autoencoder.encode(pictures).latent_dist
            drawn = autoencoder.decode(posterior.sample()).sample.float()
        difference = functional.l1_loss(drawn, pictures) + functional.mse_loss(drawn, pictures)
        kl = posterior.kl().float().mean() / posterior.mean[0].numel()
        optimizer.step(difference + _KL * kl, step, step / n_steps)
        error.add(difference.item())
        divergence.add(kl.item())
        if step % 50 == 49 or step == n_steps - 1:
            log("autoencoder", step=step + 1, side=side, error=error.value, kl=divergence.value)
    _normalize(autoencoder, rng)
    return autoencoder


def _stage(done: float) -> tuple[int, int]:
    """Return the side of the crops and their number, when the fraction ``done`` is over."""
    ends = np.cumsum([share for share, _, _ in _STAGES])
    _, side, n_crops = _STAGES[min(int((done >= ends).sum()), len(_STAGES) - 1)]
    return side, n_crops


def _crops(rng: np.random.Generator, side: int, n_crops: int) -> torch.Tensor:
    """Return crops of random members of families, some of them of the edges."""
    crops: list[np.ndarray] = []
    while len(crops) < n_crops:
        family = new_family(rng)
        pixels = pixels_of(family.scenes[rng.integers(len(family.scenes))])
        for _ in range(1 if side == SIZE else min(6, n_crops)):
            source = edges(Image.fromarray(pixels)) if rng.random() < _EDGE_SHARE else pixels
            top, left = (int(rng.integers(SIZE - side + 1)) for _ in range(2))
            crops.append(source[top : top + side, left : left + side])
    return as_tensor(crops[:n_crops])


@torch.no_grad()
def _normalize(autoencoder: Any, rng: np.random.Generator) -> None:
    """Set the shift and the scale of the latents to those of whole pictures."""
    whole = torch.cat([_crops(rng, SIZE, 8) for _ in range(4)])
    latents = autoencoder.encode(whole).latent_dist.mean
    autoencoder.register_to_config(
        shift_factor=float(latents.mean()), scaling_factor=float(1 / latents.std())
    )
