"""The scripts behind docs/performance.md run on records as they are."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from flipbench.core.records import Caption
from flipbench.core.run import Run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_stage_runner_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["x", "--n", "40", "--repeats", "1", "--images", "1"]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(BENCHMARKS / "stage_overhead.py"), run_name="__main__")
    text = capsys.readouterr().out
    for row in ("run_stage", "run_stage, each batch flushed by itself", "store"):
        assert f"| {row} | " in text


def test_the_memory_of_a_run_is_measured(tmp_path: Path) -> None:
    do = runpy.run_path(str(BENCHMARKS / "memory" / "run_memory.py"))["do"]
    with Run(tmp_path) as run:
        for step in ("stage", "resume", "read", "index"):
            do(step, run, 20, 8)
        assert run.count(Caption) == 20
