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
    for row in ("run_stage", "run_stage, fsync left out", "store"):
        assert f"| {row} | " in text


def test_the_memory_of_a_run_is_measured(tmp_path: Path) -> None:
    do = runpy.run_path(str(BENCHMARKS / "memory" / "run_memory.py"))["do"]
    with Run(tmp_path) as run:
        for step in ("stage", "resume", "read", "index"):
            do(step, run, 20, 8)
        assert run.count(Caption) == 20


def test_what_an_experiment_costs_is_summed_from_named_constants(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = BENCHMARKS / "scaling_costs.py"
    monkeypatch.setattr(sys, "argv", ["x", "--items", "1000", "--models", "2", "--gpus", "4"])
    found = runpy.run_path(str(path), run_name="__main__")
    text = capsys.readouterr().out
    assert all(f"| {one.unit} | {one.value:.4g} |" in text for one in found["constants"]())
    few, many = found["Costs"](1_000, 2), found["Costs"](2_000, 2)
    assert few.n_answers == round(1_000 * 2 * 813 / 16)
    seconds = 1_000 * 3473e12 / (989e12 * 0.35)  # of the edits
    assert few.on_gpus["edits"] == pytest.approx(seconds / 3600)
    for kind in ("on_gpus", "shared_out", "in_one_process"):
        doubled = {what: 2 * hours for what, hours in getattr(few, kind).items()}
        assert getattr(many, kind) == pytest.approx(doubled)
    assert f"| edits | GPU | {seconds / 3600:,.1f} | {seconds / 3600 / 4:,.1f} |" in text
