"""A seed and a level of the embedded world draw other items, through generation and filtering."""

from __future__ import annotations

from pathlib import Path

import pytest

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.filtering import make_pairs
from flipbench.config.experiment import load_config
from flipbench.core.paired import PairedBenchmark

N = 9


def pairs_of(folder: Path, *changes: str) -> PairedBenchmark:
    path = folder / "c.yaml"
    path.write_text(f"run: {folder / 'run'}\nbenchmark: {{format: shapes, n_items: {N}}}\n")
    return make_pairs(Assembly.open(load_config(path, changes), progress=False))[0]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (("benchmark.seed=1",), "shapes-vqa-seed-1"),
        (("benchmark.level=hard",), "shapes-vqa-hard"),
        (("benchmark.seed=1", "benchmark.level=hard"), "shapes-vqa-hard-seed-1"),
    ],
)
def test_pairs_of_another_edition(tmp_path: Path, changes: tuple[str, ...], name: str) -> None:
    for folder in ("fixed", "other", "again"):
        (tmp_path / folder).mkdir()
    fixed = pairs_of(tmp_path / "fixed", "seed=1")  # the experiment's seed draws no other items
    other = pairs_of(tmp_path / "other", *changes)
    assert (fixed.name, other.name) == ("shapes-vqa", name)
    assert len(other.pairs) == N, "the oracle keeps what the editor drew"
    assert {item.id for item in fixed.originals}.isdisjoint(item.id for item in other.originals)
    again = pairs_of(tmp_path / "again", *changes, "seed=5")
    assert again.originals == other.originals
