"""The section on the four quadrants: sentence, tables, figures, and its place on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Score
from flipbench.evaluate.detectors.registry import make_detector
from flipbench.evaluate.page.report_page import ReportData, write_report
from flipbench.evaluate.protocol.detector import Helpers
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.evaluate.report.quadrants import quadrant_section
from flipbench.reporting import writers
from tests.fixtures.planted import Planted, grid_of, planted_benchmark, reword, scores_by_rule

MODELS = [Planted("seer", 0.95, 0.95), Planted("clean", 0.4, 0.4)]


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> PairedBenchmark:
    return planted_benchmark(tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def scored(benchmark: PairedBenchmark) -> tuple[list[GridModel], list[Score]]:
    scores = []
    for name in ("perturbation_gap", "four_quadrants"):
        detector = make_detector(name, Helpers(reword))
        for model in MODELS:
            scores += scores_by_rule(detector, benchmark, model, []).values()
    return grid_of(MODELS)[:2], scores


def test_the_section_states_fractions_with_counts_and_the_oracle(
    scored: tuple[list[GridModel], list[Score]], tmp_path: Path
) -> None:
    grid, scores = scored
    section = quadrant_section(grid, scores, tmp_path)
    assert section is not None and section.status == "look"
    assert section.sentence.startswith(
        "The dangerous fraction is above 50 % in 1 of 2 models; the highest is 87.5 % (21/24) ["
    )
    assert "text prior has 95.8 % (23/24)" in section.sentence
    points, fractions, accuracy, divergence = map(writers.markdown, section.tables)
    assert "87.5 (21/24) [70.8, 100.0]" in fractions and "95.8 (23/24)" in fractions
    assert "100.0 (21/21)" in accuracy and "KL: Dangerous" in divergence
    assert points.count("not above 50 %") == 1 and points.count("above 50 %") >= 3
    assert any(n.startswith("Other wordings of the questions: 48 kept, 0") for n in section.notes)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{kind}" for name in ("quadrants", "quadrants_bound") for kind in ("svg", "png")
    }
    stacked, bound = section.figures
    assert "full, epoch 1 1 / 0 / 21 / 2" in stacked.panels[0].alt
    assert "at most 1 − FR" in bound.caption


def test_levels_of_change_are_stated(
    scored: tuple[list[GridModel], list[Score]], tmp_path: Path
) -> None:
    grid, scores = scored
    result = next(s.quadrants for s in scores if s.quadrants is not None)
    tagged = result | {
        "levels": {"scope": {"k": 3, "n": 24}},
        "unchanged": {"black picture": {"dangerous": {"k": 5, "n": 10}}},
    }
    changed = [s.model_copy(update={"quadrants": tagged}) if s.quadrants else s for s in scores]
    section = quadrant_section(grid, changed, tmp_path)
    assert section is not None
    assert "Black picture: Dangerous" in writers.markdown(section.tables[-1])
    assert any("with a scope change of wording: " in n and "(3/24)" in n for n in section.notes)


def test_there_is_no_section_without_quadrants(
    scored: tuple[list[GridModel], list[Score]], tmp_path: Path
) -> None:
    grid, scores = scored
    assert quadrant_section(grid, [s for s in scores if not s.quadrants], tmp_path) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_page_shows_the_section(
    scored: tuple[list[GridModel], list[Score]], benchmark: PairedBenchmark, tmp_path: Path
) -> None:
    grid, scores = scored
    page = write_report(ReportData("t", benchmark, grid, scores), tmp_path).read_text()
    assert '<section id="quadrants"' in page and 'href="#quadrants"' in page
    assert "have a look" in page and "figure-quadrants_bound" in page
    assert "Oracle" in (tmp_path / "quadrants.md").read_text()
