"""LLaVA-1.5 sees whole pictures, padded as its makers pad them; processors that crop are named."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from flipbench.config.local_models import ImagePadding
from flipbench.core.errors import ConfigError
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Item
from flipbench.models.vlm.checkpoints import fingerprint, padding_of
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.processors import crop_warning, load_processor, lost_share, padded
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.photos import encoded, photo
from tests.fixtures.tiny_families import save

SIZES = [(192, 108), (54, 96), (97, 54), (54, 97), (64, 64)]


def expand2square(image: Image.Image, background: tuple[int, ...]) -> Image.Image:
    """Pad as LLaVA's code does (llava/mm_utils.py)."""
    width, height = image.size
    if width == height:
        return image
    side = max(width, height)
    result = Image.new(image.mode, (side, side), background)
    result.paste(image, ((side - width) // 2, (side - height) // 2))
    return result


@pytest.fixture
def llava_15(llava: Path, tmp_path: Path) -> Path:
    """Return the same with the published size of the vision tower in its configuration."""
    folder = shutil.copytree(llava, tmp_path / "llava-1.5")
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["image_size"] = 336
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def pixels(processor: object, image: Image.Image) -> np.ndarray:
    images = processor.image_processor  # type: ignore[attr-defined]
    return np.asarray(images(image, return_tensors="np")["pixel_values"])


@pytest.mark.parametrize("size", SIZES)
def test_padding_is_the_makers(llava: Path, size: tuple[int, int]) -> None:
    image = photo(np.random.default_rng(0), *size)
    published = load_processor(llava, image_padding="none")
    mean = tuple(int(x * 255) for x in published.image_processor.image_mean)
    assert mean == (122, 116, 104)
    processor = load_processor(llava, image_padding="square")
    expected = pixels(published, expand2square(image, mean))
    np.testing.assert_array_equal(pixels(processor, image), expected)
    np.testing.assert_array_equal(
        pixels(published, padded(image, processor.image_processor)), expected
    )
    cropped = pixels(published, image)
    assert np.array_equal(pixels(processor, image), cropped) == (size == (64, 64))


def test_only_llava_1_5_is_padded_by_itself(llava: Path, llava_15: Path) -> None:
    assert [padding_of(str(path)) for path in (llava, llava_15)] == ["none", "square"]
    image = photo(np.random.default_rng(0), 192, 108)
    shown = pixels(load_processor(llava_15), image)
    np.testing.assert_array_equal(
        shown, pixels(load_processor(llava, image_padding="square"), image)
    )
    off = pixels(load_processor(llava_15, image_padding="none"), image)
    np.testing.assert_array_equal(off, pixels(load_processor(llava), image))


def test_a_saved_processor_pads_for_everyone(llava: Path, tmp_path: Path) -> None:
    processor = load_processor(llava, image_padding="square")
    processor.save_pretrained(tmp_path)
    image = photo(np.random.default_rng(0), 192, 108)
    stock = AutoProcessor.from_pretrained(tmp_path)
    np.testing.assert_array_equal(pixels(stock, image), pixels(processor, image))


def test_answers_are_kept_apart_by_padding(llava: Path, llava_15: Path) -> None:
    ways: tuple[ImagePadding, ...] = ("auto", "none", "square")
    for folder, (auto, none, square) in (
        (path, [fingerprint(str(path), "float32", image_padding=way) for way in ways])
        for path in (llava, llava_15)
    ):
        assert none != square
        assert auto == (none if folder == llava else square)


@pytest.mark.parametrize(("padding", "sees"), [("none", False), ("square", True)])
def test_what_is_at_the_sides_of_a_picture(
    llava: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, padding: ImagePadding, sees: bool
) -> None:
    store, probes = ImageStore(tmp_path), []
    for shade in (0, 255):
        image = Image.new("RGB", (192, 108), (shade, 0, 255 - shade))
        image.paste((90, 90, 90), (30, 0, 162, 108))  # more than a crop sees
        ref = store.put(encoded(image), "picture")
        assert isinstance(ref, ImageRef)
        item = Item(
            benchmark="b", name=str(shade), images=(ref,), question="What is it?",
            options=("red", "blue"), answer=0, answer_text="red", source={"dataset": "d"},
        )  # fmt: skip
        probes.append(PromptSettings().closed_probe(item, "original"))
    with caplog.at_level(logging.WARNING):
        vlm = HuggingFaceVLM(str(llava), "LLaVA", image_padding=padding)
        for probe in probes:
            vlm.ask([probe], store)
    states = vlm.conversation.encode(
        [vlm.conversation.render("?", 1)] * 2, [[store.open(p.images[0])] for p in probes]
    )["pixel_values"]
    assert torch.equal(states[0], states[1]) != sees
    warnings = [record.message for record in caplog.records if "crops" in record.message]
    crop = (
        "LLaVA: its processor (CLIPImageProcessorPil) crops 1 of 1 pictures to their centre: 42.9%"
        " of all pixels are not seen, up to 42.9% of a picture; set image_padding: square to show"
        " it all"
    )
    assert warnings == ([] if sees else [crop])


def test_the_share_of_pixels_that_a_crop_hides(llava: Path) -> None:
    processor = load_processor(llava)
    images = processor.image_processor
    assert [lost_share(images, *size) for size in ((1920, 1080), (1080, 1920), (500, 500))] == [
        pytest.approx(0.4375, abs=0.01), pytest.approx(0.4375, abs=0.01), 0
    ]  # fmt: skip
    assert crop_warning(processor, "m", [(500, 500), (28, 28)]) == ""
    assert crop_warning(processor, "m", []) == ""
    half = crop_warning(processor, "m", [(200, 100), (100, 100), (200, 100)])
    assert "crops 2 of 3 pictures" in half and ": 40.0% of all pixels" in half
    assert "up to 50.0% of a picture" in half
    squared = load_processor(llava, image_padding="square")
    assert crop_warning(squared, "m", [(1920, 1080)]) == ""


def test_other_processors_are_not_padded(tmp_path: Path) -> None:
    folder = save("qwen2_vl", tmp_path)
    assert crop_warning(load_processor(folder), "m", [(1920, 1080)]) == ""
    with pytest.raises(
        ConfigError, match="image_padding: square needs a CLIP processor that crops"
    ):
        load_processor(folder, image_padding="square")
