"""Processes that the tests start, kill and starve; each line printed is flushed.

``worker.py stage RUN`` runs a small stage over numbered tasks into a run directory and prints
"ready" at its first batch; it exits with 2 and the message where flipbench gives up.
``worker.py write RUN NAME GO`` waits for the file GO, then appends batches that are its own and
batches that every other writer appends too.
``worker.py serve`` reads command lines like these and runs each in a forked process of its own, so
that starting one costs little; it prints the process's "pid N" before and "exit STATUS" after.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from flipbench.core.errors import FlipbenchError
from flipbench.core.records import Caption, Record
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, run_stage


def caption(name: str) -> Caption:
    """Return a record with a text of a few hundred bytes that only its name decides."""
    return Caption(flip_id=name, captioner="worker", prompt="p/1", text=f"{name}\u2028é " * 40)


class CountStage:
    """Make the caption of each number, slowly."""

    name = "count"
    record: type[Record] = Caption

    def __init__(self, pause: float) -> None:
        self.pause = pause
        self.n_batches = 0

    def id_of(self, number: int) -> str:
        return caption(str(number)).id

    def subject(self, number: int) -> str:
        return f"number {number}"

    def __call__(self, numbers: Sequence[int]) -> list[Record | Exception]:
        if self.n_batches == 0:
            print("ready", flush=True)
        self.n_batches += 1
        time.sleep(self.pause)
        return [caption(str(number)) for number in numbers]


def stage(args: argparse.Namespace) -> int:
    """Run the stage once, under a limit of the file size if one is given."""
    if args.file_limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (args.file_limit, resource.RLIM_INFINITY))
    try:
        with Run(args.run) as run:
            counting = CountStage(args.pause)
            options = StageOptions(batch_size=args.batch_size, progress=False)
            report = run_stage(counting, range(args.n), run, options)
    except FlipbenchError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 2
    print(report, flush=True)
    return 0


def write(args: argparse.Namespace) -> int:
    """Append own and shared batches in turn, closing and opening the run now and then."""
    print("ready", flush=True)
    while not args.go.exists():
        time.sleep(0.001)
    for start in range(0, args.n, 20):
        with Run(args.run) as run:
            for number in range(start, start + 20, args.batch_size):
                numbers = range(number, number + args.batch_size)
                run.append([caption(f"{args.name} {n}") for n in numbers])
                run.append([caption(f"all {n}") for n in numbers])
    return 0


def serve() -> int:
    """Run each line of the standard input, split at tabs, as a command line."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                print("pid", os.getpid(), flush=True)
                status = main(line.rstrip("\n").split("\t"))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(f"\nexit {status}", flush=True)  # a killed process may leave its line unended
    return 0


def main(words: Sequence[str]) -> int:
    if list(words) == ["serve"]:
        return serve()
    parser = argparse.ArgumentParser(description=__doc__)
    jobs = parser.add_subparsers(required=True)
    for job in (stage, write):
        options = jobs.add_parser(job.__name__)
        options.set_defaults(job=job)
        options.add_argument("run", type=Path)
        options.add_argument("--n", type=int, default=300)
        options.add_argument("--batch-size", type=int, default=5)
        if job is stage:
            options.add_argument("--pause", type=float, default=0.0)
            options.add_argument("--file-limit", type=int, default=0)
        else:
            options.add_argument("name")
            options.add_argument("go", type=Path)
    args = parser.parse_args(words)
    result: int = args.job(args)
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
