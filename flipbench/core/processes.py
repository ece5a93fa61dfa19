"""Several processes at one job: those of ``accelerate launch``, and those that a command starts.

Of the processes of a distributed training, only the main one writes records, cards, checkpoints and
output.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

T = TypeVar("T")
MAIN_PROCESS_TIMEOUT = timedelta(days=2)
"""How long other processes wait while the main one asks a chat model or verifies a checkpoint."""


def n_processes() -> int:
    """Return how many processes the launcher started; 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Return whether this is the main process."""
    return n_processes() == 1 or int(os.environ.get("RANK", "0")) == 0


def from_main(make: Callable[[], T]) -> T:
    """Call ``make`` in the main process only and return its result in every process.

    The result must be picklable. If ``make`` raises, the main process exits and the launcher
    stops the others.
    """
    if n_processes() == 1:
        return make()
    import torch
    from accelerate import PartialState  # type: ignore[import-untyped]
    from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]

    PartialState(cpu=not torch.cuda.is_available(), timeout=MAIN_PROCESS_TIMEOUT)
    results: list[Any] = [make() if is_main() else None]
    broadcast_object_list(results)
    return results[0]  # type: ignore[no-any-return]


def main_first(make: Callable[[], T]) -> T:
    """Call ``make`` in every process, in the main one first.

    For functions that write a cache on the first call and read it on later ones.
    """
    if is_main():
        result = make()
        from_main(lambda: None)
        return result
    from_main(lambda: None)
    return make()


def exit_with_parent() -> None:
    """Exit this worker when its parent process is gone, even after ``kill -9``.

    Otherwise the same command, run again, would compete with orphans. The batch in flight is
    lost, as when the worker itself is killed.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def process_pool(n_workers: int) -> ProcessPoolExecutor:
    """Return a pool of processes that exit with this one, even after ``kill -9``."""
    context = multiprocessing.get_context("spawn")  # a fork would copy torch's locks
    return ProcessPoolExecutor(n_workers, context, initializer=exit_with_parent)
