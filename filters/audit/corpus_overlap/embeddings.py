"""Embeddings of a corpus: each distinct picture once, stored as it goes, continued after a kill."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flipbench.core.errors import DataError, result_or_error
from flipbench.core.files import atomic_file, printable_json, write_atomically
from flipbench.core.images import decode
from flipbench.core.locks import Share
from flipbench.core.stage import progress_bar

from .corpora import Corpus, Part, Picture
from .encoders import ImageEncoder
from .neighbours import Array

log = logging.getLogger(__name__)
MANIFEST, FAILURES = "manifest.json", "failures.jsonl"
Entry = dict[str, Any]


@dataclass(frozen=True)
class Embeddings:
    """The distinct pictures of a corpus and their vectors, row by row.

    Attributes
    ----------
    vectors : list of arrays, each of shape (n_i, d)
        L2-normalised float32, or uint8 codes; memory-mapped. All rows in order.
    keys, sha256, types : list of str, shape (n,)
        Name, hash of the bytes and type of each picture; ``types`` is empty if none is known.
    places : int array, shape (n, 2)
        Where each picture lies in the corpus: the number of its part, and its number in it.
    failures : list of dict
        ``key`` and ``error`` of each picture without a vector.
    n_pictures : int
        All entries of the corpus: rows, copies and failures.
    """

    encoder: str
    vectors: list[Array]
    keys: list[str]
    sha256: list[str]
    types: list[str]
    places: NDArray[np.int32]
    failures: list[Entry]
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

    @property
    def duplicate_keys(self) -> list[str]:
        """Keys of several different pictures."""
        return [key for key, count in Counter(self.keys).items() if count > 1]

    def pictures(self, rows: Sequence[int], corpus: Corpus) -> dict[int, Picture]:
        """Read some pictures from the corpus again.

        Raises
        ------
        DataError
            If the corpus is another one, or a picture is no longer there.
        """
        rows_by_part: dict[int, dict[int, int]] = {}
        for row in rows:
            part_number, number = self.places[row].tolist()
            rows_by_part.setdefault(part_number, {})[number] = row
        pictures = {}
        for part_number, part in enumerate(corpus.parts() if rows_by_part else ()):
            for number, row in rows_by_part.pop(part_number, {}).items():
                picture = next(part.read(number), Picture(""))
                if hashlib.sha256(picture.data).hexdigest() != self.sha256[row]:
                    raise DataError(
                        f"{corpus.name}: {self.keys[row]} has changed since it was embedded;"
                        " restore it, or embed the corpus into a new folder"
                    )
                pictures[row] = picture
            if not rows_by_part:
                break
        if rows_by_part:
            raise DataError(f"{corpus.name}: not the corpus that was embedded; it is shorter")
        return pictures


def embed_corpus(
    corpus: Corpus,
    encoder: ImageEncoder,
    folder: Path,
    *,
    batch_size: int = 64,
    shard_size: int = 4096,
    n_threads: int | None = None,
    share: Share | None = None,
    progress: bool = True,
) -> Embeddings:
    """Embed each distinct picture of a corpus once; return all that is in the folder.

    It continues where an earlier call stopped: after a kill at any moment, at most the shard in
    flight is repeated, and the result is the same to the byte. A picture that cannot be read or
    decoded is a failure with its name and reason, listed in ``failures.jsonl``, and is not tried
    again. Copies, files with the same bytes, are listed but have no row of their own.

    Parameters
    ----------
    folder : Path
        For the shards; one corpus and one encoder per folder.
    shard_size : int
        Most pictures per shard; a shard ends with its part of the corpus.
    n_threads : int, optional
        Threads that decode; by default one per processor.
    share : Share, optional
        This worker's share: every n-th part. When all workers are done, call without it to finish
        the folder; pictures that occur in several shares then have one row.

    Raises
    ------
    DataError
        If the folder holds the vectors of another encoder, corpus or shard size, if no picture
        could be embedded, or a file cannot be written.
    """
    manifest = _identity(encoder) | {
        "corpus": corpus.name,
        "corpus_fingerprint": corpus.fingerprint,
        "shard_size": shard_size,
    }
    stored_manifest = read_manifest(folder)
    if stored_manifest is None:
        _write_manifest(folder, manifest)
    else:
        _check_manifest(stored_manifest, manifest, folder)
        if "n" in stored_manifest:  # finished, unless shards have been deleted
            opened = result_or_error(open_embeddings, folder, encoder)
            if not isinstance(opened, DataError):
                return opened
            _write_manifest(folder, manifest)
    n_threads = n_threads or os.cpu_count() or 1
    total = corpus.n if share is None else None
    with (
        ThreadPoolExecutor(n_threads) as pool,
        progress_bar(f"embed with {encoder.name}", total, unit="img", is_shown=progress) as bar,
    ):
        embedder = _Embedder(encoder, folder, batch_size, shard_size, pool, n_threads, bar)
        for number, part in enumerate(corpus.parts()):
            if share is None or share.owns_index(number):
                embedder.embed_part(number, part)
    return open_embeddings(folder, encoder) if share else _finish(folder, manifest)


def _finish(folder: Path, manifest: Entry) -> Embeddings:
    """Write what only the whole folder tells, and remove what killed writers left."""
    opened = open_embeddings(folder)
    if not opened.n:
        example = f", such as {opened.failures[0]['error']}" if opened.failures else ""
        raise DataError(
            f"{manifest['corpus']}: no picture could be embedded, {len(opened.failures)}"
            f" failed{example}; check the path and the columns"
        )
    for partial_file in folder.glob(".*"):
        partial_file.unlink(missing_ok=True)
    lines = [json.dumps(failure, ensure_ascii=False) + "\n" for failure in opened.failures]
    write_atomically(folder / FAILURES, printable_json("".join(lines)))
    counts = {
        "n": opened.n,
        "n_pictures": opened.n_pictures,
        "n_copies": opened.n_copies,
        "n_failures": len(opened.failures),
        "duplicate_keys": opened.duplicate_keys,
    }
    _write_manifest(folder, manifest | counts)
    if opened.failures:
        log.warning("%d pictures failed; see %s", len(opened.failures), folder / FAILURES)
    if keys := opened.duplicate_keys:
        log.warning("%d keys name several pictures: %s", len(keys), ", ".join(keys[:3]))
    return replace(opened, manifest=manifest | counts)


@dataclass
class _Embedder:
    """Embeds the parts of a corpus, with the hashes and errors of the pictures so far."""

    encoder: ImageEncoder
    folder: Path
    batch_size: int
    shard_size: int
    pool: ThreadPoolExecutor
    n_threads: int
    bar: Any
    hashes: set[bytes] = field(default_factory=set)
    errors: dict[str, str] = field(default_factory=dict)

    def embed_part(self, number: int, part: Part) -> None:
        """Write the shards of a part that are not there yet."""
        n_shards, n_done = 0, 0
        while shard := _read_shard(_shard_path(self.folder, number, n_shards)):
            if shard.part != part.name:
                raise DataError(
                    f"{shard.path}: of {shard.part}, not {part.name}; embed into another folder"
                )
            self._skip(shard)
            n_shards, n_done = n_shards + 1, n_done + len(shard.entries)
            if shard.last:
                return
        pictures = part.read(n_done)
        following = list(islice(pictures, 1))
        is_last = False
        while not is_last:
            chunk = chain(following, islice(pictures, self.shard_size - len(following)))
            entries, vectors = self._embed(chunk)
            following = list(islice(pictures, 1))
            is_last = not following
            path = _shard_path(self.folder, number, n_shards)
            shard = Shard(path, part.name, n_done, len(vectors), is_last, entries)
            _write_shard(shard, vectors)
            n_shards, n_done = n_shards + 1, n_done + len(entries)

    def _skip(self, shard: Shard) -> None:
        for entry in shard.entries:
            if "sha256" in entry:
                self.hashes.add(bytes.fromhex(entry["sha256"]))
                if "error" in entry:
                    self.errors[entry["sha256"]] = entry["error"]
        if not self.bar.disable:
            self.bar.initial += len(shard.entries)  # does not count towards the rate
        self.bar.update(len(shard.entries))

    def _embed(self, pictures: Iterable[Picture]) -> tuple[list[Entry], Array]:
        """Return the entries of a shard, and its vectors."""
        entries: list[Entry] = []
        batch: list[tuple[Entry, Any]] = []
        vectors: list[Array] = []

        def encode() -> None:
            encoded = self.encoder.embed([prepared for _, prepared in batch]) if batch else ()
            for (entry, _), vector in zip(batch, encoded, strict=True):
                if (unit := self._normalise(vector)) is None:
                    entry["error"] = f"{entry['key']}: {self.encoder.name} gave no finite vector"
                else:
                    entry["row"] = len(vectors)
                    vectors.append(unit)
            batch.clear()

        for entry, prepared in self._prepare_ahead(pictures):
            entries.append(entry)
            if prepared is not None:
                batch.append((entry, prepared))
            if len(batch) == self.batch_size:
                encode()
            self.bar.update()
        encode()
        self.errors |= {e["sha256"]: e["error"] for e in entries if "error" in e and "sha256" in e}
        for entry in entries:
            if "copy" in entry and entry["sha256"] in self.errors:
                del entry["copy"]
                entry["error"] = self.errors[entry["sha256"]]
        return entries, np.array(vectors, self.encoder.dtype).reshape(-1, self.encoder.dimension)

    def _normalise(self, vector: Array) -> Array | None:
        """Return the vector at length 1; None if it has no direction."""
        if self.encoder.dtype != "float32":
            return vector
        norm = np.linalg.norm(vector.astype(np.float64))
        if not np.isfinite(norm) or norm == 0:
            return None
        return np.asarray(vector / norm, np.float32)

    def _prepare_ahead(self, pictures: Iterable[Picture]) -> Iterator[tuple[Entry, Any]]:
        """Yield each picture's entry and what the encoder takes, prepared ahead in threads."""
        pending: deque[Future[tuple[Entry, Any]]] = deque()
        for picture in pictures:
            pending.append(self.pool.submit(self._prepare, picture, self._entry(picture)))
            if len(pending) > 2 * self.batch_size + self.n_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _entry(self, picture: Picture) -> Entry:
        entry: Entry = {"key": picture.key, "type": picture.type}
        if picture.error:
            return entry | {"error": picture.error}
        digest = hashlib.sha256(picture.data)
        is_copy = digest.digest() in self.hashes
        self.hashes.add(digest.digest())
        return entry | {"sha256": digest.hexdigest()} | ({"copy": True} if is_copy else {})

    def _prepare(self, picture: Picture, entry: Entry) -> tuple[Entry, Any]:
        """Return the entry, and what the encoder takes; None for a copy or a failure."""
        if "copy" in entry or "error" in entry:
            return entry, None
        try:
            image = decode(picture.data, picture.key, draft=self.encoder.draft)[1]
            return entry, self.encoder.prepare(image)
        except DataError as error:
            return entry | {"error": str(error)}, None
        except MemoryError:
            raise
        except Exception as error:  # one odd picture must not stop the other millions
            return entry | {"error": f"{picture.key}: {type(error).__name__}: {error}"}, None


