"""The demo's first impression: what it will do, three lines of results, and what comes next."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from docs.results.demo_tables import RESULTS
from flipbench.api.stages import loop
from flipbench.commands.app import Invocation
from flipbench.commands.whole import show_report
from flipbench.core.stage import StageReport
from flipbench.evaluate.report.results import read_results
from flipbench.shapes.demos import demo_of
from tests.fixtures.command_line import Flipbench

SMALL = ("tiny-llava", "tiny-llava LLM, control e1", "tiny-llava LLM e1")


@pytest.mark.parametrize(
    "options", [(), ("--small",), ("--diffusion",), ("--diffusion", "--small")]
)
def test_a_dry_run_says_what_a_demo_does_and_takes(
    flipbench: Flipbench, tmp_path: Path, options: tuple[str, ...]
) -> None:
    demo = demo_of(small="--small" in options, diffusion="--diffusion" in options)
    result = flipbench("demo", *options, "--dry-run")
    assert result.status == 0 and len(result.out.splitlines()) == 4
    for part in (f"{demo.folder}/report/index.html", demo.takes, "no GPU"):
        assert part in result.out
    assert ("a diffusion model" in result.out) == ("--diffusion" in options)
    assert not list(tmp_path.iterdir())


def test_the_dry_run_counts_what_the_whole_demo_counts(flipbench: Flipbench) -> None:
    results = read_results(RESULTS)
    text = flipbench("demo", "--dry-run").out
    for count in (
        f"{results.n_pairs} questions",
        f"{sum(model.contaminated for model in results.models) // 2} on these questions",
        f"{len(results.models)} models asked by {results.n_detectors} detectors",
    ):
        assert count in text, "each plan has two epochs"


@pytest.fixture
def result(tmp_path: Path) -> Any:
    """Return the models of the small demo as a result."""
    results = read_results(RESULTS)
    models = [model for model in results.models if model.name in SMALL]
    (tmp_path / "gap.md").write_text("the whole table\n")
    return SimpleNamespace(
        page=tmp_path / "index.html",
        models=[SimpleNamespace(model=model) for model in models],
        scores=results.gaps,
        reports=[StageReport("ask", n_done=3)],
    )


def test_a_report_is_a_line_for_each_model_on_a_terminal_and_whole_in_a_file(
    result: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show_report(result, Invocation({"config": "c.yaml"}))
    in_file = capsys.readouterr()
    assert in_file.out == f"the whole table\n\n{result.page}\n"
    assert in_file.err.splitlines()[-1].startswith("  flipbench export c.yaml OUT")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show_report(result, Invocation({"config": "c.yaml"}))
    on_terminal = capsys.readouterr().out
    assert "trained on the benchmark" in on_terminal and "whole table" not in on_terminal
    assert on_terminal.endswith(f"{result.page}\n")


def test_a_demo_ends_with_a_line_for_each_model_the_page_and_what_comes_next(
    flipbench: Flipbench, result: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loop, "run_demo", lambda *_, **__: result)
    monkeypatch.setenv("COLUMNS", "80")
    shown = flipbench("demo", "--small")
    assert shown.status == 0
    described, table = shown.out.split("\n\n", 1)
    assert described.startswith("1. 320 questions")
    rows = {line[:26].strip(): line[26:].split() for line in table.splitlines()}
    assert rows["untouched"] == ["276/320", "278/320", "+0.6", "[−3.9,", "+5.2]", "no"]
    assert rows["trained on other questions"][-1] == "no"
    assert rows["trained on the benchmark"][-1] == "yes"
    assert "caught 1 of 1 contaminated model and flagged 0 of 2 clean models" in table
    assert table.splitlines()[-1].endswith(f" s: {tmp_path / 'index.html'}")
    assert "flipbench init MYBENCH.tsv" in shown.err and "ask" not in shown.err
    assert max(map(len, table.splitlines()[:-2])) <= 80
