"""A run directory: append-only JSONL shards for each kind of record, and images by content.

Every writer has shards of its own, and flushes each batch to disk before the next. Killing the
program, or a power failure, at any moment loses at most the batch in flight. An unfinished last
line is passed over, an unreadable line is skipped with a warning, and their work is redone.
"""

from __future__ import annotations

import contextlib
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
_TIMED = "shard-"
"""How the name of a shard begins that has the time of its first record; earlier versions' don't."""
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
        self._shards: dict[tuple[int, str], BinaryIO] = {}
        self._appending = threading.Lock()
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
        """Wait until no other process does ``work`` on this run, and keep others out of it."""
        return exclusive_lock(self.path, work, self.share)

    def append(self, records: Sequence[Record]) -> None:
        """Write a batch of records and flush it to disk: once this returns, it is safe.

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
                with self._appending:
                    if key not in self._shards:
                        mode = PRIVATE if batch[0].private else 0o666
                        self._shards[key] = _new_shard(self.path / folder, mode)
                    _append(self._shards[key], lines.encode())
            except OSError as error:
                raise DataError(
                    f"{self.path / folder}: cannot append ({error.strerror}); earlier records are"
                    " safe: free some disk space and run the same command again"
                ) from error

    def read(self, kind: type[R], partition: str = "", *, lost: bool = False) -> Iterator[R]:
        """Yield every record of a kind, or of one of its partitions, once, shard by shard.

        An invalid line, or an edit whose image is missing or damaged, is skipped with a warning:
        its work counts as not done, and a later line for the same work takes its place. With
        ``lost``, edits without their image are included.
        """
        record_ids: set[str] = set()
        for line, path, number in self._lines(kind, partition):
            try:
                record = kind.model_validate_json(line)
            except ValidationError as error:
                problem = error.errors()[0]
                reason = f"{problem['loc']} {problem['msg']}"
                log.warning("%s:%d is set aside: %s", path, number, reason)
                continue
            if record.id in record_ids:
                continue
            if isinstance(record, Edit) and not lost and not self.images.has(record.image):
                file = result_or_error(self.images.path, record.image)
                state = "damaged" if isinstance(file, Path) and file.exists() else "missing"
                log.warning("%s:%d is set aside: its image is %s", path, number, state)
                continue
            record_ids.add(record.id)
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
        files = (self.path / kind.kind / partition).rglob("*.jsonl")
        return sorted(files, key=lambda f: (f.name if f.name.startswith(_TIMED) else "", f))

    def open_failures(self, stage: str, done_ids: set[str]) -> list[Failure]:
        """Return the last failure of each record of ``stage`` that is not in ``done_ids``."""
        latest = {f.record_id: f for f in self.read(Failure) if f.stage == stage}
        return [failure for record_id, failure in latest.items() if record_id not in done_ids]

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
        """Close the shards."""
        for shard in self._shards.values():
            shard.close()
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
                        break  # unfinished: its writer was killed or is still writing
                    yield line, path, number


def _new_shard(folder: Path, mode: int) -> BinaryIO:
    """Create a writer's own file, whose name sorts after those of earlier writers."""
    make_folder(folder)
    name = f"{_TIMED}{time.time_ns()}-{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:6]}.jsonl"
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    flush_folder(folder)
    return os.fdopen(descriptor, "wb", buffering=0)


def _append(file: BinaryIO, data: bytes) -> None:
    """Write a whole batch and flush it; or none of it, so that its work is redone."""
    start = file.seek(0, os.SEEK_END)
    try:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[file.write(remaining) :]
        os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(start)
        raise


def _open_shard(path: Path) -> BinaryIO:
    try:
        return open_confined(path, None, max_bytes=sys.maxsize)
    except PermissionError as error:
        raise DataError(
            f"{path}: you may not read it; ask its owner for permission, or use"
            " another run directory"
        ) from error


def _replace(path: Path, text: str) -> None:
    if path.exists():
        old_content = path.read_bytes()
        if old_content == text.encode():
            return
        backups = (path.with_name(f"{path.stem}.{n}{path.suffix}") for n in itertools.count(1))
        write_atomically(next(backup for backup in backups if not backup.exists()), old_content)
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
