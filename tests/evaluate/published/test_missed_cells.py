"""How many published contaminated cells each rule of the perturbation gap misses.

The tables print accuracies, not how many answers changed: that share, the discordance, is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from flipbench.evaluate.published.tables import PublishedResult, read_published
from flipbench.evaluate.statistics.paired import GapDifference, gap_difference, mcnemar_p

TABLE = Path(__file__).parents[2] / "published" / "perturbation_gaps.csv"
DISCORDANCE = (0.15, 0.25, 0.35)


class Changes(NamedTuple):
    """Pairs that fell and rose, of ``n`` pairs of which ``right`` originals are right."""

    b: int
    c: int
    right: int
    n: int

    def sides(self, rng: np.random.Generator) -> tuple[list[bool], list[bool]]:
        """Return right and wrong on both versions, the changed pairs drawn at random."""
        kept = self.right - self.b
        both = [(1, 0)] * self.b + [(0, 1)] * self.c + [(1, 1)] * kept
        both += [(0, 0)] * (self.n - len(both))
        order = rng.permutation(self.n)
        first, second = np.array(both)[order].T.astype(bool).tolist()
        return first, second


def changes(row: PublishedResult, discordance: float) -> Changes:
    """Return whole numbers of pairs that give a row's accuracies at about this discordance."""
    assert row.n_original is not None and row.original is not None and row.perturbed is not None
    n = row.n_original
    before, after = (round(float(share) * n / 100) for share in (row.original, row.perturbed))
    moved = after - before
    changed = max(round(discordance * n), abs(moved))
    changed += (changed - moved) % 2
    b = (changed - moved) // 2
    b = min(b, before, n - before - moved)
    return Changes(b, b + moved, before, n)


def compared(
    row: PublishedResult, clean: PublishedResult, discordance: float, rng: np.random.Generator
) -> GapDifference:
    sides = [
        side for one in (row, clean) for side in changes(one, discordance).sides(rng)
    ]  # model, original and perturbed; clean model, the same
    return gap_difference(*sides, rng)


def cells() -> Iterator[tuple[PublishedResult, PublishedResult]]:
    """Yield every contaminated cell with the clean model of its table."""
    rows = read_published(TABLE)

    def context(row: PublishedResult) -> tuple[str, ...]:
        return row.table, row.model, row.bench, row.regime

    clean = {context(row): row for row in rows if row.clean}
    for row in rows:
        if not row.clean:
            yield row, clean[context(row)]


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
    missed = sum(mcnemar_p(one.b, one.c, "drop") > 0.05 for one in counts)
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
    assert mcnemar_p(own.b, own.c, "drop") == pytest.approx(0.337, abs=0.02)
    found = compared(row, clean, 0.35, np.random.default_rng(0))
    assert found.p_below < 1e-12
    assert found.difference == pytest.approx(-0.327, abs=0.001)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(-0.398, abs=0.01)
    assert found.interval.high == pytest.approx(-0.253, abs=0.01)
