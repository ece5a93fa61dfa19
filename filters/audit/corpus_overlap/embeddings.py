"""Stored embeddings of a corpus: its distinct pictures and their vectors, row by row."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flipbench.core.errors import DataError

from .corpora import Corpus, Picture
from .encoders import ImageEncoder
from .shards import Entry, Shard, Vectors, open_vectors, read_manifest, read_shards

_IDENTITY = ("encoder", "fingerprint", "dimension", "dtype")


@dataclass(frozen=True)
class Embeddings:
    """The distinct pictures of a corpus and their vectors, row by row.

    Attributes
    ----------
    encoder : str
        The encoder's name.
    vectors : list of arrays, each of shape (n_i, d)
        L2-normalised float32, or uint8 codes; memory-mapped. All rows in order.
    keys, sha256, types : list of str, shape (n,)
        Name, hash of the bytes and type of each picture; ``types`` is empty if none is known.
    places : int array, shape (n, 2)
        Where each picture lies in the corpus: the number of its part, and its number in it.
    failures : list of dict
        ``key`` and ``error`` of each picture without a vector.
    duplicate_keys : list of str
        Keys of several different pictures.
    n_pictures : int
        All entries of the corpus: rows, copies and failures.
    manifest : dict
        What was embedded, and how.
    """

    encoder: str
    vectors: list[Vectors]
    keys: list[str]
    sha256: list[str]
    types: list[str]
    places: NDArray[np.int32]
    failures: list[Entry]
    duplicate_keys: list[str]
    n_pictures: int
    manifest: Mapping[str, Any]

    @property
    def n(self) -> int:
        """Number of distinct pictures with a vector."""
        return len(self.keys)

    @property
    def n_copies(self) -> int:
        """Number of entries whose bytes are those of another."""
        return self.n_pictures - self.n - len(self.failures)

    def pictures(self, rows: Sequence[int], corpus: Corpus) -> dict[int, Picture]:
        """Read some pictures from the corpus again.

        Raises
        ------
        DataError
            If the corpus is another one, or a picture is no longer there.
        """
        wanted: dict[int, dict[int, int]] = {}
        for row in rows:
            part_number, number = self.places[row].tolist()
            wanted.setdefault(part_number, {})[number] = row
        pictures = {}
        for part_number, part in enumerate(corpus.parts() if wanted else ()):
            for number, row in wanted.pop(part_number, {}).items():
                picture = next(part.read(number), Picture(""))
                if hashlib.sha256(picture.data).hexdigest() != self.sha256[row]:
                    raise DataError(
                        f"{corpus.name}: {self.keys[row]} has changed since it was embedded;"
                        " restore it, or embed the corpus into a new folder"
                    )
                pictures[row] = picture
            if not wanted:
                break
        if wanted:
            raise DataError(f"{corpus.name}: not the corpus that was embedded; it is shorter")
        return pictures


def open_embeddings(folder: Path, encoder: ImageEncoder | None = None) -> Embeddings:
    """Open stored embeddings.

    Parameters
    ----------
    folder : Path
    encoder : ImageEncoder, optional
        The encoder that they must be of.

    Raises
    ------
    DataError
        If there are none, they are of another encoder, or a file is damaged.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise DataError(f"{folder}: holds no embeddings; embed a corpus into it first")
    if encoder is not None:
        check_encoder(manifest, identity(encoder), folder)
    opened = Embeddings(
        manifest["encoder"], [], [], [], [], np.empty((0, 2), np.int32), [], [], 0, manifest
    )
    seen: set[str] = set()
    places: list[NDArray[np.int32]] = [opened.places]
    n_pictures = 0
    for shard in read_shards(folder):
        n_pictures += len(shard.entries)
        places.append(_add(opened, shard, seen))
    if n_pictures != manifest.get("n_pictures", n_pictures):
        raise DataError(
            f"{folder}: its shards list {n_pictures:,} pictures, not {manifest['n_pictures']:,};"
            " embed the corpus again, which restores the missing shards"
        )
    counts = Counter(opened.keys)
    return replace(
        opened,
        places=np.concatenate(places),
        n_pictures=n_pictures,
        types=opened.types if any(opened.types) else [],
        duplicate_keys=[key for key, count in counts.items() if count > 1],
    )


def _add(opened: Embeddings, shard: Shard, seen: set[str]) -> NDArray[np.int32]:
    """Append a shard's rows without those that an earlier shard has; return their places."""
    vectors = open_vectors(shard, opened.manifest["dimension"], opened.manifest["dtype"])
    numbers: list[int] = []
    start = stop = 0
    for number, entry in enumerate(shard.entries, shard.header.first):
        if "error" in entry:
            opened.failures.append(entry)
        if "row" not in entry:
            continue
        if entry["sha256"] in seen:  # another worker's share has it as well
            if start < stop:
                opened.vectors.append(vectors[start:stop])
            start = stop = stop + 1
            continue
        stop += 1
        seen.add(entry["sha256"])
        numbers.append(number)
        opened.keys.append(entry["key"])
        opened.sha256.append(entry["sha256"])
        opened.types.append(sys.intern(entry["type"]))
    if start < stop:
        opened.vectors.append(vectors[start:stop] if start else vectors)
    part = np.full(len(numbers), shard.part, np.int32)
    return np.stack([part, np.array(numbers, np.int32)], axis=1)


def identity(encoder: ImageEncoder) -> Entry:
    """Return what a manifest says about the encoder."""
    values = encoder.name, encoder.fingerprint, encoder.dimension, encoder.dtype
    return dict(zip(_IDENTITY, values, strict=True))


def check_encoder(stored: Mapping[str, Any], own: Mapping[str, Any], folder: Path) -> None:
    """Refuse the vectors in a folder, of manifest ``stored``, if another encoder made them.

    Raises
    ------
    DataError
        If name, fingerprint, dimension or type differ.
    """
    if any(stored[name] != own[name] for name in _IDENTITY):
        there, here = (
            f"{m['encoder']} ({m['dimension']} x {m['dtype']}, fingerprint {m['fingerprint']})"
            for m in (stored, own)
        )
        raise DataError(
            f"{folder}: holds vectors of {there}, not of {here}; embed into another folder, or use"
            " the encoder that made them"
        )
