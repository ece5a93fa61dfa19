"""The confound simulation, to the printed digits; the guarded rule stays quiet on it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from flipbench.core.errors import DataError
from flipbench.reporting.writers import markdown
from studies.confound.__main__ import app, draw_confound
from studies.confound.simulation import (
    ConfoundSimulation,
    closed_form,
    confound_tables,
    gain_cohort,
    simulate_confound,
)
from tests.fixtures.command_line import Flipbench


@pytest.fixture(scope="module")
def simulation() -> ConfoundSimulation:
    return simulate_confound()


def test_the_parity_run_has_the_printed_digits(simulation: ConfoundSimulation) -> None:
    published = [model.published for model in simulation.parity]
    assert [round(row.above[1].value or 0, 4) for row in published] == [
        0,
        0,
        0.3073,
        0.3063,
        0.3073,
    ]
    assert [round(row.largest, 2) for row in published] == [6.36, 6.28, 3419.26, 3419.35, 3422.31]
    assert {row.n for row in published} == {1_061}


def test_only_the_published_rule_fires_on_gains(simulation: ConfoundSimulation) -> None:
    assert [model.gain for model in simulation.parity] == [0.05, 0.05, 1, 1, 1]
    assert [model.published.flagged for model in simulation.parity] == [False] * 2 + [True] * 3
    assert [model.guarded.verdict for model in simulation.parity] == ["not_detected"] * 5
    assert min(model.guarded.p for model in simulation.parity) > 0.05


def test_the_sweep_has_the_printed_digits(simulation: ConfoundSimulation) -> None:
    assert [round(point.share, 5) for point in simulation.sweep] == [
        0,
        0,
        0.31492,
        0.35495,
        0.35489,
    ]
    assert [(point.flagged.k, point.flagged.n) for point in simulation.sweep] == [
        *[(0, 200)] * 2,
        *[(200, 200)] * 3,
    ]
    expected = [0, 0, 0.3163, 0.3555, 0.3555]
    assert [round(point.closed_form, 4) for point in simulation.sweep] == expected


def test_the_closed_form_is_that_of_the_gap_in_gain() -> None:
    assert closed_form([0.05] * 2 + [1] * 3, 4) == pytest.approx(
        424 / 1061 * np.exp(-100 / (0.475 * 900))
    )
    assert closed_form([0.05, 0.05, 1, 1, 1], 0) == 0


def test_another_seed_draws_other_items() -> None:
    first, second = (
        gain_cohort(np.random.default_rng(seed), (1.0, 0.1), n_items=50) for seed in (1, 2)
    )
    assert first.scores.shape == (50, 2) and not np.allclose(first.scores, second.scores)
    assert first.models == ["gain 1 #1", "gain 0.1 #2"]


def test_the_tables_print_counts_and_both_rules(simulation: ConfoundSimulation) -> None:
    parity, sweep = map(markdown, confound_tables(simulation))
    assert "flags 3/5 models" in parity and "30.7 (326/1061)" in parity
    assert parity.count("| flagged |") == 3 and parity.count("| not detected |") == 5
    assert "| 2 | 31.492 | 31.627 | 100.0 (200/200)" in sweep


@pytest.mark.figures
def test_the_figure_describes_itself_and_is_written(
    simulation: ConfoundSimulation, tmp_path: Path
) -> None:
    svg, png = draw_confound(simulation, tmp_path / "new" / "confound")
    with Image.open(png) as image:
        assert image.width > 800
    assert "<svg" in svg.read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        draw_confound(simulation, tmp_path / "file" / "confound")


def test_the_command_prints_the_tables_and_draws(tmp_path: Path) -> None:
    figure = tmp_path / "confound.png"
    result = CliRunner().invoke(app, ["--repeats", "2", "--figure", str(figure)])
    assert result.exit_code == 0, result.stderr
    assert "3419.26" in result.stdout and "(2/2)" in result.stdout
    assert result.stdout.splitlines()[-1] == str(figure) and figure.exists()


def test_the_command_of_earlier_versions_names_this_one(flipbench: Flipbench) -> None:
    result = flipbench("simulate-confound", "--repeats", "2")
    assert result.status == 2 and "python -m studies.confound" in result.err
