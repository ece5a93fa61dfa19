"""The Flux with a ControlNet that is shipped: small, of the real classes, and it draws answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import flipbench.shapes
from flipbench.core.images import ImageStore
from flipbench.core.randomness import generator
from flipbench.core.records import Item
from flipbench.generate.editors.diffusers_loading import find_pipeline
from flipbench.generate.editors.flux_editor import FluxControlNetEditor, FluxEditorSpec
from flipbench.models.protocols import Drawing
from flipbench.shapes.benchmark import family_of
from flipbench.shapes.reading import read_picture
from tests.fixtures.flipped import captioned

CHECKPOINT = Path(flipbench.shapes.__file__).parent / "checkpoints" / "flux"
CLASSES = {
    "controlnet": ["diffusers", "FluxControlNetModel"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "T5EncoderModel"],
    "transformer": ["diffusers", "FluxTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}
N = 10

pytestmark = pytest.mark.skipif(
    not CHECKPOINT.is_dir(), reason="this copy of the source has no trained checkpoints"
)


def test_it_is_small_safe_and_made_of_the_real_classes() -> None:
    folder, index = find_pipeline("shapes:flux")
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 16_000_000
    assert {file.suffix for file in files} == {".json", ".safetensors"}
    assert index["_class_name"] == "FluxControlNetPipeline"
    assert index.items() >= CLASSES.items()
    paths = [text for file in files if file.suffix == ".json" for text in strings(file)]
    assert not [text for text in paths if text.startswith("/")], "no path of whoever trained it"


def strings(file: Path) -> list[str]:
    found, todo = [], [json.loads(file.read_text())]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list):
            todo += value
        elif isinstance(value, str) and len(value) > 1:
            found.append(value)
    return found


@pytest.mark.slow
def test_it_draws_the_new_answer_by_caption_and_edges(
    shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    spec = {"pipeline": "shapes:flux", "dtype": "float32", "batch_size": N}
    settings = {"sizes": {"min_edge": 224}, "settings": {"steps": 8, "true_cfg": 1.0}}
    editor = FluxControlNetEditor(FluxEditorSpec.model_validate(spec | settings))
    tasks = [captioned(item) for item in shapes_items[:N]]
    seeds = [int(generator(0, c.item.id, "edit").integers(2**63)) for c in tasks]
    answers = [
        read_picture(drawing.image).answer(family_of(candidate).question)
        for candidate, drawing in zip(tasks, editor(tasks, seeds, shapes_store), strict=True)
        if isinstance(drawing, Drawing)
    ]
    right = sum(a == c.flip.new_text for a, c in zip(answers, tasks, strict=True) if c.flip)
    # chance is about one in three: 7 or more new answers, or no old one, in one of 50 draws
    assert right >= 7, f"{right}/{N} show the new answer"
    old = sum(a == c.item.answer_text for a, c in zip(answers, tasks, strict=True))
    assert old == 0
