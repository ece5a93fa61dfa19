"""Workers: processes that share a run's work, one per GPU, started and watched by one command."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from flipbench.core.errors import FlipbenchError
from flipbench.core.locks import Share
from flipbench.core.records import Record
from flipbench.core.run import Run
from flipbench.core.stage import progress_bar

WORKER_VARIABLE = "FLIPBENCH_WORKER"  # set in the environment of workers
_COUNT_EVERY = 3  # seconds


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

    def owns_index(self, index: int) -> bool:
        """Return whether this process does the task at an index of a short list."""
        return self.share is None or self.share.owns_index(index)

    def start(
        self,
        stage: str,
        kind: type[Record] | Callable[[], int],
        n_left: int | None,
        label: str,
        unit: str = "rec",
    ) -> None:
        """Run ``flipbench STAGE CONFIG --worker i/n`` for each i and wait.

        With one worker, or nothing left, nothing is done. The progress bar counts the records of
        ``kind``, or what ``kind()`` returns, until there are ``n_left`` more (None: unknown), and
        is labelled ``label``. The time left is estimated from when the first worker has loaded what
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
        workers = (
            self.launcher.start(stage, commands) if self.launcher else _start_locally(commands)
        )
        n_before, label = count(), f"{label}, {self.n_workers} workers"
        total = None if n_left is None else n_before + n_left
        bar = progress_bar(label, total, unit=unit, initial=n_before, is_shown=self.progress)
        bar.smoothing = 0  # batches come in bursts; the average says more
        try:
            with bar:
                for second in itertools.count(1):
                    if all(worker.poll() is not None for worker in workers):
                        break
                    if second % _COUNT_EVERY == 0 and (n_new := count() - bar.n):
                        bar.update(n_new)
                    if bar.n == n_before:
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
        failed = [
            f"worker {i} ended with {code}" for i, code in enumerate(codes) if code not in (0, 1)
        ]
        if failed:
            logs = f" (logs: {self.launcher.folder})" if self.launcher else ""
            raise FlipbenchError(
                f"{'; '.join(failed)}{logs}; finished work is safe, run the same command to"
                " continue"
            )


def _start_locally(commands: Sequence[list[str]]) -> list[Worker]:
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


def default_workers() -> int:
    """Return the number of workers for tiny models: one per GPU, or up to two on a CPU.

    More processes would cost more memory than they save time.
    """
    import torch

    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return n_gpus or min(2, os.cpu_count() or 1)
