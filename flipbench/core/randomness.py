"""Random generators seeded by (seed, item id, purpose), independent of order and workers."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, item_id: str, purpose: str) -> np.random.Generator:
    """Return the generator for one purpose on one item.

    >>> int(generator(0, "a", "flip").integers(100)) == int(generator(0, "a", "flip").integers(100))
    True
    """
    digest = hashlib.sha256(f"{seed}\x00{item_id}\x00{purpose}".encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))
