"""Tiny checkpoints of the real diffusion classes, and candidates to redraw with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Flip, Item, JsonDict, Source
from tests.fixtures.shared_folder import shared_folder

os.environ.setdefault("HF_HUB_OFFLINE", "1")
Build = Callable[..., Candidate]


@pytest.fixture(scope="session")
def diffusion_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function that writes a tiny checkpoint, once, and says where."""
    pytest.importorskip("diffusers")
    from tests.fixtures import tiny_controlled, tiny_flux

    def build(name: str, path: Path) -> None:
        if name in tiny_flux.LAYOUTS:
            tiny_flux.build_controlnet(path, name)
        elif name in tiny_controlled.BUILDERS:
            tiny_controlled.BUILDERS[name](path)
        else:
            kind, _, halvings = name.partition("-")
            tiny_flux.build_pipeline(path, kind, halvings=int(halvings or 1))

    return lambda name: str(shared_folder(tmp_path_factory, name, partial(build, name)))


@pytest.fixture(scope="session")
def flux_editor(diffusion_folder: Callable[[str], str]) -> Callable[..., Any]:
    """Return a function that makes a Flux editor, standard ControlNet unless told otherwise."""
    from flipbench.generate.editors.flux_editor import FluxControlNetEditor, FluxEditorSpec
    from flipbench.generate.editors.sizes import SizeRule

    def make(layout: str = "standard", **options: Any) -> FluxControlNetEditor:
        flux = {"steps": 3, "true_cfg_start": 2, "max_text_tokens": 24} | options.pop("flux", {})
        given: dict[str, Any] = {"settings": flux, "sizes": SizeRule(min_edge=8)}
        given |= {"dtype": "float32", "device": "cpu", "controlnet": diffusion_folder(layout)}
        own = "flux-3" if layout == "xlabs" else "flux"  # XLabs' own eye reduces eightfold
        given["pipeline"] = diffusion_folder(own)
        return FluxControlNetEditor(FluxEditorSpec(**(given | options)))

    return make


@pytest.fixture
def pictures(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


@pytest.fixture
def candidate(pictures: ImageStore) -> Build:
    """Return a function that makes a captioned candidate with a blocky picture of its own."""

    def build(
        name: str,
        size: tuple[int, int] = (20, 16),
        text: str = "a red square",
        extra: JsonDict | None = None,
    ) -> Candidate:
        ref = pictures.put_image(blocks(size, seed=sum(name.encode())), name)
        item = Item(
            benchmark="made-up",
            name=name,
            images=(ref,),
            question="Which color?",
            options=("red", "blue"),
            answer=0,
            answer_text="red",
            source=Source(dataset="made-up"),
            extra=extra or {},
        )
        flip = Flip(item_id=item.id, method="m", seed=0, new_answer=1, new_text="blue")
        caption = Caption(flip_id=flip.id, captioner="c", prompt="p", text=text)
        return Candidate(item, flip, caption)

    return build


def blocks(size: tuple[int, int], seed: int, side: int = 8) -> Image.Image:
    """Return a picture of random one-coloured blocks."""
    width, height = size
    colours = np.random.default_rng(seed).integers(
        0, 256, (height // side + 1, width // side + 1, 3), dtype=np.uint8
    )
    pixels = colours.repeat(side, axis=0).repeat(side, axis=1)[:height, :width]
    return Image.fromarray(pixels)
