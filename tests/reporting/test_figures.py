"""Figures are laid out once, however often they are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from flipbench.reporting.figures import save, svg_text


def test_a_figure_is_laid_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out: list[Figure] = []
    execute = ConstrainedLayoutEngine.execute

    def counted(engine: ConstrainedLayoutEngine, figure: Figure) -> None:
        laid_out.append(figure)
        execute(engine, figure)

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", counted)
    canvas = Figure(figsize=(2, 2), layout="constrained")
    canvas.subplots().set_xlabel("items")
    assert svg_text(canvas).startswith("<svg")
    save(canvas, tmp_path / "figure")
    assert {path.name for path in tmp_path.iterdir()} == {"figure.svg", "figure.png"}
    assert laid_out == [canvas]
