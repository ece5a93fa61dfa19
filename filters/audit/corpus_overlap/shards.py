"""Embeddings on disk: shards of vectors, and a line of JSON for each picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flipbench.core.errors import DataError
from flipbench.core.files import atomic_file, write_atomically

MANIFEST, FAILURES = "manifest.json", "failures.jsonl"
Entry = dict[str, Any]
Vectors = NDArray[Any]


class Header(NamedTuple):
    """What a shard is: the first line of its list of pictures.

    Attributes
    ----------
    part : str
        The part of the corpus.
    first : int
        Number, within the part, of its first picture.
    n_rows : int
        Number of vectors.
    last : bool
        Whether the part ends with it.
    """

    part: str
    first: int
    n_rows: int
    last: bool


class Shard(NamedTuple):
    """One shard: where it lies, and its pictures in order."""

    path: Path
    header: Header
    entries: list[Entry]

    @property
    def part(self) -> int:
        """Number of its part of the corpus."""
        return int(self.path.stem.split("-")[1])


def shard_path(folder: Path, part: int, shard: int) -> Path:
    """Return the path of a shard's vectors; its list of pictures is beside it, as ``.jsonl``."""
    return folder / f"part-{part:06d}-{shard:04d}.npy"


def write_shard(path: Path, header: Header, entries: Sequence[Entry], vectors: Vectors) -> None:
    """Write a shard; it exists when its list of pictures does, which is written last.

    Raises
    ------
    DataError
        If it cannot be written.
    """
    with atomic_file(path) as partial, partial.open("wb") as file:
        np.save(file, vectors)
    lines = [header._asdict(), *entries]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(path.with_suffix(".jsonl"), text)


def read_shard(path: Path) -> Shard | None:
    """Return a shard, or None if it does not exist.

    Raises
    ------
    DataError
        If its list of pictures is damaged, or its vectors are missing.
    """
    listing = path.with_suffix(".jsonl")
    try:
        lines = [json.loads(line) for line in listing.read_text("utf-8").split("\n") if line]
        shard = Shard(path, Header(**lines[0]), lines[1:])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(f"{listing}: damaged ({error}); delete it and run again") from error
    if not path.exists():
        raise DataError(f"{path}: missing; delete {listing.name} as well and run again")
    return shard


def read_shards(folder: Path) -> Iterator[Shard]:
    """Yield all shards of a folder, in order."""
    for path in sorted(folder.glob("part-*.jsonl")):
        if shard := read_shard(path.with_suffix(".npy")):
            yield shard


def n_embedded(folder: Path) -> int:
    """Return how many pictures the finished shards below a folder hold."""
    listings = folder.rglob("part-*.jsonl")
    return sum(len(listing.read_bytes().splitlines()) - 1 for listing in listings)


def open_vectors(shard: Shard, dimension: int, dtype: str) -> Vectors:
    """Return a shard's vectors, shape (n_rows, dimension), memory-mapped.

    Raises
    ------
    DataError
        If the file is damaged or does not fit its header.
    """
    try:
        vectors: Vectors = np.load(shard.path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{shard.path}: damaged ({error}); delete it and its .jsonl file and run again"
        ) from error
    if vectors.shape != (shard.header.n_rows, dimension) or vectors.dtype != dtype:
        raise DataError(
            f"{shard.path}: {vectors.dtype} of shape {vectors.shape} instead of {dtype} of shape"
            f" {(shard.header.n_rows, dimension)}; delete it and its .jsonl file and run again"
        )
    return vectors


def read_manifest(folder: Path) -> Entry | None:
    """Return what the embeddings in a folder are of, or None if there are none.

    Raises
    ------
    DataError
        If it is damaged.
    """
    path = folder / MANIFEST
    try:
        manifest: Entry = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"{path}: damaged ({error}); embed into another folder") from error
    return manifest


def write_manifest(folder: Path, manifest: Entry) -> None:
    """Write what the embeddings in a folder are of."""
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / MANIFEST, text)
