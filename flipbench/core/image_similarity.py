"""How similar an edited image is to its original: unchanged, nearly so, edited, or unrelated."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Literal

import cv2
import numpy as np
import scipy
from PIL import Image

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair
from flipbench.core.records import JsonDict

NEAR_PHASH, NEAR_SSIM = 4, 0.95
FAR_PHASH, FAR_SSIM = 24, 0.25
BLOCK, LEAST_CHANGE = 8, 25.0
Label = Literal["unchanged", "near-identical", "edited", "unrelated"]


@dataclass(frozen=True)
class Similarity:
    """Three similarity measures, and the label they give.

    Attributes
    ----------
    sha_equal : bool
        The decoded pixels are equal (files may differ: JPEG in, PNG out).
    phash_distance : int
        Differing bits, of 64, of the perceptual hashes; for unrelated images about 32, with a
        standard deviation of 4.
    ssim : float
        Structural similarity over RGB: 1 for equal images, about 0 for unrelated ones.
    label : str
        From `label_of`.
    """

    sha_equal: bool
    phash_distance: int
    ssim: float
    label: Label

    def to_json(self) -> JsonDict:
        """Return measures and label as plain JSON data."""
        return asdict(self) | {"ssim": round(self.ssim, 6)}


def similarity(original: Image.Image, edit: Image.Image) -> Similarity:
    """Compare two images of the same size.

    Raises
    ------
    DataError
        If the sizes differ, or an edge is shorter than 3 pixels.
    """
    if original.size != edit.size:
        raise DataError(f"images of {original.size} and {edit.size} pixels cannot be compared")
    edge = min(original.size)
    if edge < 3:
        raise DataError(f"images of {original.size} pixels are too small to compare")
    a, b = original.convert("RGB"), edit.convert("RGB")
    is_equal = a.tobytes() == b.tobytes()
    distance = int(np.count_nonzero(perceptual_hash(a) != perceptual_hash(b)))
    ssim = structural_similarity(np.asarray(a), np.asarray(b), min(7, edge - 1 + edge % 2))
    return Similarity(is_equal, distance, ssim, label_of(is_equal, distance, ssim))


def structural_similarity(a: np.ndarray, b: np.ndarray, window: int = 7) -> float:
    """Return the mean structural similarity of two RGB images, shape (H, W, 3) of uint8.

    Parameters
    ----------
    window : int
        Edge of the square windows, in pixels: odd, at most 7 and at most the shorter edge.

    References
    ----------
    Wang et al., Image Quality Assessment: From Error Visibility to Structural Similarity, IEEE
    Transactions on Image Processing 13 (2004), section III, with uniform windows, K1 = 0.01 and
    K2 = 0.03; as ``structural_similarity`` of scikit-image with ``channel_axis=2`` and
    ``data_range=255``.
    """
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    unbiased = window**2 / (window**2 - 1)
    x, y = a.astype(float), b.astype(float)
    mean = functools.partial(cv2.blur, ksize=(window, window))
    mean_x, mean_y = mean(x), mean(y)
    covariance = unbiased * (mean(x * y) - mean_x * mean_y)
    variances = unbiased * (mean(x * x) - mean_x**2 + mean(y * y) - mean_y**2)
    ratio = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    ratio /= (mean_x**2 + mean_y**2 + c1) * (variances + c2)
    margin = window // 2
    whole_windows = slice(margin, -margin)
    return float(ratio[whole_windows, whole_windows].mean())


def label_of(sha_equal: bool, phash_distance: int, ssim: float) -> Label:
    """Return the label, by fixed thresholds.

    ``unchanged``: equal pixels. ``near-identical``: a hash distance of at most 4 bits and an SSIM
    of at least 0.95, as after JPEG compression or slight noise; the edit most likely changed
    nothing. ``unrelated``: a distance of at least 24 bits (two standard deviations below chance)
    and an SSIM under 0.25; nothing of the original's composition is left. Otherwise ``edited``.

    >>> label_of(False, 12, 0.4)
    'edited'
    """
    if sha_equal:
        return "unchanged"
    if phash_distance <= NEAR_PHASH and ssim >= NEAR_SSIM:
        return "near-identical"
    if phash_distance >= FAR_PHASH and ssim < FAR_SSIM:
        return "unrelated"
    return "edited"


def perceptual_hash(image: Image.Image, *, with_mean: bool = True) -> np.ndarray:
    """Return 64 bits, (8, 8) of bool: the low frequencies of the grey 32 x 32 image.

    A bit is set if a coefficient of the cosine transform is above the median of the 64, as in
    ``phash`` of the package ``imagehash``; without ``with_mean``, above the median of the 63 that
    are left without the first, the image's mean.
    """
    grey = image.convert("L").resize((32, 32), Image.Resampling.LANCZOS)
    low = scipy.fft.dctn(np.asarray(grey, dtype=float))[:8, :8]
    bits: np.ndarray = low > np.median(low if with_mean else low.ravel()[1:])
    return bits


def largest_change(original: Image.Image, perturbed: Image.Image) -> float:
    """Return the largest change of any 8 x 8 pixel mean, in grey levels of 255.

    Images must be of the same size; if an edge is below 8 pixels, so is the window.
    """
    a, b = (np.asarray(image.convert("RGB"), dtype=np.float32) for image in (original, perturbed))
    window = min(BLOCK, *original.size)
    means = scipy.ndimage.uniform_filter(b - a, size=(window, window, 1), mode="nearest")
    return float(np.abs(means).max())


def is_near_unchanged(
    original: Image.Image, perturbed: Image.Image, least: float = LEAST_CHANGE
) -> bool:
    """Return whether images of the same size have no part that differs by ``least`` grey levels.

    Compression and noise mostly average out over 8 x 8 pixels, a redrawn object does not.
    """
    return original.size == perturbed.size and largest_change(original, perturbed) < least


def is_pair_near_unchanged(pair: Pair, images: ImageStore) -> bool:
    """Return whether all images that differ are there, undamaged, and nearly unchanged."""
    sides = pair.original.images, pair.perturbed.images
    if len(sides[0]) != len(sides[1]):
        return False
    for at in pair.changed:
        refs = [side[at] for side in sides]
        if not all(images.has(ref) for ref in refs):
            return False
        original, perturbed = (images.open(ref) for ref in refs)
        if not is_near_unchanged(original, perturbed):
            return False
    return True
