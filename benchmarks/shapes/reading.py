"""How well scenes of the embedded world are read off blurred and noisy pictures.

    python -m benchmarks.shapes.reading [--families 60] [--autoencoder shapes:flux --items 100]

Draws families that are not in the benchmark, renders one member of each, spoils the picture, reads
it, and prints a Markdown table: cells read right, read wrong and unreadable; questions answered
right and wrong (an unreadable cell leaves a question without an answer).

With a pipeline's autoencoder, instead: the scenes that an editor would draw for the first items of
shapes-vqa, rendered, encoded and decoded. Prints by colour how many things cannot be read.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter

from benchmarks.shapes.editing import captioned
from flipbench.core.images import ImageStore
from flipbench.core.rates import Rate
from flipbench.models.vlm.checkpoints import resolve_path
from flipbench.reporting.tables import Column, Row, Table, rate_cell
from flipbench.reporting.writers import markdown
from flipbench.shapes.benchmark import shapes_vqa
from flipbench.shapes.questions import KINDS, QuestionFamily
from flipbench.shapes.reading import read_picture
from flipbench.shapes.render import render
from flipbench.shapes.scene import COLORS, GRID
from studies.tiny_models.flux.pictures import as_tensor, new_family, pixels_of

SPOILT = ((0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (0, 20), (0, 40), (0, 60), (2, 20), (3, 40))
COLUMNS = ("cells right", "cells wrong", "cells unreadable", "answers right", "answers wrong")


def spoil(picture: Image.Image, blur: float, noise: float, rng: np.random.Generator) -> Image.Image:
    """Return the picture with Gaussian blur (pixels), then Gaussian noise (grey levels)."""
    if blur:
        picture = picture.filter(ImageFilter.GaussianBlur(blur))
    pixels = np.asarray(picture, float)
    pixels = pixels + rng.normal(0, noise, pixels.shape)
    return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))


def count(
    families: list[QuestionFamily], change: Callable[[Image.Image], Image.Image]
) -> Counter[str]:
    counts: Counter[str] = Counter()
    for family in families:
        scene = family.scenes[0]
        reading = read_picture(change(render(scene)))
        for cell in ((row, column) for row in range(GRID) for column in range(GRID)):
            read = next((t for t in reading.things if t.cell == cell), None)
            thing = scene.at(cell)
            same = (read and (read.shape, read.color)) == (thing and (thing.shape, thing.color))
            unreadable = cell in reading.unreadable
            counts[
                "cells unreadable" if unreadable else f"cells {'right' if same else 'wrong'}"
            ] += 1
        answer = reading.answer(family.question)
        counts["answers right"] += answer == family.options[0]
        counts["answers wrong"] += answer not in (None, family.options[0])
    return counts


def decoded(autoencoder: Any, pixels: np.ndarray) -> Image.Image:
    """Return a picture, shape (height, width, 3), as the autoencoder draws it."""
    with torch.inference_mode():
        latents = autoencoder.encode(as_tensor([pixels])).latent_dist.mode()
        drawn = (autoencoder.decode(latents).sample[0].clamp(-1, 1) + 1) * 127.5
    return Image.fromarray(drawn.permute(1, 2, 0).round().byte().numpy())


def autoencoder_table(pipeline: str, n_items: int) -> Table:
    """Count things, and pictures, that cannot be read although nothing was denoised."""
    from diffusers import AutoencoderKL

    folder = Path(resolve_path(pipeline, "model_index.json")) / "vae"
    autoencoder = AutoencoderKL.from_pretrained(folder, torch_dtype=torch.float32)  # type: ignore[no-untyped-call]
    lost: Counter[str] = Counter()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as images:
        scenes = [captioned(item)[1] for item in shapes_vqa(ImageStore(Path(images)), n_items)]
    for scene in scenes:
        unreadable = read_picture(decoded(autoencoder, pixels_of(scene))).unreadable
        seen = [(thing.color, thing.cell in unreadable) for thing in scene.things]
        for name, is_lost in (*seen, ("pictures", bool(unreadable))):
            lost[name] += is_lost
            total[name] += 1
    rows = [
        Row(name, (rate_cell(Rate.wilson(lost[name], total[name])),))
        for name in (*COLORS, "pictures")
    ]
    return Table("autoencoder", "", "things", (Column("unreadable"),), (("", tuple(rows)),))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--families", type=int, default=60)
    parser.add_argument("--autoencoder", metavar="PIPELINE", help="folder, hub id or shapes:flux")
    parser.add_argument("--items", type=int, default=100)
    args = parser.parse_args()
    if args.autoencoder:
        print(markdown(autoencoder_table(args.autoencoder, args.items)))
        return
    rng = np.random.default_rng(20)
    families = [new_family(rng, KINDS[i % len(KINDS)]) for i in range(args.families)]
    rows = []
    for blur, noise in SPOILT:
        counts = count(families, lambda p, b=blur, s=noise: spoil(p, b, s, rng))  # type: ignore[misc]
        totals = {"cells": GRID * GRID * len(families), "answers": len(families)}
        cells = [rate_cell(Rate.wilson(counts[c], totals[c.split()[0]])) for c in COLUMNS]
        rows.append(Row(f"blur {blur}, noise {noise}", tuple(cells)))
    table = Table("reading", "", "picture", tuple(map(Column, COLUMNS)), (("", tuple(rows)),))
    print(markdown(table))


if __name__ == "__main__":
    main()
