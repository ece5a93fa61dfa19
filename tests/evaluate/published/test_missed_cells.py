"""How many published contaminated cells each rule of the perturbation gap misses.

The tables print accuracies, not how many answers changed: that share, the discordance, is assumed.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.statistics.published_cells import cells, changes
from flipbench.evaluate.published.tables import PublishedResult
from flipbench.evaluate.statistics.paired import GapDifference, gap_difference, mcnemar_p


def compared(
    row: PublishedResult, clean: PublishedResult, discordance: float, rng: np.random.Generator
) -> GapDifference:
    sides = [
        side for one in (row, clean) for side in changes(one, discordance).sides(rng)
    ]  # model, original and perturbed; clean model, the same
    return gap_difference(*sides, rng)


@pytest.fixture(scope="module")
def published() -> list[tuple[PublishedResult, PublishedResult]]:
    return list(cells())


@pytest.mark.parametrize(
    ("discordance", "by_test", "by_comparison"), [(0.15, 24, 6), (0.25, 30, 9), (0.35, 41, 14)]
)
def test_a_clean_model_finds_what_the_test_alone_misses(
    published: list[tuple[PublishedResult, PublishedResult]],
    discordance: float,
    by_test: int,
    by_comparison: int,
) -> None:
    """The figures of docs/detecting.md."""
    assert len(published) == 264
    assert sum(row.perturbed >= row.original for row, _ in published) == 3, "the sign rule"
    counts = [changes(row, discordance) for row, _ in published]
    missed = sum(mcnemar_p(one.fell, one.rose, "drop") > 0.05 for one in counts)
    rng = np.random.default_rng(0)
    against = [compared(*cell, discordance, rng) for cell in published]
    assert (missed, sum(one.p_below > 0.05 for one in against)) == (by_test, by_comparison)


def test_a_gap_of_one_point_is_contaminated_where_the_clean_model_rises(
    published: list[tuple[PublishedResult, PublishedResult]],
) -> None:
    row = next(row for row, _ in published if (row.table, str(row.original)) == ("T27", "47.27"))
    clean = next(clean for one, clean in published if one.table == "T17")
    assert (float(row.perturbed), float(clean.perturbed)) == (46.06, 69.29)
    own = changes(row, 0.25)
    assert mcnemar_p(own.fell, own.rose, "drop") == pytest.approx(0.337, abs=0.02)
    found = compared(row, clean, 0.35, np.random.default_rng(0))
    assert found.p_below < 1e-12
    assert found.difference == pytest.approx(-0.327, abs=0.001)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(-0.398, abs=0.01)
    assert found.interval.high == pytest.approx(-0.253, abs=0.01)
