"""A run with damaged files recovers: what they held is made again by the same command."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Edit, Item
from flipbench.core.run import Run
from tests.fixtures.command_line import Flipbench
from tests.fixtures.stored_run import DAMAGE, unpack


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Return a folder with the runs, and the configurations that made them."""
    return unpack(tmp_path)


def altered(run: Path) -> list[str]:
    """Return the pictures of a run whose content does not match their name."""
    paths = [path for path in (run / "images").iterdir() if path.suffix == ".png"]
    return [p.name for p in paths if hashlib.sha256(p.read_bytes()).hexdigest() != p.stem]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_pictures_are_made_again(
    damage: str, stored: Path, flipbench: Flipbench, caplog: pytest.LogCaptureFixture
) -> None:
    with Run(stored / "runs" / "shapes") as run:
        source = next(run.read(Item)).images[0]
        edits = run.index(Edit)
        edit = next(iter(edits.values()))
        for ref in (source, edit.image):
            DAMAGE[damage](run.images.path(ref))
        assert len(altered(run.path)) == 2
        result = flipbench("generate", "shapes.yaml", "--quiet")
        assert result.status == 0, result.err
        assert "edit: 1 done, 7 already there, 0 failed" in result.err
        assert "its image is damaged" in caplog.text
        assert altered(run.path) == []
        assert run.index(Edit) == edits


def test_a_damaged_picture_is_never_shown_to_a_model(stored: Path, flipbench: Flipbench) -> None:
    with Run(stored / "runs" / "shapes") as run:
        edit = next(run.read(Edit))
        DAMAGE["another picture"](run.images.path(edit.image))
    result = flipbench("evaluate", "shapes.yaml", "evaluate.prompt.instruction=Which?", "--quiet")
    assert "the image is damaged" in result.err and "'flipbench generate' first" in result.err
    assert result.status != 0
    assert flipbench("generate", "shapes.yaml", "--quiet").status == 0


@pytest.mark.parametrize("name", ["config.yaml", "environment.json"])
def test_damaged_provenance_is_kept_beside_the_new(
    name: str, stored: Path, flipbench: Flipbench
) -> None:
    path = stored / "runs" / "shapes" / name
    path.write_bytes(b"\xff\x00")
    assert flipbench("generate", "shapes.yaml", "--quiet").status == 0
    assert path.with_name(f"{path.stem}.1{path.suffix}").read_bytes() == b"\xff\x00"


@pytest.mark.parametrize("name", ["benchmark.json", "pairs.jsonl"])
def test_a_damaged_benchmark_names_its_file_and_is_made_again(
    name: str, stored: Path, flipbench: Flipbench
) -> None:
    path = stored / "runs" / "shapes" / "benchmark" / name
    before = PairedBenchmark.load(path.parent)
    path.write_bytes(b"[\xff]\n")
    result = flipbench("evaluate", "shapes.yaml", "--quiet")
    assert result.status == 2 and f"benchmark/{name}" in result.err and "recreate" in result.err
    assert flipbench("filter", "shapes.yaml", "--quiet").status == 0
    assert PairedBenchmark.load(path.parent).pairs == before.pairs
