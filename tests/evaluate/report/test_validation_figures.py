"""The validation's figures: heat maps are as high as what is drawn in them."""

from __future__ import annotations

import pytest

from flipbench.evaluate.protocol.grid import GridModel
from flipbench.evaluate.report.validation_figures import Heat, HeatRow, _heat_figure
from flipbench.reporting.figures import settings

MODELS = [GridModel(f"m{n}", f"m{n}", "f", "a long name", n, n) for n in range(9)]


@pytest.mark.parametrize("n_families", [1, 2])
@pytest.mark.parametrize("n_rows", [1, 3, 27, 65])
def test_no_empty_strip_lies_between_names_and_legend(n_rows: int, n_families: int) -> None:
    row = HeatRow("a rule with a name", ("contaminated",) * 9, (0.5,) * 9)
    heats = {str(at): Heat([row] * n_rows, MODELS) for at in range(n_families)}
    with settings():
        canvas = _heat_figure(heats, (2.4 + 0.27 * 9 * n_families, 2.5 + 0.27 * n_rows))
        canvas.draw_without_rendering()
    names = [label for axes in canvas.axes for label in axes.get_xticklabels()]
    lowest = min(label.get_window_extent().y0 for label in names)
    legend = canvas.legends[0].get_window_extent().y1
    assert 0 < (lowest - legend) / canvas.dpi < 0.15, "inches"