def open_embeddings(folder: Path, encoder: ImageEncoder | None = None) -> Embeddings:
    """Open stored embeddings, which must be of ``encoder`` if it is given.

    Raises
    ------
    DataError
        If there are none, they are of another encoder, or a file is damaged.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise DataError(f"{folder}: holds no embeddings; embed a corpus into it first")
    if encoder is not None:
        _check_encoder(manifest, _identity(encoder), folder)
    opened = Embeddings(
        manifest["encoder"], [], [], [], [], np.empty((0, 2), np.int32), [], 0, manifest
    )
    hashes: set[str] = set()
    places: list[NDArray[np.int32]] = [opened.places]
    n_pictures = 0
    for listing in sorted(folder.glob("part-*.jsonl")):
        if shard := _read_shard(listing.with_suffix(".npy")):
            n_pictures += len(shard.entries)
            places.append(_add(opened, shard, hashes))
    if n_pictures != manifest.get("n_pictures", n_pictures):
        raise DataError(
            f"{folder}: its shards list {n_pictures:,} pictures, not {manifest['n_pictures']:,};"
            " embed the corpus again, which restores the missing shards"
        )
    types = opened.types if any(opened.types) else []
    return replace(opened, places=np.concatenate(places), n_pictures=n_pictures, types=types)


def _add(opened: Embeddings, shard: Shard, hashes: set[str]) -> NDArray[np.int32]:
    """Append a shard's rows without those that an earlier shard has; return their places."""
    vectors = _open_vectors(shard, opened.manifest["dimension"], opened.manifest["dtype"])
    numbers: list[int] = []
    start = stop = 0
    for number, entry in enumerate(shard.entries, shard.first):
        if "error" in entry:
            opened.failures.append(entry)
        if "row" not in entry:
            continue
        if entry["sha256"] in hashes:  # another worker's share has it as well
            if start < stop:
                opened.vectors.append(vectors[start:stop])
            start = stop = stop + 1
            continue
        stop += 1
        hashes.add(entry["sha256"])
        numbers.append(number)
        opened.keys.append(entry["key"])
        opened.sha256.append(entry["sha256"])
        opened.types.append(sys.intern(entry["type"]))
    if start < stop:
        opened.vectors.append(vectors[start:stop])
    part = np.full(len(numbers), int(shard.path.stem.split("-")[1]), np.int32)
    return np.stack([part, np.array(numbers, np.int32)], axis=1)


