"""Several processes on one run directory, one for each GPU, started and watched by one command."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial

from tqdm import tqdm

from flipbench.core.errors import FlipbenchError
from flipbench.core.records import Record
from flipbench.core.run import Run

CHILD = "FLIPBENCH_WORKER"  # set in the environment of workers
_COUNT_EVERY = 3  # seconds


@dataclass(frozen=True)
class Share:
    """The part of the work that is one of several workers'.

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

    def has(self, key: str) -> bool:
        """Return whether what has this id is this worker's, whatever else there is to do."""
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        return self.has_number(number)

    def has_number(self, number: int) -> bool:
        """Return whether the ``number``-th of few, long tasks is this worker's."""
        return number % self.n_workers == self.worker


@dataclass(frozen=True)
class Workers:
    """The processes that share a run's work, one for each GPU, and the part of this one.

    Attributes
    ----------
    n_workers : int
        How many to start; with 1 this process does everything itself.
    share : Share, optional
        This process is one of them, and does this part only.
    limit : int, optional
        Passed on: the first items only.
    """

    run: Run
    n_workers: int = 1
    share: Share | None = None
    limit: int | None = None
    progress: bool = True

    def have(self, number: int) -> bool:
        """Return whether the ``number``-th of few, long tasks is done by this process."""
        return self.share is None or self.share.has_number(number)

    def start(self, stage: str, kind: type[Record], total: int, what: str) -> None:
        """Run ``flipbench STAGE CONFIG --worker i/n`` for each i and wait; with one worker, not.

        Parameters
        ----------
        stage : str
            A stage of the run's configuration, such as ``contaminate``.
        kind : type of Record
            What is counted for the progress bar, which calls it ``what``, up to ``total``.

        Raises
        ------
        FlipbenchError
            Where a worker ended by a signal or with wrong use; what was written is safe. Failed
            items are no such error: they are records.
        """
        if self.n_workers == 1:
            return
        arguments = [stage, str(self.run.path / "config.yaml")]
        arguments += ["--limit", str(self.limit)] if self.limit else []
        count = partial(self.run.count, kind)
        workers = []
        for number, device in enumerate(devices(self.n_workers)):
            environment = os.environ | {CHILD: str(number)}
            if device is not None:
                environment["CUDA_VISIBLE_DEVICES"] = device
            else:
                threads = max(1, (os.cpu_count() or 1) // self.n_workers)
                environment.setdefault("OMP_NUM_THREADS", str(threads))
            command = [sys.executable, "-m", "flipbench.cli", *arguments]
            command += ["--worker", f"{number}/{self.n_workers}", "--quiet"]
            workers.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        try:
            with tqdm(
                total=total,
                initial=count(),
                desc=f"{what}, {self.n_workers} workers",
                unit="rec",
                disable=not self.progress,
                file=sys.stderr,
                dynamic_ncols=True,
            ) as bar:
                for second in itertools.count(1):
                    if all(worker.poll() is not None for worker in workers):
                        break
                    if second % _COUNT_EVERY == 0:
                        bar.update(count() - bar.n)
                    time.sleep(1)
                bar.update(count() - bar.n)
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.terminate()
            codes = [worker.wait() for worker in workers]
        ended = [
            f"worker {i} ended with {code}" for i, code in enumerate(codes) if code not in (0, 1)
        ]
        if ended:
            raise FlipbenchError(
                f"{'; '.join(ended)}; what is done is safe, the same command continues"
            )


def devices(n_workers: int) -> list[str | None]:
    """Return which GPU each worker sees; None where there is none to choose.

    Workers share GPUs in turn where there are more workers than GPUs.
    """
    import torch

    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(n_gpus)]
    return [names[i % n_gpus] if n_gpus else None for i in range(n_workers)]


def end_with_parent() -> None:
    """End this worker when the process that started it is gone, were it by ``kill -9``.

    Otherwise the same command, run again, would do the work beside orphans. What is in flight is
    lost, as it is when the worker itself is killed.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def default_workers() -> int:
    """Return how many workers tiny models keep busy: one for each GPU, or two on two cores.

    More processes than that need more memory than they save time.
    """
    import torch

    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return n_gpus or min(2, os.cpu_count() or 1)
