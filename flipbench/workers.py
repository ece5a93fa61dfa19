"""Several processes on one run directory, one for each GPU, started and watched by one command."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from tqdm import tqdm

from flipbench.errors import FlipbenchError


def devices(n_workers: int) -> list[str | None]:
    """Return which GPU each worker sees; None where there is none to choose.

    Workers share GPUs in turn where there are more workers than GPUs.
    """
    import torch

    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(n_gpus)]
    return [names[i % n_gpus] if n_gpus else None for i in range(n_workers)]


def run_workers(
    arguments: Sequence[str],
    n_workers: int,
    count: Callable[[], int],
    total: int,
    *,
    progress: bool = True,
) -> None:
    """Run ``flipbench ARGUMENTS --worker i/n`` for each i and wait for all of them.

    Parameters
    ----------
    arguments : sequence of str
        Command line of one worker, without the program.
    count : callable
        Returns how many records are there, for the progress bar.
    total : int
        How many there will be.

    Raises
    ------
    FlipbenchError
        Where a worker ended by a signal or with wrong use; what was written is safe. Failed items
        are no such error: they are records.
    """
    workers = []
    for number, device in enumerate(devices(n_workers)):
        environment = dict(os.environ)
        if device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = device
        command = [sys.executable, "-m", "flipbench.cli", *arguments]
        command += ["--worker", f"{number}/{n_workers}", "--quiet"]
        workers.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
    try:
        with tqdm(
            total=total,
            initial=count(),
            desc=f"edit, {n_workers} workers",
            unit="rec",
            disable=not progress,
            file=sys.stderr,
            dynamic_ncols=True,
        ) as bar:
            while any(worker.poll() is None for worker in workers):
                time.sleep(0.5)
                bar.update(count() - bar.n)
            bar.update(count() - bar.n)
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.terminate()
        codes = [worker.wait() for worker in workers]
    ended = [f"worker {i} ended with {code}" for i, code in enumerate(codes) if code not in (0, 1)]
    if ended:
        raise FlipbenchError(
            f"{'; '.join(ended)}; what was drawn is safe, the same command continues"
        )
