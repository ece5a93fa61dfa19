"""Two commands on one run: nothing is done twice, and whoever waits says for whom."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flipbench.core.errors import DataError
from flipbench.core.locks import Share, exclusive_lock
from flipbench.core.records import Caption
from flipbench.core.run import Run

WORKER = Path(__file__).parent / "worker.py"
HOLD = """
import sys, time
from pathlib import Path
from flipbench.core.locks import Share, exclusive_lock
share = Share.parse(sys.argv[2]) if sys.argv[2:] else None
with exclusive_lock(Path(sys.argv[1]), "edit", share):
    print("ready", flush=True)
    time.sleep(600)
"""


def begin(run: Path) -> subprocess.Popen[str]:
    """Start a stage of 100 captions that takes a few seconds, and wait for its first batch."""
    words = ["stage", str(run), "--n", "100", "--pause", "0.05"]
    worker = subprocess.Popen([sys.executable, str(WORKER), *words], stdout=-1, text=True)
    assert worker.stdout and worker.stdout.readline() == "ready\n"
    return worker


def hold(folder: Path, *share: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(folder), *share]
    process = subprocess.Popen(command, stdout=-1, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def n_lines(run: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in run.rglob("captions/*.jsonl"))


def test_worker_shares_are_disjoint_and_complete() -> None:
    shares = [Share(worker, 3) for worker in range(3)]
    keys = [f"item {number}" for number in range(300)]
    owners = [[share.worker for share in shares if share.owns(key)] for key in keys]
    assert all(len(owner) == 1 for owner in owners)
    counts = [sum(owner == [worker] for owner in owners) for worker in range(3)]
    assert min(counts) > 70, counts
    assert [s.worker for n in range(6) for s in shares if s.owns_index(n)] == [0, 1, 2, 0, 1, 2]
    with pytest.raises(ValueError, match="counted from 0"):
        Share.parse("3/3")


@pytest.mark.slow
def test_the_second_command_waits_and_does_nothing_again(tmp_path: Path) -> None:
    first = begin(tmp_path)
    words = ["stage", str(tmp_path), "--n", "120"]
    command = [sys.executable, str(WORKER), *words]
    second = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert second.returncode == first.wait() == 0
    assert "count: 20 done, 100 already there" in second.stdout
    assert f"process {first.pid} on " in second.stderr and "waiting for it" in second.stderr
    assert n_lines(tmp_path) == 120, "every caption was made once"


@pytest.mark.slow
def test_a_killed_command_leaves_its_turn_to_the_next(tmp_path: Path) -> None:
    first = begin(tmp_path)
    words = ["stage", str(tmp_path), "--n", "100"]
    second = subprocess.Popen([sys.executable, str(WORKER), *words], stdout=-1, text=True)
    time.sleep(0.5)
    first.send_signal(signal.SIGKILL)
    out, _ = second.communicate(timeout=120)
    assert second.returncode == 0 and "already there" in out
    with Run(tmp_path) as run:
        assert n_lines(tmp_path) == 100 == len(run.ids(Caption))


@pytest.mark.slow
def test_workers_wait_for_no_other_share_but_for_a_whole_command(tmp_path: Path) -> None:
    entered: list[str] = []

    def enter(name: str, share: Share | None) -> threading.Thread:
        code = HOLD.replace("600", "0")
        words = [f"{share.worker}/{share.n_workers}"] if share else []

        def work() -> None:
            subprocess.run(
                [sys.executable, "-c", code, str(tmp_path), *words], check=True, capture_output=True
            )
            entered.append(name)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    holder = hold(tmp_path, "0/2")
    try:
        enter("the other share", Share(1, 2)).join(60)
        assert entered == ["the other share"]
        waiting = [enter("the same share", Share(0, 2)), enter("a whole command", None)]
        time.sleep(4)
        assert entered == ["the other share"]
    finally:
        holder.kill()
    for thread in waiting:
        thread.join(60)
    assert sorted(entered[1:]) == ["a whole command", "the same share"]


def test_a_process_does_not_wait_for_itself(tmp_path: Path) -> None:
    with exclusive_lock(tmp_path, "judge o3 (run 1)"), exclusive_lock(tmp_path, "judge o3 (run 1)"):
        names = [path.name for path in (tmp_path / ".locks").iterdir()]
        assert names == ["judge-o3-run-1-.lock"]
        assert f"process {os.getpid()} on " in (tmp_path / ".locks" / names[0]).read_text()


def test_a_folder_that_cannot_be_written_is_reported_by_who_writes_results(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".locks").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING), exclusive_lock(tmp_path, "edit"):
        assert not caplog.records


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with (
        pytest.raises(DataError, match="edit.lock: the file system does not support locks"),
        exclusive_lock(tmp_path, "edit"),
    ):
        raise AssertionError("another command may do the same")
