"""Turns: two commands that would do the same work on one run do it one after the other."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from flipbench.core.workers import Share

log = logging.getLogger(__name__)
_EVERY = 0.2  # seconds between two tries
_held: Counter[tuple[int, Path]] = Counter()
_guard = threading.Lock()


@contextlib.contextmanager
def turn(folder: Path, work: str, share: Share | None = None) -> Iterator[None]:
    """Wait until no other process does ``work``, and keep it for this one until the block ends.

    Whoever waits says so, once. Workers with different shares of the same work do not wait for each
    other; a worker and a command that does everything do. A process that already does the work goes
    on. The lock goes with its process, however that ends.

    Parameters
    ----------
    folder : Path
        What is worked on, such as a run; locks are kept in its folder ``.locks``.
    work : str
        A name of the work, such as that of a stage.
    """
    name = re.sub(r"[^\w.+-]+", "-", work)[:120]
    key = os.getpid(), folder.absolute() / name
    with _guard:
        _held[key] += 1
        is_first = _held[key] == 1
    try:
        with contextlib.ExitStack() as locks:
            if is_first:
                locks.enter_context(_locked(folder, f"{name}.lock", work, is_shared=bool(share)))
            if is_first and share:
                own = f"{name}.{share.worker}-of-{share.n_workers}.lock"
                locks.enter_context(_locked(folder, own, work))
            yield
    finally:
        with _guard:
            _held[key] -= 1


@contextlib.contextmanager
def _locked(folder: Path, name: str, work: str, *, is_shared: bool = False) -> Iterator[None]:
    path = folder / ".locks" / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except OSError:  # where nothing can be written, writing the results says so
        yield
        return
    with file:
        if not _try(file, is_shared):
            log.warning("%s: %s does '%s'; waiting for it", folder, _holder(file), work)
            while not _try(file, is_shared):
                time.sleep(_EVERY)
        with contextlib.suppress(OSError):  # a full disk
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
        yield


def _try(file: IO[str], is_shared: bool) -> bool:
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here: opening the run's shards says so
        return True
    return True


def _holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read(200) or "another command"
