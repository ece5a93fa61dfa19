"""A run directory: append-only JSONL shards for each kind of record, and images by content.

Killing the program at any moment loses at most the batch in flight; a power failure also loses the
batches of the last `FLUSH_SECONDS`. Every writer locks a shard of its own; a dead writer's shard is
taken over and its unfinished last line cut off. An unreadable line is skipped with a warning and
its work redone.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import logging
import os
import platform
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import ValidationError

from flipbench import __version__
from flipbench.core.confined import open_confined
from flipbench.core.errors import DataError, result_or_error
from flipbench.core.files import (
    PRIVATE,
    flush_folder,
    make_folder,
    printable_json,
    write_atomically,
)
from flipbench.core.images import ImageStore
from flipbench.core.limits import bounded_lines
from flipbench.core.locks import Share, exclusive_lock
from flipbench.core.records import Edit, Failure, Record

log = logging.getLogger(__name__)
R = TypeVar("R", bound=Record)
FLUSH_SECONDS = 0.2
"""How long batches of a stage that is faster than the disk wait, to be flushed together."""
_PACKAGES = (
    "torch",
    "torchvision",
    "transformers",
    "peft",
    "trl",
    "accelerate",
    "diffusers",
    "datasets",
    "numpy",
    "pillow",
    "opencv-python-headless",
)
_GPU_DEVICES = tuple(map(Path, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))  # /dev/dxg: WSL


class Run:
    """Open a run directory; create it if missing.

    Parameters
    ----------
    share : Share, optional
        This process's share of the run's work, if it is a worker.
    read_only : bool
        Whether the run is somebody else's, which is read and may be write-protected.

    Raises
    ------
    DataError
        If the folder cannot be written.
    """

    def __init__(
        self, path: str | Path, share: Share | None = None, *, read_only: bool = False
    ) -> None:
        self.path, self.share = Path(path), share
        self.images = ImageStore(self.path / "images")
        self._shards: dict[tuple[int, str], _Shard] = {}
        if not read_only:
            self._check_writable()

    def _check_writable(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".writable-{uuid.uuid4().hex[:8]}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot be written ({error.strerror}); choose another run directory"
            ) from error

    def exclusive_lock(self, work: str) -> contextlib.AbstractContextManager[None]:
        """Wait until no other process does ``work`` on this run, and keep it for this one."""
        return exclusive_lock(self.path, work, self.share)

    def append(self, records: Sequence[Record], *, wait: bool = True) -> None:
        """Write a batch of records and flush it to disk.

        Once this returns, no kill of the process loses them. Without ``wait``, batches that follow
        each other within `FLUSH_SECONDS` are flushed together, at most that time after they were
        written; `flush` waits for it.

        Raises
        ------
        DataError
            If they cannot be written; earlier records are safe.
        """
        by_folder: dict[str, list[Record]] = {}
        for record in records:
            by_folder.setdefault(record.folder, []).append(record)
        for folder, batch in by_folder.items():
            key = os.getpid(), folder  # a forked process must not write to its parent's shard
            lines = printable_json("".join(record.model_dump_json() + "\n" for record in batch))
            try:
                if key not in self._shards:
                    mode = PRIVATE if batch[0].private else 0o666
                    self._shards[key] = _Shard.open(self.path / folder, mode)
                self._shards[key].write(lines.encode(), wait=wait)
            except OSError as error:
                raise self._unwritable(key, error) from error

    def flush(self) -> None:
        """Wait until all that was appended is on disk.

        Raises
        ------
        DataError
            If it cannot be; what was not flushed is taken back.
        """
        for key, shard in list(self._shards.items()):
            try:
                if key[0] == os.getpid():
                    shard.flush()
            except OSError as error:
                raise self._unwritable(key, error) from error

    def _unwritable(self, key: tuple[int, str], error: OSError) -> DataError:
        if shard := self._shards.pop(key, None):
            with contextlib.suppress(OSError):
                shard.flush()
            shard.file.close()
        return DataError(
            f"{self.path / key[1]}: cannot append ({error.strerror}); earlier records are safe:"
            " free some disk space and run the same command again"
        )

    def read(self, kind: type[R], partition: str = "", *, lost: bool = False) -> Iterator[R]:
        """Yield every record of a kind, or of one of its partitions, once, shard by shard.

        An invalid line, or an edit whose image is missing or damaged, is skipped with a warning:
        its work counts as not done, and a later line for the same work takes its place. With
        ``lost``, edits without their image are included.
        """
        seen: set[str] = set()
        for line, path, number in self._lines(kind, partition):
            try:
                record = kind.model_validate_json(line)
            except ValidationError as error:
                first = error.errors()[0]
                found = f"{first['loc']} {first['msg']}"
                log.warning("%s:%d is set aside: %s", path, number, found)
                continue
            if record.id in seen:
                continue
            if isinstance(record, Edit) and not lost and not self.images.has(record.image):
                file = result_or_error(self.images.path, record.image)
                state = "damaged" if isinstance(file, Path) and file.exists() else "missing"
                log.warning("%s:%d is set aside: its image is %s", path, number, state)
                continue
            seen.add(record.id)
            yield record

    def ids(self, kind: type[Record], partition: str = "") -> set[str]:
        """Return the ids of the records that `read` yields; needs far less memory."""
        return {record.id for record in self.read(kind, partition)}

    def index(self, kind: type[R]) -> dict[str, R]:
        """Return every record of a kind by id."""
        return {record.id: record for record in self.read(kind)}

    def count(self, kind: type[Record]) -> int:
        """Return the number of lines of a kind; cheap, for progress bars only."""
        return sum(1 for _ in self._lines(kind, ""))

    def shards(self, kind: type[Record], partition: str = "") -> list[Path]:
        """Return the files that hold a kind, or one of its partitions, in reading order."""
        return sorted((self.path / kind.kind / partition).rglob("*.jsonl"))

    def open_failures(self, stage: str, done: set[str]) -> list[Failure]:
        """Return the last failure of each record of ``stage`` that is not in ``done``."""
        last = {f.record_id: f for f in self.read(Failure) if f.stage == stage}
        return [failure for record_id, failure in last.items() if record_id not in done]

    def write_provenance(self, resolved_config: str) -> None:
        """Write ``config.yaml`` and ``environment.json``; older, different versions are renamed.

        Raises
        ------
        DataError
            If they cannot be written.
        """
        _replace(self.path / "config.yaml", resolved_config)
        _replace(self.path / "environment.json", json.dumps(environment(), indent=2) + "\n")

    def close(self) -> None:
        """Flush and close the shards and release their locks; raises as `flush`."""
        self.flush()
        for shard in self._shards.values():
            shard.file.close()
        self._shards.clear()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lines(self, kind: type[Record], partition: str) -> Iterator[tuple[bytes, Path, int]]:
        for path in self.shards(kind, partition):
            with _open_shard(path) as file:
                for number, line in enumerate(bounded_lines(file, path), 1):
                    if not line.endswith(b"\n"):
                        break  # unfinished: the writer was killed or is still writing
                    yield line, path, number


class _Shard:
    """One writer's file, locked while it is open."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file = path, file
        self._turn = threading.Lock()
        self._on_disk = file.seek(0, os.SEEK_END)  # bytes
        self._flushed_at = -FLUSH_SECONDS
        self._timer: threading.Timer | None = None  # flushes what nothing has flushed until then
        self._failed: OSError | None = None  # why the timer could not

    @classmethod
    def open(cls, folder: Path, mode: int) -> _Shard:
        make_folder(folder)
        for path in sorted(folder.glob("*.jsonl")):
            try:
                file = path.open("r+b", buffering=0)
            except PermissionError:  # another user's shard
                continue
            if _lock(file):
                _cut_torn_line(file)
                return cls(path, file)
            file.close()
        path = folder / f"{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:6]}.jsonl"
        # renamed to a shard only once locked, so that no other writer can take it over
        unlocked = path.with_suffix(".new")
        unlocked.touch(mode, exist_ok=False)
        file = unlocked.open("r+b", buffering=0)
        if not _lock(file):
            file.close()
            unlocked.unlink()
            raise DataError(
                f"{path}: the file system does not support locks; use a local run directory"
            )
        unlocked.rename(path)
        flush_folder(folder)
        return cls(path, file)

    def write(self, data: bytes, *, wait: bool) -> None:
        with self._turn:
            if self._failed:
                raise self._failed
            start = self.file.seek(0, os.SEEK_END)
            try:
                view = memoryview(data)
                while view:
                    view = view[self.file.write(view) :]
            except OSError:
                self._cut(start)
                raise
            idle = time.monotonic() - self._flushed_at
            if wait or idle >= FLUSH_SECONDS:
                self._flush()
            elif self._timer is None:
                self._timer = threading.Timer(FLUSH_SECONDS - idle, self._flush_late)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        """Flush what waits for it."""
        with self._turn:
            if self._failed:
                raise self._failed
            if self._timer is not None:
                self._flush()

    def _flush_late(self) -> None:
        with self._turn:
            if self._timer is None or self.file.closed:  # flushed in the meantime
                return
            try:
                self._flush()
            except OSError as error:
                self._failed = error

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            os.fsync(self.file.fileno())
        except OSError:
            self._cut(self._on_disk)  # it may be lost, so its work is redone
            raise
        self._on_disk = self.file.seek(0, os.SEEK_END)
        self._flushed_at = time.monotonic()

    def _cut(self, end: int) -> None:
        with contextlib.suppress(OSError):
            self.file.truncate(end)


