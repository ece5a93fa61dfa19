"""A long TSV is read row by row: what is read is let go, and forward references still work."""

from __future__ import annotations

import base64
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flipbench.benchmarks import TsvSpec, load, load_benchmark
from flipbench.core.images import ImageStore

HEADER = "index\tquestion\tA\tB\tanswer\timage\n"


def write(path: Path, images: list[str]) -> TsvSpec:
    rows = (f"{i}\tWhich?\tred\tblue\tA\t{image}\n" for i, image in enumerate(images))
    path.write_text(HEADER + "".join(rows))
    return TsvSpec(path=path)


def test_rows_are_not_kept(
    tmp_path: Path, store: ImageStore, png: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[int] = []
    build = load.build_item

    def counted(**fields: Any) -> Any:
        if len(alive) % 50 == 0:
            gc.collect()
            alive.append(sum(isinstance(row, load._PendingRow) for row in gc.get_objects()))
        else:
            alive.append(0)
        return build(**fields)

    monkeypatch.setattr(load, "build_item", counted)
    picture = base64.b64encode(png()).decode()
    benchmark = load_benchmark(write(tmp_path / "x.tsv", [picture, *["0"] * 300]), store)
    assert len(benchmark.items) == 301 and max(alive) <= 2


def test_a_row_may_refer_to_a_later_one(
    tmp_path: Path, store: ImageStore, png: Callable[..., bytes]
) -> None:
    one, two = (base64.b64encode(png(shade)).decode() for shade in (1, 2))
    images = ["2", one, two, "9", "1", "0", "['5', '2']", "y" * 90, "7"]
    benchmark = load_benchmark(write(tmp_path / "x.tsv", images), store)
    assert [item.name for item in benchmark.items] == ["0", "1", "2", "4"]
    shas = [item.images[0].sha256 for item in benchmark.items]
    assert shas[0] == shas[2] and shas[1] == shas[3]
    assert [problem.row for problem in benchmark.refused] == [3, 5, 6, 7, 8]
    assert benchmark.n_rows == 9