# --- files ----------------------------------------------------------------------------------------


class Shard(NamedTuple):
    """A file of vectors, and the list of pictures beside it.

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
    entries : list of dict
        Its pictures, in order.
    """

    path: Path
    part: str
    first: int
    n_rows: int
    last: bool
    entries: list[Entry]


def _shard_path(folder: Path, part: int, shard: int) -> Path:
    return folder / f"part-{part:06d}-{shard:04d}.npy"


def _write_shard(shard: Shard, vectors: Array) -> None:
    """Write a shard; it exists when its list of pictures does, which is written last."""
    with atomic_file(shard.path) as partial_path, partial_path.open("wb") as file:
        np.save(file, vectors)
    names = ("part", "first", "n_rows", "last")
    lines = [{name: getattr(shard, name) for name in names}, *shard.entries]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(shard.path.with_suffix(".jsonl"), text)


def _read_shard(path: Path) -> Shard | None:
    """Return a shard, or None if it does not exist."""
    listing = path.with_suffix(".jsonl")
    try:
        lines = [json.loads(line) for line in listing.read_text("utf-8").split("\n") if line]
        shard = Shard(path, entries=lines[1:], **lines[0])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(f"{listing}: damaged ({error}); delete it and run again") from error
    if not path.exists():
        raise DataError(f"{path}: missing; delete {listing.name} as well and run again")
    return shard