def _open_shard(path: Path) -> BinaryIO:
    try:
        return open_confined(path, None, max_bytes=sys.maxsize)
    except PermissionError as error:
        raise DataError(
            f"{path}: you may not read it; ask its owner for permission, or use"
            " another run directory"
        ) from error


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _cut_torn_line(file: BinaryIO) -> None:
    end = file.seek(0, os.SEEK_END)
    position = end
    while position > 0:
        start = max(0, position - 65536)
        file.seek(start)
        newline = file.read(position - start).rfind(b"\n")
        if newline >= 0:
            position = start + newline + 1
            break
        position = start
    if position < end:
        file.truncate(position)


def _replace(path: Path, text: str) -> None:
    if path.exists():
        old = path.read_bytes()
        if old == text.encode():
            return
        backups = (path.with_name(f"{path.stem}.{n}{path.suffix}") for n in itertools.count(1))
        write_atomically(next(backup for backup in backups if not backup.exists()), old)
    write_atomically(path, text)


def environment() -> dict[str, Any]:
    """Return what results may depend on: versions, platform, cores, devices."""
    facts: dict[str, Any] = {
        "flipbench": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "n_cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }
    return facts | {"gpus": _gpus()}


def _gpus() -> list[str]:
    """Return the names of the GPUs; torch is imported for them only where there may be some."""
    if "torch" not in sys.modules and not any(path.exists() for path in _GPU_DEVICES):
        return []
    import torch

    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.get_device_name(i) for i in range(n_gpus)]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages, by name."""
    installed = {name: version for name in _PACKAGES if (version := _version(name))}
    return {"python": sys.version.split()[0]} | installed


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
