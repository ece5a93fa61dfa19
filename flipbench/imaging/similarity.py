"""How like its original an edited picture is: unchanged, nearly so, edited, or unrelated."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image
from scipy.fft import dctn

from flipbench.core.errors import DataError
from flipbench.core.records import JsonDict

NEAR_PHASH, NEAR_SSIM = 4, 0.95
FAR_PHASH, FAR_SSIM = 24, 0.25
Label = Literal["unchanged", "near-identical", "edited", "unrelated"]


@dataclass(frozen=True)
class Similarity:
    """Three measures and what they say together.

    Attributes
    ----------
    sha_equal : bool
        The decoded pixels are the same (files may differ: JPEG in, PNG out).
    phash_distance : int
        Bits of 64 in which the perceptual hashes differ. Of two unrelated pictures it is about
        32, with a standard deviation of 4.
    ssim : float
        Structural similarity over RGB, 1 for equal pictures, about 0 for unrelated ones.
    label : str
        By ``label_of``.
    """

    sha_equal: bool
    phash_distance: int
    ssim: float
    label: Label

    def to_json(self) -> JsonDict:
        """Return measures and label, for an edit's ``extra``."""
        return {
            "sha_equal": self.sha_equal,
            "phash_distance": self.phash_distance,
            "ssim": round(self.ssim, 6),
            "label": self.label,
        }


def similarity(original: Image.Image, edited: Image.Image) -> Similarity:
    """Compare two pictures of the same size.

    Raises
    ------
    DataError
        Where the sizes differ, or an edge has under 3 pixels.
    """
    if original.size != edited.size:
        raise DataError(f"pictures of {original.size} and {edited.size} pixels cannot be compared")
    edge = min(original.size)
    if edge < 3:
        raise DataError(f"pictures of {original.size} pixels are too small to compare")
    a, b = original.convert("RGB"), edited.convert("RGB")
    same = _sha(a) == _sha(b)
    distance = int(np.count_nonzero(perceptual_hash(a) != perceptual_hash(b)))
    from skimage.metrics import structural_similarity  # slow to import

    window = min(7, edge - 1 + edge % 2)
    ssim = float(
        structural_similarity(
            np.asarray(a), np.asarray(b), channel_axis=2, data_range=255, win_size=window
        )
    )
    return Similarity(same, distance, ssim, label_of(same, distance, ssim))


def label_of(sha_equal: bool, phash_distance: int, ssim: float) -> Label:
    """Return the label by fixed thresholds.

    ``unchanged``: equal pixels. ``near-identical``: a hash distance of at most 4 bits and an SSIM
    of at least 0.95, as JPEG and small noise give; the edit most likely changed nothing.
    ``unrelated``: a distance of at least 24 bits (two standard deviations below chance) and an
    SSIM under 0.25; nothing of the original's composition is left. Else ``edited``.

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


def perceptual_hash(image: Image.Image) -> np.ndarray:
    """Return 64 bits, (8, 8) of bool: the low frequencies of the grey 32 x 32 picture.

    A bit says whether a coefficient of the cosine transform is over the median of the 64; the
    result equals ``phash`` of the package ``imagehash``.
    """
    grey = image.convert("L").resize((32, 32), Image.Resampling.LANCZOS)
    low = dctn(np.asarray(grey, dtype=float))[:8, :8]
    bits: np.ndarray = low > np.median(low)
    return bits


def _sha(image: Image.Image) -> str:
    return hashlib.sha256(image.tobytes()).hexdigest()