def _open_vectors(shard: Shard, dimension: int, dtype: str) -> Array:
    """Return a shard's vectors, shape (n_rows, dimension), memory-mapped."""
    remedy = "delete it and its .jsonl file and run again"
    try:
        vectors: Array = np.load(shard.path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"{shard.path}: damaged ({error}); {remedy}") from error
    if vectors.shape != (shard.n_rows, dimension) or vectors.dtype != dtype:
        raise DataError(
            f"{shard.path}: {vectors.dtype} of shape {vectors.shape} instead of {dtype} of shape"
            f" {(shard.n_rows, dimension)}; {remedy}"
        )
    return vectors


def n_embedded(folder: Path) -> int:
    """Return how many pictures the finished shards below a folder hold."""
    listings = folder.rglob("part-*.jsonl")
    return sum(len(listing.read_bytes().splitlines()) - 1 for listing in listings)


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


def _write_manifest(folder: Path, manifest: Entry) -> None:
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / MANIFEST, text)


def _identity(encoder: ImageEncoder) -> Entry:
    return {
        "encoder": encoder.name,
        "fingerprint": encoder.fingerprint,
        "dimension": encoder.dimension,
        "dtype": encoder.dtype,
    }


def _check_encoder(manifest: Entry, identity: Entry, folder: Path) -> None:
    if any(manifest[name] != value for name, value in identity.items()):
        stored_encoder, encoder = (
            f"{m['encoder']} ({m['dimension']} x {m['dtype']}, fingerprint {m['fingerprint']})"
            for m in (manifest, identity)
        )
        raise DataError(
            f"{folder}: holds vectors of {stored_encoder}, not of {encoder}; embed into another"
            " folder, or use the encoder that made them"
        )


def _check_manifest(stored_manifest: Entry, manifest: Entry, folder: Path) -> None:
    names = ("encoder", "fingerprint", "dimension", "dtype")
    _check_encoder(stored_manifest, {name: manifest[name] for name in names}, folder)
    for name in ("corpus_fingerprint", "shard_size"):
        if stored_manifest[name] != manifest[name] and not (
            name == "shard_size" and "n" in stored_manifest
        ):
            raise DataError(
                f"{folder}: holds part of {stored_manifest['corpus']} with {name}"
                f" {stored_manifest[name]}, not {manifest['corpus']} with {manifest[name]}; embed"
                " into another folder"
            )
