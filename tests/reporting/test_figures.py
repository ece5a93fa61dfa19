"""Figures are laid out once, however often they are drawn."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image

from flipbench.reporting.figures import save, svg_text


@pytest.mark.figures
def test_a_figure_is_laid_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laid_out: list[Figure] = []
    execute = ConstrainedLayoutEngine.execute

    def counted(engine: ConstrainedLayoutEngine, figure: Figure) -> None:
        laid_out.append(figure)
        execute(engine, figure)

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", counted)
    canvas = Figure(figsize=(2, 2), layout="constrained")
    canvas.subplots().set_xlabel("items")
    of_page = svg_text(canvas)
    assert of_page.startswith("<svg") and of_page == save(canvas, tmp_path / "figure")
    assert {path.name for path in tmp_path.iterdir()} == {"figure.svg", "figure.png"}
    assert laid_out == [canvas]


@pytest.mark.figures
def test_a_saved_figure_is_on_white_and_a_page_s_is_not(tmp_path: Path) -> None:
    of_page = save(Figure(figsize=(2, 2)), tmp_path / "figure")
    saved = (tmp_path / "figure.svg").read_text()
    assert "<rect" not in of_page and saved.count('<rect width="100%"') == 1
    assert ElementTree.fromstring(saved).tag.endswith("svg")
    with Image.open(tmp_path / "figure.png") as png:
        assert png.convert("RGB").getpixel((5, 5)) == (255, 255, 255)
