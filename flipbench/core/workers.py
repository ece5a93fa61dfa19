"""Several processes: commands that take turns, workers that divide a run's work, or one training.

Workers, one per GPU, are started and monitored by one command. The processes of distributed
training are started by ``accelerate launch``; only the main one writes records, cards, checkpoints
and output.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import logging
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

from flipbench.core.errors import FlipbenchError

if TYPE_CHECKING:
    from flipbench.core.records import Record
    from flipbench.core.run import Run

log = logging.getLogger(__name__)
T = TypeVar("T")
WORKER_VARIABLE = "FLIPBENCH_WORKER"  # set in the environment of workers
_COUNT_EVERY = 3  # seconds
_TRY_EVERY = 0.2  # seconds
_held: Counter[tuple[int, Path]] = Counter()
_guard = threading.Lock()
MAIN_PROCESS_TIMEOUT = timedelta(days=2)
"""How long other processes wait while the main one asks a chat model or verifies a checkpoint."""


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

    def has(self, key: str) -> bool:
        """Return whether the task with this id belongs to this worker."""
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        return self.has_number(number)

    def has_number(self, number: int) -> bool:
        """Return whether the ``number``-th of a few long tasks belongs to this worker."""
        return number % self.n_workers == self.worker


@contextlib.contextmanager
def turn(folder: Path, work: str, share: Share | None = None) -> Iterator[None]:
    """Wait until no other process does ``work``, and keep it for this one until the block ends.

    Whoever waits says so, once. Workers with different shares of the same work do not wait for each
    other; a worker and a command that does everything do. A process that already does the work, or
    waits for it, counts as one with all its threads. The lock goes with it, however it ends.

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
                time.sleep(_TRY_EVERY)
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


class Worker(Protocol):
    """A worker that was started, such as a `subprocess.Popen`."""

    def poll(self) -> int | None:
        """Return its exit status; None while it works."""

    def terminate(self) -> None:
        """Stop it."""

    def wait(self) -> int:
        """Return its exit status when it has ended."""


class Launcher(Protocol):
    """Starts workers elsewhere, such as `flipbench.distributed.slurm.SlurmArray`.

    Attributes
    ----------
    folder : Path
        Where the workers' logs are.
    """

    folder: Path

    def start(self, stage: str, commands: Sequence[list[str]]) -> Sequence[Worker]:
        """Start one worker for each command."""


@dataclass(frozen=True)
class Workers:
    """The processes that share a run's work, one per GPU.

    Attributes
    ----------
    n_workers : int
        How many to start; with 1 this process does everything itself.
    share : Share, optional
        This process's share, if it is a worker itself.
    limit : int, optional
        Passed on to the workers: only the first items.
    launcher : Launcher, optional
        What starts them; by default they are processes of this machine.
    """

    run: Run
    n_workers: int = 1
    share: Share | None = None
    limit: int | None = None
    progress: bool = True
    launcher: Launcher | None = None

    def have(self, number: int) -> bool:
        """Return whether this process does the ``number``-th of a few long tasks."""
        return self.share is None or self.share.has_number(number)

    def start(
        self,
        stage: str,
        kind: type[Record] | Callable[[], int],
        n_left: int | None,
        what: str,
        unit: str = "rec",
    ) -> None:
        """Run ``flipbench STAGE CONFIG --worker i/n`` for each i and wait.

        With one worker, or nothing left, nothing is done. The progress bar counts the records of
        ``kind``, or what ``kind()`` returns, until there are ``n_left`` more (None: unknown), and
        is labelled ``what``. The time left is estimated from when the first worker has loaded what
        it needs.

        Raises
        ------
        FlipbenchError
            If a worker was killed or exited with an error; its records are safe. Failed items do
            not raise: they are records.
        """
        if self.n_workers == 1 or n_left == 0:
            return
        arguments = [stage, str(self.run.path / "config.yaml"), "--trust"]  # it is this process's
        arguments += ["--limit", str(self.limit)] if self.limit else []
        count = partial(self.run.count, kind) if isinstance(kind, type) else kind
        commands = [
            [sys.executable, "-m", "flipbench.cli", *arguments]
            + ["--worker", f"{number}/{self.n_workers}", "--quiet"]
            for number in range(self.n_workers)
        ]
        workers = self.launcher.start(stage, commands) if self.launcher else _started(commands)
        from flipbench.core.stage import progress_bar  # which imports this file

        there, label = count(), f"{what}, {self.n_workers} workers"
        total = None if n_left is None else there + n_left
        bar = progress_bar(label, total, unit=unit, initial=there, shown=self.progress)
        bar.smoothing = 0  # batches come in bursts; the average says more
        try:
            with bar:
                for second in itertools.count(1):
                    if all(worker.poll() is not None for worker in workers):
                        break
                    if second % _COUNT_EVERY == 0 and (more := count() - bar.n):
                        bar.update(more)
                    if bar.n == there:
                        bar.unpause()
                        bar.set_description(f"{label} loading for {second} s")
                    else:
                        bar.set_description(label, refresh=False)
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
            logs = f" (logs: {self.launcher.folder})" if self.launcher else ""
            raise FlipbenchError(
                f"{'; '.join(ended)}{logs}; finished work is safe, run the same command to continue"
            )


def _started(commands: Sequence[list[str]]) -> list[Worker]:
    """Start processes of this machine, one for each command, on the GPUs in turn."""
    workers: list[Worker] = []
    for number, (command, device) in enumerate(zip(commands, devices(len(commands)), strict=True)):
        environment = os.environ | {WORKER_VARIABLE: str(number), "PYTHONSAFEPATH": "1"}
        if device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = device
        else:
            threads = max(1, (os.cpu_count() or 1) // len(commands))
            environment.setdefault("OMP_NUM_THREADS", str(threads))
        workers.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
    return workers


def devices(n_workers: int) -> list[str | None]:
    """Return the GPU of each worker; None without GPUs.

    GPUs are assigned in turn if there are more workers than GPUs.
    """
    import torch

    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(n_gpus)]
    return [names[i % n_gpus] if n_gpus else None for i in range(n_workers)]


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


def default_workers() -> int:
    """Return the number of workers for tiny models: one per GPU, or up to two on a CPU.

    More processes would cost more memory than they save time.
    """
    import torch

    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return n_gpus or min(2, os.cpu_count() or 1)


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
