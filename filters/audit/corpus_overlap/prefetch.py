"""Work done ahead in threads, its results in order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Full, Queue
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def prefetched(
    tasks: Iterator[T], work: Callable[[T], R], n_threads: int, n_ahead: int
) -> Generator[R, None, None]:
    """Yield ``work(task)`` for each task, in order.

    One thread draws the tasks, at most ``n_ahead`` more than have been yielded; ``n_threads`` do
    the work. What ``tasks`` or ``work`` raise is raised here, in its place.
    """
    results: Queue[Future[R] | None] = Queue(n_ahead)
    stopped = threading.Event()
    errors: list[BaseException] = []

    def put(result: Future[R] | None) -> bool:
        while not stopped.is_set():
            with contextlib.suppress(Full):
                results.put(result, timeout=0.1)
                return True
        return False

    def feed() -> None:
        try:
            for task in tasks:
                if not put(pool.submit(work, task)):
                    return
        except BaseException as error:  # raised again in the thread that consumes
            errors.append(error)
        put(None)

    with ThreadPoolExecutor(n_threads) as pool:
        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        try:
            while (result := results.get()) is not None:
                yield result.result()
            if errors:
                raise errors[0]
        finally:
            stopped.set()
            feeder.join()
            pool.shutdown(cancel_futures=True)
