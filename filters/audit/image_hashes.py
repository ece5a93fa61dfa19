"""Perceptual hashes of images, and near-duplicates among them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from flipbench.core.errors import DataError, attempt, need
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef

SIDE = 16
N_THREADS = 4
_BLOCK = 64  # rows of the distance matrix per block; fits into the CPU cache
_FLAT = 2.0  # standard deviation in grey levels below which an image is blank


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
    """Open each distinct image once and compute its hash and thumbnail.

    Raises
    ------
    PrerequisiteError
        If the package imagehash is missing.
    """
    imagehash = need("imagehash", "audit")
    distinct = list({ref.sha256: ref for ref in refs}.values())

    def fingerprint(ref: ImageRef) -> tuple[NDArray[np.uint8], NDArray[np.uint8], bool] | str:
        image = attempt(store.open, ref)
        if isinstance(image, DataError):
            return str(image)
        bits = np.packbits(imagehash.phash(image).hash.ravel())
        small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        return bits, np.asarray(small).ravel(), float(np.asarray(image.convert("L")).std()) < _FLAT

    with ThreadPoolExecutor(N_THREADS) as pool:
        results = list(
            tqdm(
                pool.map(fingerprint, distinct),
                total=len(distinct),
                desc="hash images",
                unit="img",
                disable=not progress,
            )
        )
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
            upper = left < right
            left, right = left[upper], right[upper]
        pairs += _similar(first, other, left, right, difference)
    return pairs


def _similar(
    first: Fingerprints,
    other: Fingerprints,
    left: NDArray[np.intp],
    right: NDArray[np.intp],
    difference: float,
) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for start in range(0, len(left), 50_000):
        i, j = left[start : start + 50_000], right[start : start + 50_000]
        gap = np.abs(first.thumbnails[i].astype(np.int16) - other.thumbnails[j]).max(axis=1)
        same = gap <= 255 * difference
        kept += zip(i[same].tolist(), j[same].tolist(), strict=True)
    return kept
