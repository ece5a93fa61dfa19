"""Unchanged, near-identical, edited and unrelated images are distinguished."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from flipbench.core.errors import DataError
from flipbench.core.image_similarity import (
    is_pair_near_unchanged,
    label_of,
    perceptual_hash,
    similarity,
    structural_similarity,
)
from flipbench.core.paired import Pair
from tests.fixtures.report_data import make_benchmark


def scene(seed: int = 0, size: tuple[int, int] = (96, 64)) -> Image.Image:
    """Return overlapping coloured shapes."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, tuple(int(v) for v in rng.integers(0, 256, 3)))
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        x, y = (int(rng.integers(0, side)) for side in size)
        w, h = (int(v) for v in rng.integers(8, 40, 2))
        draw.ellipse((x, y, x + w, y + h), fill=tuple(int(v) for v in rng.integers(0, 256, 3)))
    return image


def test_the_same_pixels_from_another_file_are_unchanged() -> None:
    buffer = io.BytesIO()
    scene().save(buffer, "BMP")
    again = similarity(scene(), Image.open(buffer))
    assert again.to_json() == {
        "sha_equal": True,
        "phash_distance": 0,
        "ssim": 1.0,
        "label": "unchanged",
    }


def test_a_recompressed_picture_is_near_identical() -> None:
    buffer = io.BytesIO()
    scene(size=(256, 192)).save(buffer, "JPEG", quality=95)
    again = similarity(scene(size=(256, 192)), Image.open(buffer))
    assert (again.sha_equal, again.label) == (False, "near-identical")
    assert again.ssim >= 0.95


def test_a_redrawn_object_is_an_edit() -> None:
    edited = scene()
    ImageDraw.Draw(edited).rectangle((20, 10, 70, 50), fill="yellow")
    assert similarity(scene(), edited).label == "edited"


def test_other_pictures_are_unrelated() -> None:
    def noise(seed: int) -> Image.Image:
        coarse = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
        return Image.fromarray(coarse).resize((96, 96), Image.Resampling.NEAREST)

    pairs = [similarity(noise(2 * i), noise(2 * i + 1)) for i in range(30)]
    assert 28 < np.mean([pair.phash_distance for pair in pairs]) < 36  # 32 by chance
    assert sum(pair.label == "unrelated" for pair in pairs) >= 26
    assert {pair.label for pair in pairs} <= {"unrelated", "edited"}


@pytest.mark.parametrize(
    ("measures", "label"),
    [
        ((True, 0, 1.0), "unchanged"),
        ((False, 0, 1.0), "near-identical"),
        ((False, 4, 0.95), "near-identical"),
        ((False, 5, 0.95), "edited"),
        ((False, 4, 0.9499), "edited"),
        ((False, 23, 0.0), "edited"),
        ((False, 24, 0.2499), "unrelated"),
        ((False, 24, 0.25), "edited"),
    ],
)
def test_similarity_thresholds(measures: tuple[bool, int, float], label: str) -> None:
    assert label_of(*measures) == label


def test_the_hash_follows_composition_not_brightness() -> None:
    image = scene()
    darker = image.point(lambda level: int(level * 0.8))
    assert np.count_nonzero(perceptual_hash(image) ^ perceptual_hash(darker)) <= 2
    blurred = image.filter(ImageFilter.GaussianBlur(1))
    assert np.count_nonzero(perceptual_hash(image) ^ perceptual_hash(blurred)) <= 4
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert np.count_nonzero(perceptual_hash(image) ^ perceptual_hash(mirrored)) > 16


def test_the_hash_equals_imagehash_s() -> None:
    imagehash = pytest.importorskip("imagehash", reason="a check against the package imagehash")
    for seed in range(10):
        assert np.array_equal(perceptual_hash(scene(seed)), imagehash.phash(scene(seed)).hash)


@pytest.mark.parametrize("size", [(3, 3), (4, 9), (6, 50), (7, 7)])
def test_small_pictures_have_a_similarity(size: tuple[int, int]) -> None:
    assert similarity(scene(1, size), scene(1, size)).ssim == pytest.approx(1)


def test_images_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(DataError, match="cannot be compared"):
        similarity(scene(), scene(size=(64, 96)))
    with pytest.raises(DataError, match="too small"):
        similarity(scene(size=(2, 9)), scene(size=(2, 9)))


@pytest.mark.parametrize("size", [(3, 3), (4, 9), (7, 7), (100, 8), (38, 45), (39, 200), (128, 70)])
def test_structural_similarity_is_that_of_scikit_image(size: tuple[int, int]) -> None:
    metrics = pytest.importorskip("skimage.metrics")
    rng, edge = np.random.default_rng(0), min(size)
    window = min(7, edge - 1 + edge % 2)
    old = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
    black, white = np.zeros_like(old), np.full_like(old, 255)
    noisy = np.clip(old + rng.normal(0, 20, old.shape), 0, 255).astype(np.uint8)
    for new in (old, noisy, 255 - old, black, white):
        for first, second in ((old, new), (white, new)):
            expected = metrics.structural_similarity(
                first, second, channel_axis=2, data_range=255, win_size=window
            )
            got = structural_similarity(first, second, window)
            assert got == pytest.approx(expected, abs=1e-12)


def test_a_pair_is_near_unchanged_only_if_its_pictures_are_there_and_undamaged(
    tmp_path: Path,
) -> None:
    benchmark = make_benchmark(tmp_path, 2)
    pair, store = benchmark.pairs[0], benchmark.images
    assert not is_pair_near_unchanged(pair, store)
    picture = store.open(pair.original.images[0]).point(lambda level: max(level - 2, 0))
    same = store.put_image(picture, "almost the same")
    edited = Pair(pair.original, pair.perturbed.model_copy(update={"images": (same,)}))
    assert is_pair_near_unchanged(edited, store)
    store.path(same).write_bytes(b"")
    assert not is_pair_near_unchanged(edited, store)
