"""Commands of flipbench in forked processes, so that imports are paid for once.

A process that has imported everything is forked for each command; the parent must have no threads.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Prepare = Callable[[], None]
DEFECT = 99
"""The status of a process that an exception ended."""


@dataclass
class Ended:
    """How a command ended: its status, negative if a signal did, and what it printed."""

    status: int
    text: str
    seconds: float

    @property
    def defect(self) -> str:
        """What no user should see: a traceback, or a status of no meaning."""
        if "Traceback" in self.text or self.status == DEFECT:
            return "traceback"
        return "" if self.status in (0, 1, 2, 130) else f"status {self.status}"


class Command:
    """Start a command line, or any function, in a folder, in a forked process.

    ``prepare`` is called in the new process first.
    """

    def __init__(
        self,
        what: Sequence[str] | Callable[[], None],
        folder: Path,
        prepare: Prepare = lambda: None,
    ) -> None:
        self.text = b""
        self.start = time.monotonic()
        self.ended: Ended | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self._output, writing = os.pipe()  # a file would be limited as the files of a run are
        os.set_blocking(self._output, False)
        self.pid = os.fork()
        if self.pid == 0:
            status = DEFECT
            try:
                os.setpgid(0, 0)
                os.chdir(folder)
                os.dup2(writing, 1)
                os.dup2(writing, 2)
                prepare()
                status = call(what)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        os.close(writing)

    def wait(self, seconds: float) -> Ended | None:
        """Return how the command ended; None if it still runs after ``seconds``."""
        until = time.monotonic() + seconds
        while self.ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            with contextlib.suppress(BlockingIOError):
                while read := os.read(self._output, 65536):
                    self.text += read
            if pid:
                os.close(self._output)
                code = os.waitstatus_to_exitcode(status)
                text = self.text.decode(errors="replace")
                self.ended = Ended(code, text, time.monotonic() - self.start)
            elif time.monotonic() > until:
                return None
            else:
                time.sleep(0.002)
        return self.ended

    def stop(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)


def call(what: Sequence[str] | Callable[[], None]) -> int:
    """Call a function, or run a command line, in this process; return the exit status."""
    if callable(what):
        what()
        return 0
    from flipbench import cli

    sys.argv = ["flipbench", *what]
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def warm(what: Sequence[str] | Callable[[], None], folder: Path) -> Ended:
    """Run a command to its end, and import here what it imported."""
    listed = folder / "modules.json"

    def named() -> None:
        status = call(what)
        listed.write_text(json.dumps(sorted(sys.modules)))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    ended = Command(named, folder).wait(600)
    assert ended is not None
    if listed.exists():
        for name in json.loads(listed.read_text()):
            # private ones come with the public ones: `_asyncio` before `asyncio` breaks both
            if not name.startswith(("_", "tests")):
                try:
                    importlib.import_module(name)
                except Exception:  # a module that only its package may import
                    continue
        listed.unlink()
    return ended


def file_limit(n_bytes: int) -> Prepare:
    """Return what makes files of a process no larger, as on a full disk."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))

    return limit


def nobody() -> None:
    """Become a user who may write nowhere."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def wrong_clock(offset: float) -> Prepare:
    """Return what makes the clock jump between two times with every look."""
    true = time.time

    def change() -> None:
        offsets = itertools.cycle((offset, -offset))

        def jumping() -> float:
            return true() + next(offsets)

        time.time = jumping

    return change


def gist(text: str) -> str:
    """Return the last lines of a traceback's text: flipbench's own frames, and the error."""
    lines = text.strip().splitlines()
    frames = [line.strip() for line in lines if "flipbench" in line and line.strip()[:4] == "File"]
    return "\n    ".join([*frames[-3:], *lines[-2:]])[-1500:]
