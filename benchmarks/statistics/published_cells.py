"""Item-level answers that give the accuracies of published, contaminated models.

Tables print accuracies, not how many answers changed. That share, the discordance, is assumed; the
changed pairs are drawn at random, those of the model and of its clean model independently.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flipbench.evaluate.published.tables import PublishedResult, read_published

TABLE = Path(__file__).parents[2] / "tests" / "published" / "perturbation_gaps.csv"
DISCORDANCE = (0.15, 0.25, 0.35)


class Changes(NamedTuple):
    """Pairs that fell and rose, of ``n`` pairs of which ``right`` originals are right."""

    fell: int
    rose: int
    right: int
    n: int

    def sides(self, rng: np.random.Generator) -> tuple[list[bool], list[bool]]:
        """Return right and wrong on both versions, the changed pairs drawn at random."""
        kept = self.right - self.fell
        both = [(1, 0)] * self.fell + [(0, 1)] * self.rose + [(1, 1)] * kept
        both += [(0, 0)] * (self.n - len(both))
        original, perturbed = np.array(both)[rng.permutation(self.n)].T.astype(bool).tolist()
        return original, perturbed


def changes(row: PublishedResult, discordance: float) -> Changes:
    """Return whole numbers of pairs that give a row's accuracies at about this discordance."""
    assert row.n_original is not None and row.original is not None and row.perturbed is not None
    n = row.n_original
    before, after = (round(float(share) * n / 100) for share in (row.original, row.perturbed))
    moved = after - before
    changed = max(round(discordance * n), abs(moved))
    changed += (changed - moved) % 2
    fell = min((changed - moved) // 2, before, n - before - moved)
    return Changes(fell, fell + moved, before, n)


def cells() -> Iterator[tuple[PublishedResult, PublishedResult]]:
    """Yield every contaminated cell of the tables with the clean model of its table."""
    rows = read_published(TABLE)

    def context(row: PublishedResult) -> tuple[str, ...]:
        return row.table, row.model, row.bench, row.regime

    clean = {context(row): row for row in rows if row.clean}
    yield from ((row, clean[context(row)]) for row in rows if not row.clean)
