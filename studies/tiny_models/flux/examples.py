"""Encoded training examples: latents of pictures and of their edges, features of captions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from flipbench.shapes.render import SIZE
from flipbench.shapes.scene import GRID, Scene
from flipbench.shapes.wording import describe
from studies.tiny_models.flux.pictures import (
    as_tensor,
    edges,
    few_things,
    new_family,
    pixels_of,
)
from studies.tiny_models.flux.text_encoder import contents, token_ids

SIDE = SIZE // 16  # tokens per row: the autoencoder halves three times, Flux packs 2 x 2
_CHUNK = 16
_CELL_OF_TOKEN = [
    min(GRID - 1, (16 * row + 8) * GRID // SIZE) * GRID
    + min(GRID - 1, (16 * column + 8) * GRID // SIZE)
    for row in range(SIDE)
    for column in range(SIDE)
]


@dataclass
class Examples:
    """Scenes as tensors, in groups whose members differ only by the answer to a question."""

    pictures: torch.Tensor  # (n, 196, 32) float16, packed latents
    controls: torch.Tensor  # (n, 196, 32) float16, packed latents of the edges
    texts: torch.Tensor  # (n, 32, 128) float16, features of the caption
    held: torch.Tensor  # (n, 16) int64, what each cell holds
    starts: torch.Tensor  # (n_groups,) first member of each group
    sizes: torch.Tensor  # (n_groups,) members of each group

    def draw(self, rng: np.random.Generator, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows to draw, and for each another member of its group (or itself)."""
        groups = rng.integers(len(self.starts), size=n)
        starts, sizes = self.starts[groups].numpy(), self.sizes[groups].numpy()
        members = rng.integers(sizes)
        other_members = (members + rng.integers(1, np.maximum(sizes, 2))) % sizes
        return torch.from_numpy(starts + members), torch.from_numpy(starts + other_members)

    def of_tokens(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what the cell of each image token holds, shape (rows, 196)."""
        return self.held[rows][:, _CELL_OF_TOKEN]


def pack(latents: torch.Tensor) -> torch.Tensor:
    """Return latents (n, c, h, w) as Flux's tokens, shape (n, h/2 * w/2, 4 c)."""
    n, channels, height, width = latents.shape
    halves = latents.view(n, channels, height // 2, 2, width // 2, 2)
    return halves.permute(0, 2, 4, 1, 3, 5).reshape(n, height * width // 4, channels * 4)


@torch.no_grad()
def encode_pictures(autoencoder: Any, pictures: list[np.ndarray]) -> torch.Tensor:
    """Return packed and normalised latents, shape (n, 196, 32) of float32."""
    config, packed = autoencoder.config, []
    for start in range(0, len(pictures), _CHUNK):
        batch = as_tensor(pictures[start : start + _CHUNK])
        with torch.autocast("cpu", torch.bfloat16):
            latents = autoencoder.encode(batch).latent_dist.mean.float()
        packed.append(pack((latents - config.shift_factor) * config.scaling_factor))
    return torch.cat(packed)


@torch.no_grad()
def encode_captions(text_encoder: Any, tokenizer: Any, captions: list[str]) -> torch.Tensor:
    """Return features of captions, shape (n, 32, 128) of float32."""
    features: torch.Tensor = text_encoder(
        input_ids=token_ids(tokenizer, captions)
    ).last_hidden_state
    return features.float()


def encode_groups(groups: list[tuple[Scene, ...]], parts: Any) -> Examples:
    """Return the examples of groups of scenes; ``parts`` holds the trained encoders."""
    scenes = [scene for group in groups for scene in group]
    sizes = torch.tensor([len(group) for group in groups])
    pictures, controls, texts = [], [], []
    for start in range(0, len(scenes), 8 * _CHUNK):
        chunk = scenes[start : start + 8 * _CHUNK]
        pixels = [pixels_of(scene) for scene in chunk]
        canny_edges = [edges(Image.fromarray(picture)) for picture in pixels]
        captions = [describe(scene) for scene in chunk]
        pictures.append(encode_pictures(parts.vae, pixels).half())
        controls.append(encode_pictures(parts.vae, canny_edges).half())
        texts.append(encode_captions(parts.text_encoder_2, parts.tokenizer_2, captions).half())
    return Examples(
        torch.cat(pictures),
        torch.cat(controls),
        torch.cat(texts),
        torch.tensor([contents(scene) for scene in scenes]),
        sizes.cumsum(0) - sizes,
        sizes,
    )


def draw_groups(
    rng: np.random.Generator, n_families: int, n_few: int
) -> tuple[list[tuple[Scene, ...]], list[tuple[Scene, ...]]]:
    """Return scenes of one to three things, and families of all kinds."""
    small_groups: list[tuple[Scene, ...]] = [
        (few_things(rng, int(rng.integers(1, 4))),) for _ in range(n_few)
    ]
    return small_groups, [new_family(rng).scenes for _ in range(n_families)]


def cached(path: Path, make: Any) -> Examples:
    """Return the examples stored at ``path``, or make and store them."""
    if path.exists():
        return Examples(**torch.load(path))
    examples: Examples = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(vars(examples), path)
    return examples
