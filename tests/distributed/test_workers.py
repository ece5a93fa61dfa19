"""Workers: who does what, and that none outlives the process that started it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest

from flipbench.core.errors import FlipbenchError
from flipbench.core.locks import Share
from flipbench.core.records import Edit, Item
from flipbench.core.run import Run
from flipbench.distributed.workers import Worker, Workers

CONFIG = """\
run: run
benchmark: {format: shapes, n_items: 8}
generate: {editor: {kind: shapes}, batch_size: 1}
"""


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
    assert len(other) == sum(Share(1, 2).owns(item.id) for item in items) > 0
    with start() as again:
        assert again.wait(600) == 0
    assert len(drawn()) == len(set(drawn())) == 8 and other < set(drawn())
