"""Benchmarks and models whose names are scripts: no Markdown page contains a tag."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.run import Run
from flipbench.evaluate.page.report_page import write_tables
from flipbench.evaluate.predictions.gap import gap_of_predictions
from flipbench.evaluate.report.score_frame import score_frame
from flipbench.evaluate.report.score_tables import gap_table
from flipbench.export.huggingface import dataset_card
from flipbench.export.licence import decide
from flipbench.export.recipe import write_recipe
from flipbench.filters.audit.page import markdown
from tests.fixtures.prediction_files import both
from tests.fixtures.report_data import make_data

TAG = "<script>alert(1)</script>\n# <img src=x onerror=alert(1)>"


def check(text: str) -> None:
    assert "script" in text and not re.search(r"<[A-Za-z/!?]", text)
    assert not re.search(r"^# &lt;img", text, re.MULTILINE), "a name must not start a heading"


def test_gap_md_and_table_md(tmp_path: Path) -> None:
    data = make_data(tmp_path, 6)
    grid = [replace(model, name=model.name + TAG) for model in data.grid]
    scores = [score.model_copy(update={"model": score.model + TAG}) for score in data.scores]
    hostile = replace(data, title=TAG, grid=grid, scores=scores, notes=(TAG,))
    table = gap_table(grid, score_frame(scores, grid))
    write_tables(hostile, score_frame(scores, grid), [table], [], [], tmp_path)
    for name in ("gap.md", "table.md"):
        text = (tmp_path / name).read_text()
        assert text.startswith("# &lt;script>") and not re.search(r"<[A-Za-z/!?]", text)


def test_the_page_of_flipbench_gap(tmp_path: Path) -> None:
    table = gap_of_predictions(*both(tmp_path), model=TAG, benchmark=TAG, judged_by=TAG)
    assert not re.search(r"<[A-Za-z/!?]", table.markdown())


def test_audit_md(tmp_path: Path) -> None:
    benchmark = SimpleNamespace(name=TAG, items=[])
    report = SimpleNamespace(benchmark=benchmark, findings=[], funnel=[], kept=[], mended=[])
    check(markdown(report))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["recipe", "card"])
def test_readmes_of_exports(tmp_path: Path, kind: str) -> None:
    store = ImageStore(tmp_path)
    benchmark = PairedBenchmark(TAG, (), store, made_by={"raters": TAG})
    if kind == "card":
        check(dataset_card(benchmark, decide(benchmark, "CC-BY-4.0")).split("---")[2])
        return
    run = Run(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("{}")
    *_, readme = write_recipe(benchmark, run, tmp_path)
    check(readme.read_text())
