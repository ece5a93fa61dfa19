"""Perceptual hashes of images, and near-duplicates among them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flipbench.core.errors import DataError, result_or_error
from flipbench.core.image_similarity import perceptual_hash
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef
from flipbench.core.stage import progress_bar

SIDE = 16
N_THREADS = 4
_PAIRS = 50_000  # thumbnails compared at a time
_BLOCK = 64  # rows of the distance matrix per block; fits into the CPU cache
_FLAT = 2.0  # standard deviation in grey levels below which an image is blank
_SHARP_EDGE = 20 * SIDE  # pixels; compression hardly changes the thumbnails of larger images
_MOST_NOISE = 6  # times the allowed difference, for the smallest images
_NOISE_PEAK = 16  # of mean differences: compression changes all parts, recolouring one
_GREY = np.array([0.299, 0.587, 0.114])


@dataclass(frozen=True)
class Fingerprints:
    """Hashes and thumbnails of images.

    Attributes
    ----------
    refs : list of ImageRef, length N
    hashes : uint64 array, shape (N,)
        64-bit pHash.
    thumbnails : uint8 array, shape (N, 768)
        16 x 16 pixels in colour.
    flat : bool array, shape (N,)
        Whether the image is blank; then its hash is noise, but its thumbnail is not.
    lost : dict of str to str
        Error messages of images that could not be opened, by sha256.
    """

    refs: list[ImageRef]
    hashes: NDArray[np.uint64]
    thumbnails: NDArray[np.uint8]
    flat: NDArray[np.bool_]
    lost: dict[str, str]


def fingerprints(
    refs: Sequence[ImageRef], store: ImageStore, *, progress: bool = True
) -> Fingerprints:
    """Open each distinct image once and compute its hash and thumbnail."""
    distinct = list({ref.sha256: ref for ref in refs}.values())

    def fingerprint(ref: ImageRef) -> tuple[NDArray[np.uint8], NDArray[np.uint8], bool] | str:
        image = result_or_error(store.open, ref)
        if isinstance(image, DataError):
            return str(image)
        bits = np.packbits(perceptual_hash(image).ravel())
        small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return bits, np.asarray(small).ravel(), float(np.asarray(image.convert("L")).std()) < _FLAT

    bar = progress_bar("hash images", len(distinct), unit="img", shown=progress)
    results = []
    with ThreadPoolExecutor(N_THREADS) as pool, bar:
        for result in pool.map(fingerprint, distinct):
            results.append(result)
            bar.update()
    pairs = list(zip(distinct, results, strict=True))
    opened = [(ref, result) for ref, result in pairs if not isinstance(result, str)]
    bits = np.array([result[0] for _, result in opened], np.uint8)
    thumbnails = np.array([result[1] for _, result in opened], np.uint8)
    return Fingerprints(
        refs=[ref for ref, _ in opened],
        hashes=bits.reshape(-1, 8).view(np.uint64).ravel(),
        thumbnails=thumbnails.reshape(-1, 3 * SIDE * SIDE),
        flat=np.array([result[2] for _, result in opened], dtype=bool),
        lost={ref.sha256: result for ref, result in pairs if isinstance(result, str)},
    )


def near_pairs(
    first: Fingerprints, second: Fingerprints | None, distance: int, difference: float
) -> list[tuple[int, int]]:
    """Return the pairs (i, j) of near-duplicates; within ``first``, i < j, if ``second`` is None.

    All pairs of hashes are compared, one block of rows at a time. Those within ``distance`` bits
    count if their colour thumbnails differ by at most ``difference`` (of 1) in every pixel and
    channel: recolouring one object hardly changes the hash. Blank images are compared only with
    each other, by thumbnails alone.

    JPEG halves the resolution of colour, which shows in the thumbnails of images of less than 320
    pixels. There the colours may differ by more, in inverse proportion to the shorter edge and up
    to six times ``difference``, as long as the grey thumbnails differ by no more than
    ``difference`` and the largest difference is at most 16 mean differences above it: noise is
    everywhere, another colour is in one place.
    """
    other = first if second is None else second
    any_flat = bool(first.flat.any() or other.flat.any())
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(first.refs), _BLOCK):
        rows = slice(start, start + _BLOCK)
        close = np.bitwise_count(first.hashes[rows, None] ^ other.hashes[None]) <= distance
        if any_flat:
            close &= ~first.flat[rows, None] & ~other.flat[None]
            close |= first.flat[rows, None] & other.flat[None]
        left, right = np.nonzero(close)
        left += start
        if second is None:
            is_ordered = left < right
            left, right = left[is_ordered], right[is_ordered]
        pairs += _similar(first, other, left, right, difference)
    return pairs


def _similar(
    first: Fingerprints,
    other: Fingerprints,
    left: NDArray[np.intp],
    right: NDArray[np.intp],
    difference: float,
) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    edges = _shorter_edges(first), _shorter_edges(other)
    allowed = 255 * difference
    for start in range(0, len(left), _PAIRS):
        i, j = left[start : start + _PAIRS], right[start : start + _PAIRS]
        gap = first.thumbnails[i].astype(np.int16) - other.thumbnails[j]
        peak = np.abs(gap).max(axis=1)
        is_similar = peak <= allowed
        noise = np.clip(_SHARP_EDGE / np.minimum(edges[0][i], edges[1][j]), 1, _MOST_NOISE)
        for pair in np.flatnonzero(~is_similar & (peak <= noise * allowed)):
            grey = np.abs(gap[pair].reshape(-1, 3) @ _GREY).max()
            spread = np.abs(gap[pair]).mean()
            is_similar[pair] = grey <= allowed and peak[pair] <= allowed + _NOISE_PEAK * spread
        pairs += zip(i[is_similar].tolist(), j[is_similar].tolist(), strict=True)
    return pairs


def _shorter_edges(prints: Fingerprints) -> NDArray[np.int64]:
    return np.array([min(ref.width, ref.height) for ref in prints.refs], dtype=np.int64)
