"""Derived images: made once, found again, and made anew where they are lost."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from flipbench.core.derived_images import DerivedImages
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef
from tests.fixtures.stored_run import DAMAGE


class Counter:
    """Turns pictures upside down, square ones not at all, and counts."""

    def __init__(self) -> None:
        self.n_made = 0

    def __call__(self, ref: ImageRef, picture: Image.Image) -> Image.Image | None:
        self.n_made += 1
        if picture.width == picture.height:
            return None
        return picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM)


def picture(store: ImageStore, width: int = 9) -> ImageRef:
    pixels = np.random.default_rng(width).integers(0, 256, (6, width, 3), dtype=np.uint8)
    return store.put_image(Image.fromarray(pixels), "test")


def test_each_picture_is_made_once_even_by_a_new_process(store: ImageStore) -> None:
    source, square, make = picture(store), picture(store, 6), Counter()
    first = DerivedImages(store, "turned", make)
    ref = first.of(source)
    assert ref is not None and first.of(square) is None
    turned = np.asarray(store.open(source))[::-1]
    assert np.array_equal(np.asarray(store.open(ref)), turned)
    written = store.path(ref).stat().st_mtime_ns
    for derived in (first, DerivedImages(store, "turned", make)):
        assert derived.of(source) == ref and derived.of(square) is None
    assert make.n_made == 2 and store.path(ref).stat().st_mtime_ns == written


def test_lost_images_and_torn_lines_are_redone(store: ImageStore) -> None:
    source, make = picture(store), Counter()
    ref = DerivedImages(store, "turned", make).of(source)
    assert ref is not None
    store.path(ref).unlink()
    assert DerivedImages(store, "turned", make).of(source) == ref and store.path(ref).exists()
    index = DerivedImages(store, "turned", make).index
    index.write_text(index.read_text()[:-20])
    other = picture(store, 12)
    again = DerivedImages(store, "turned", make)
    assert again.of(source) == ref and again.of(other) is not None
    n_made = make.n_made
    last = DerivedImages(store, "turned", make)
    assert last.of(source) == ref and last.of(other) is not None and make.n_made == n_made


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_images_and_lines_are_redone(damage: str, store: ImageStore) -> None:
    source, make = picture(store), Counter()
    derived = DerivedImages(store, "turned", make)
    ref = derived.of(source)
    assert ref is not None
    DAMAGE[damage](store.path(ref))
    assert derived.of(source) == ref and make.n_made == 2
    derived.index.write_bytes(b'{"source": "\xff"}\n{"source": "x", "image": {"sha256": 1}}\n')
    again = DerivedImages(store, "turned", make)
    assert again.of(source) == ref and make.n_made == 3


def test_recipes_have_separate_readable_folders(store: ImageStore) -> None:
    source, make = picture(store), Counter()
    DerivedImages(store, "one", make).of(source)
    DerivedImages(store, "two-0.5", make).of(source)
    assert make.n_made == 2
    with pytest.raises(ValueError, match="name has letters, digits, dots and dashes"):
        DerivedImages(store, "../x", make)


def test_a_missing_source_image_is_reported(store: ImageStore) -> None:
    source = picture(store)
    store.path(source).unlink()
    with pytest.raises(DataError, match="the image is missing"):
        DerivedImages(store, "turned", Counter()).of(source)
