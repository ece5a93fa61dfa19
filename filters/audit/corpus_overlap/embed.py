"""Embed a corpus: each distinct picture once, stored as it goes, continued after a kill."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flipbench.core.errors import DataError, result_or_error
from flipbench.core.files import printable_json, write_atomically
from flipbench.core.images import decode
from flipbench.core.locks import Share
from flipbench.core.stage import progress_bar

from .corpora import Corpus, Part, Picture
from .embeddings import Embeddings, check_encoder, identity, open_embeddings
from .encoders import ImageEncoder
from .prefetch import prefetched
from .shards import (
    FAILURES,
    Entry,
    Header,
    Shard,
    Vectors,
    read_manifest,
    read_shard,
    shard_path,
    write_manifest,
    write_shard,
)

log = logging.getLogger(__name__)


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
    """Embed each distinct picture of a corpus once; continue where an earlier call stopped.

    A picture that cannot be read or decoded is a failure with its name and reason, listed in
    ``failures.jsonl``, and is not tried again. Copies, files with the same bytes, are listed but
    have no row of their own. After a kill at any moment, at most the shard in flight is repeated,
    and the result is the same to the byte.

    Parameters
    ----------
    corpus : Corpus
    encoder : ImageEncoder
    folder : Path
        For the shards; one corpus and one encoder per folder.
    batch_size : int
        Pictures per call of the encoder.
    shard_size : int
        Most pictures per shard; a shard ends with its part of the corpus.
    n_threads : int, optional
        Threads that decode; by default one per processor.
    share : Share, optional
        This worker's share: every n-th part. When all workers are done, call without it to finish
        the folder; pictures that occur in several shares then have one row.
    progress : bool
        Whether to show a progress bar, with rate and time left.

    Returns
    -------
    Embeddings
        Of all that is in the folder.

    Raises
    ------
    DataError
        If the folder holds the vectors of another encoder, corpus or shard size, if no picture
        could be embedded, or a file cannot be written.
    """
    manifest = identity(encoder) | {
        "corpus": corpus.name,
        "corpus_fingerprint": corpus.fingerprint,
        "shard_size": shard_size,
    }
    stored = read_manifest(folder)
    if stored is None:
        write_manifest(folder, manifest)
    else:
        _check_manifest(stored, manifest, folder)
        if "n" in stored:  # finished, unless shards have been deleted
            opened = result_or_error(open_embeddings, folder, encoder)
            if not isinstance(opened, DataError):
                return opened
            write_manifest(folder, manifest)
    reader = _Reader(corpus, folder, shard_size, share)
    n_threads = n_threads or os.cpu_count() or 1
    total = corpus.n if share is None else None
    with progress_bar(f"embed with {encoder.name}", total, unit="img", shown=progress) as bar:
        ahead = 2 * batch_size + n_threads
        prepare = partial(_prepare, encoder)
        with closing(prefetched(reader.tasks(bar), prepare, n_threads, ahead)) as prepared:
            _write(prepared, encoder, batch_size, bar)
    return open_embeddings(folder, encoder) if share else _finish(folder, manifest)


def _finish(folder: Path, manifest: Entry) -> Embeddings:
    """Write what only the whole folder tells, and remove what killed writers left."""
    opened = open_embeddings(folder)
    if not opened.n:
        first = f", such as {opened.failures[0]['error']}" if opened.failures else ""
        raise DataError(
            f"{manifest['corpus']}: no picture could be embedded, {len(opened.failures)}"
            f" failed{first}; check the path and the columns"
        )
    for left in folder.glob(".*"):
        left.unlink(missing_ok=True)
    lines = [json.dumps(failure, ensure_ascii=False) + "\n" for failure in opened.failures]
    write_atomically(folder / FAILURES, printable_json("".join(lines)))
    counts = {
        "n": opened.n,
        "n_pictures": opened.n_pictures,
        "n_copies": opened.n_copies,
        "n_failures": len(opened.failures),
        "duplicate_keys": opened.duplicate_keys,
    }
    write_manifest(folder, manifest | counts)
    if opened.failures:
        log.warning("%d pictures failed; see %s", len(opened.failures), folder / FAILURES)
    if opened.duplicate_keys:
        some = ", ".join(opened.duplicate_keys[:3])
        log.warning("%d keys name several pictures: %s", len(opened.duplicate_keys), some)
    return replace(opened, manifest=manifest | counts)


def _check_manifest(stored: Entry, manifest: Entry, folder: Path) -> None:
    check_encoder(stored, manifest, folder)
    for name in ("corpus_fingerprint", "shard_size"):
        if stored[name] != manifest[name] and not (name == "shard_size" and "n" in stored):
            raise DataError(
                f"{folder}: holds part of {stored['corpus']} with {name} {stored[name]}, not"
                f" {manifest['corpus']} with {manifest[name]}; embed into another folder"
            )


@dataclass
class _Seen:
    """Hashes of the pictures that have been read, and why those of them failed that did."""

    hashes: set[bytes] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Task:
    """A picture to prepare, or the end of a shard."""

    seen: _Seen
    picture: Picture = Picture("")
    sha256: str = ""
    is_copy: bool = False
    path: Path | None = None
    header: Header | None = None


@dataclass(frozen=True)
class _Reader:
    """Reads what no complete shard has yet."""

    corpus: Corpus
    folder: Path
    shard_size: int
    share: Share | None

    def tasks(self, bar: Any) -> Iterator[_Task]:
        seen = _Seen()
        for number, part in enumerate(self.corpus.parts()):
            if self.share and not self.share.owns_index(number):
                continue
            shard, n_done = 0, 0
            complete = False
            while done := read_shard(shard_path(self.folder, number, shard)):
                self._check(done, part)
                for entry in done.entries:
                    if "sha256" in entry:
                        seen.hashes.add(bytes.fromhex(entry["sha256"]))
                    if "error" in entry and "sha256" in entry:
                        seen.failed[entry["sha256"]] = entry["error"]
                shard += 1
                n_done += len(done.entries)
                if not bar.disable:
                    bar.initial += len(done.entries)  # does not count towards the rate
                bar.update(len(done.entries))
                complete = done.header.last
                if complete:
                    break
            if not complete:
                yield from self._part(number, part, shard, n_done, seen)

    def _part(
        self, number: int, part: Part, shard: int, n_done: int, seen: _Seen
    ) -> Iterator[_Task]:
        def end(last: bool) -> _Task:
            path = shard_path(self.folder, number, shard)
            return _Task(seen, path=path, header=Header(part.name, n_done, 0, last))

        n = 0
        for picture in part.read(n_done):
            if n == self.shard_size:  # only now is it known not to be the last
                yield end(last=False)
                shard, n_done, n = shard + 1, n_done + n, 0
            n += 1
            if picture.error:
                yield _Task(seen, picture)
                continue
            digest = hashlib.sha256(picture.data)
            is_copy = digest.digest() in seen.hashes
            seen.hashes.add(digest.digest())
            kept = picture._replace(data=b"") if is_copy else picture
            yield _Task(seen, kept, digest.hexdigest(), is_copy)
        yield end(last=True)

    def _check(self, done: Shard, part: Part) -> None:
        if done.header.part != part.name:
            raise DataError(
                f"{done.path}: of {done.header.part}, not {part.name}; embed into another folder"
            )


def _prepare(encoder: ImageEncoder, task: _Task) -> tuple[_Task, Any, str]:
    """Return the task, what the encoder takes, and why there is none."""
    if task.header or task.is_copy or task.picture.error:
        return task, None, task.picture.error
    try:
        image = decode(task.picture.data, task.picture.key, draft=encoder.draft)[1]
        return task, encoder.prepare(image), ""
    except DataError as error:
        return task, None, str(error)
    except MemoryError:
        raise
    except Exception as error:  # one odd picture must not stop the other millions
        return task, None, f"{task.picture.key}: {type(error).__name__}: {error}"


def _write(
    prepared: Iterator[tuple[_Task, Any, str]], encoder: ImageEncoder, batch_size: int, bar: Any
) -> None:
    """Encode in batches, which never span two shards, and write each shard when it is full."""
    entries: list[Entry] = []
    waiting: list[tuple[Entry, Any]] = []
    encoded: list[tuple[Entry, NDArray[Any]]] = []

    def encode() -> None:
        vectors = encoder.embed([ready for _, ready in waiting])
        encoded.extend(zip((entry for entry, _ in waiting), vectors, strict=True))
        waiting.clear()

    for task, ready, error in prepared:
        if task.header is None:
            entry: Entry = {"key": task.picture.key, "type": task.picture.type}
            entry |= {"sha256": task.sha256} if task.sha256 else {}
            entry |= {"error": error} if error else {"copy": True} if task.is_copy else {}
            entries.append(entry)
            if ready is not None:
                waiting.append((entry, ready))
            if len(waiting) == batch_size:
                encode()
            bar.update()
            continue
        if waiting:
            encode()
        vectors = _normalised(encoded, encoder)
        failed = task.seen.failed
        failed |= {e["sha256"]: e["error"] for e in entries if "error" in e and "sha256" in e}
        for entry in entries:
            if "copy" in entry and entry["sha256"] in failed:
                del entry["copy"]
                entry["error"] = failed[entry["sha256"]]
        assert task.path is not None
        write_shard(task.path, task.header._replace(n_rows=len(vectors)), entries, vectors)
        entries, encoded = [], []


def _normalised(encoded: Sequence[tuple[Entry, NDArray[Any]]], encoder: ImageEncoder) -> Vectors:
    """Return the rows, and number their entries; a vector without a direction is a failure."""
    rows: list[NDArray[Any]] = []
    for entry, vector in encoded:
        if encoder.dtype == "float32":
            norm = np.linalg.norm(vector.astype(np.float64))
            if not np.isfinite(norm) or norm == 0:
                entry["error"] = f"{entry['key']}: {encoder.name} gave no finite vector"
                continue
            vector = (vector / norm).astype(np.float32)
        entry["row"] = len(rows)
        rows.append(vector)
    return np.array(rows, encoder.dtype).reshape(-1, encoder.dimension)
