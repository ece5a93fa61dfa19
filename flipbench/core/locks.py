"""Who does what on a run: commands wait for each other, and workers share the work."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import platform
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from flipbench.core.errors import DataError

log = logging.getLogger(__name__)
_TRY_EVERY = 0.2  # seconds
_n_holders: Counter[tuple[int, Path]] = Counter()
_guard = threading.Lock()


@dataclass(frozen=True)
class Share:
    """One worker's share of the work.

    >>> Share.parse("1/4")
    Share(worker=1, n_workers=4)
    """

    worker: int
    n_workers: int

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read ``worker/n_workers``, counted from 0."""
        worker, n_workers = (int(part) for part in text.split("/"))
        if not 0 <= worker < n_workers:
            raise ValueError(f"{text}: workers are counted from 0 to n - 1")
        return cls(worker, n_workers)

    def owns(self, key: str) -> bool:
        """Return whether this worker does the task with this id."""
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        return self.owns_index(number)

    def owns_index(self, index: int) -> bool:
        """Return whether this worker does the task at an index of a short list."""
        return index % self.n_workers == self.worker


@contextlib.contextmanager
def exclusive_lock(folder: Path, work: str, share: Share | None = None) -> Iterator[None]:
    """Wait until no other process does ``work``, and keep others out until the block ends.

    A process that waits logs it, once. Workers with different shares of the same work do not wait
    for each other; a worker and a command that does everything do. All threads of a process count
    as one. The lock ends with the process, however that ends.

    Parameters
    ----------
    folder : Path
        Such as a run; lock files are in its folder ``.locks``.
    work : str
        The name of the work, such as that of a stage.
    """
    name = re.sub(r"[^\w.+-]+", "-", work)[:120]
    key = os.getpid(), folder.absolute() / name
    with _guard:
        _n_holders[key] += 1
        is_first = _n_holders[key] == 1
    try:
        with contextlib.ExitStack() as locks:
            if is_first:
                locks.enter_context(_locked(folder, f"{name}.lock", work, is_shared=bool(share)))
            if is_first and share:
                share_lock = f"{name}.{share.worker}-of-{share.n_workers}.lock"
                locks.enter_context(_locked(folder, share_lock, work))
            yield
    finally:
        with _guard:
            _n_holders[key] -= 1


@contextlib.contextmanager
def _locked(folder: Path, name: str, work: str, *, is_shared: bool = False) -> Iterator[None]:
    path = folder / ".locks" / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError:  # not writable, which is reported when results are written
        yield
        return
    with file:
        if not _try_lock(file, is_shared=is_shared):
            log.warning("%s: %s does '%s'; waiting for it", folder, _holder(file), work)
            while not _try_lock(file, is_shared=is_shared):
                time.sleep(_TRY_EVERY)
        with contextlib.suppress(OSError):  # a full disk
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
        yield


def _try_lock(file: IO[str], *, is_shared: bool) -> bool:
    """Lock a file, and return whether no other process has locked it."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise DataError(
            f"{file.name}: the file system does not support locks ({error.strerror}); use a local"
            " run directory"
        ) from error
    return True


def _holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read(200) or "another command"
