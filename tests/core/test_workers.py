"""Workers: who does what, and that none outlives the process that started it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest

from flipbench.core.errors import FlipbenchError
from flipbench.core.records import Edit, Item
from flipbench.core.run import Run
from flipbench.core.workers import Share, Worker, Workers

CHILD = """
import time
from flipbench.core.workers import exit_with_parent
exit_with_parent()
print("ready", flush=True)
time.sleep(60)
"""
CONFIG = """\
run: run
benchmark: {format: shapes, n_items: 8}
generate: {editor: {kind: shapes}, batch_size: 1}
"""
POOL = """
import os, time
from flipbench.core.workers import process_pool

def work():
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(60)

if __name__ == "__main__":
    with process_pool(2) as pool:
        for _ in range(2):
            pool.submit(work)
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def ends(pid: int) -> bool:
    """Return whether a process ends within ten seconds."""
    for _ in range(50):
        if not is_running(pid):
            return True
        time.sleep(0.2)
    return False


def test_worker_shares_are_disjoint_and_complete() -> None:
    shares = [Share(worker, 3) for worker in range(3)]
    keys = [f"item {number}" for number in range(300)]
    owners = [[share.worker for share in shares if share.has(key)] for key in keys]
    assert all(len(owner) == 1 for owner in owners)
    counts = [sum(owner == [worker] for owner in owners) for worker in range(3)]
    assert min(counts) > 70, counts
    assert [s.worker for n in range(6) for s in shares if s.has_number(n)] == [0, 1, 2, 0, 1, 2]
    with pytest.raises(ValueError, match="counted from 0"):
        Share.parse("3/3")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads the process table of Linux")
def test_a_worker_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout
    child = int(parent.stdout.readline())
    assert is_running(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert ends(child)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads the process table of Linux")
def test_a_pool_s_processes_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    children = [int(parent.stdout.readline()) for _ in range(2)]
    assert len(set(children)) == 2 and all(map(is_running, children))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert all(map(ends, children))


@pytest.mark.slow
def test_a_failed_worker_is_reported_by_number(tmp_path: Path) -> None:
    workers = Workers(Run(tmp_path), 2, progress=False)  # its run has no configuration
    with pytest.raises(FlipbenchError, match=r"worker 0 ended with 2; worker 1 ended with 2"):
        workers.start("generate", Edit, 1, "edit")


def test_no_worker_is_started_when_nothing_is_left(tmp_path: Path) -> None:
    class Unused:
        folder = tmp_path

        def start(self, stage: str, commands: Sequence[list[str]]) -> list[Worker]:
            raise AssertionError(f"{stage}: workers take seconds to load their libraries")

    workers = Workers(Run(tmp_path), 2, launcher=Unused())
    workers.start("generate", Edit, 0, "edit")
    with pytest.raises(AssertionError, match="generate"):
        workers.start("generate", Edit, 1, "edit")


def test_the_time_left_is_estimated_from_when_a_worker_has_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr("tqdm.std.time", lambda: clock[0])

    class Loading:
        """Loads for 30 seconds, then makes 10 records a second."""

        folder = tmp_path

        def start(self, stage: str, commands: Sequence[list[str]]) -> list[Loading]:
            return [self]

        def poll(self) -> int | None:
            return None if clock[0] < 40 else 0

        def terminate(self) -> None: ...

        def wait(self) -> int:
            return 0

    def count() -> int:
        return 5 + max(0, round(10 * (clock[0] - 30)))

    workers = Workers(Run(tmp_path), 2, launcher=Loading())
    workers.start("evaluate", count, 100, "ask")
    shown = capsys.readouterr().err.split("\r")
    assert any("ask, 2 workers loading for 20 s" in text for text in shown)
    half = next(text for text in shown if " 55/105 " in text)
    assert re.search(r"\[00:0\d<00:0[3-8], ", half), "not those 30 seconds as well"
    assert "105/105" in shown[-1] and "loading" not in shown[-1]


@pytest.mark.slow
def test_a_worker_killed_alone_costs_the_others_nothing_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "flipbench.cli", "generate", "c.yaml", "-q", "--workers", "2"]
    start = partial(subprocess.Popen, command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    with start() as disturbed:
        workers: list[psutil.Process] = []
        while not workers:
            assert disturbed.poll() is None, "no worker was started"
            time.sleep(0.05)
            children = psutil.Process(disturbed.pid).children()
            workers = [child for child in children if "0/2" in child.cmdline()]
        workers[0].kill()
        _, message = disturbed.communicate(timeout=600)
    assert disturbed.returncode == 2
    assert "worker 0 ended with -9; finished work is safe" in message and "worker 1" not in message

    def drawn() -> list[str]:
        paths = (tmp_path / "run" / "edits").glob("*.jsonl")
        return [json.loads(line)["id"] for path in paths for line in path.open()]

    items = Run(tmp_path / "run").read(Item)
    other = set(drawn())
    assert len(other) == sum(Share(1, 2).has(item.id) for item in items) > 0
    with start() as again:
        assert again.wait(600) == 0
    assert len(drawn()) == len(set(drawn())) == 8 and other < set(drawn())
