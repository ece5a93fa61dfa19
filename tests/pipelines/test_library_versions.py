"""Another version of diffusers draws the same edits: ids, verdicts and recipes stay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("diffusers")

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Caption, Edit, Flip, Verdict
from flipbench.core.run import Run
from flipbench.models.protocols import Decision
from tests.fixtures.command_line import Flipbench

pytestmark = pytest.mark.slow

N = 3
NAMED = "0.30.0"
"""The version that an edit's settings name, and with them its id."""


@pytest.fixture
def config(tmp_path: Path, checkpoints: Path, flipbench: Flipbench) -> Path:
    """Return the configuration of a generated run."""
    editor = {
        "kind": "flux-controlnet",
        "pipeline": str(checkpoints / "flux"),
        "controlnet": str(checkpoints / "standard"),
        "settings": {"steps": 1, "true_cfg": 1, "max_text_tokens": 24},
        "sizes": {"min_edge": 16},
        "dtype": "float32",
        "device": "cpu",
    }
    settings = {
        "run": str(tmp_path / "run"),
        "benchmark": {"format": "shapes", "n_items": N},
        "generate": {"captioner": {"kind": "shapes"}, "editor": editor},
        "filter": {"judges": [], "policy": {"rules": [], "people": "require"}},
    }
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps(settings))
    result = flipbench("generate", path, "-q")
    assert result.status == 0, result.err
    return path


@pytest.fixture
def old(config: Path) -> Path:
    """Return the run, its edits named as if diffusers' version were part of their settings."""
    run = config.parent / "run"
    for path in (run / "edits").glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert all("diffusers" not in row["settings"] for row in rows)
        path.write_text("".join(json.dumps(_named(row)) + "\n" for row in rows))
    return run


def _named(row: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in row.items() if key not in ("id", "versions")}
    settings = row["settings"] | {"diffusers": NAMED}
    return Edit(**kept | {"settings": settings}).model_dump(mode="json")


def judge(folder: Path) -> None:
    """Have a person keep every picture but the first."""
    with Run(folder) as run:
        rejected, *kept = run.read(Edit)
        verdicts: list[tuple[Edit, Decision]] = [(rejected, "reject")]
        verdicts += [(edit, "keep") for edit in kept]
        run.append(
            [
                Verdict(
                    edit_id=edit.id,
                    image_sha256=edit.image.sha256,
                    rater="Ann",
                    rater_kind="person",
                    decision=decision,
                )
                for edit, decision in verdicts
            ]
        )


def edits(folder: Path) -> Iterator[Edit]:
    return Run(folder).read(Edit)


def ids(folder: Path) -> set[str]:
    return {edit.id for edit in edits(folder)}


def pictures(folder: Path) -> set[str]:
    return {edit.image.sha256 for edit in edits(folder)}


def names(folder: Path) -> list[str]:
    return [pair.original.name for pair in PairedBenchmark.load(folder / "benchmark").pairs]


def test_an_edit_s_id_holds_no_version_and_the_versions_are_beside_it(
    config: Path, flipbench: Flipbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    import diffusers

    run = config.parent / "run"
    for edit in edits(run):
        assert "diffusers" not in edit.settings
        assert edit.versions["diffusers"] == diffusers.__version__ and edit.versions["torch"]
    monkeypatch.setattr(diffusers, "__version__", "0.99.0")
    result = flipbench("generate", config, "-q")
    assert f"edit: 0 done, {N} already there" in result.err
    other = flipbench("generate", config, f"run={config.parent / 'other'}", "-q")
    assert other.status == 0 and ids(config.parent / "other") == ids(run)


def test_edits_that_name_a_version_are_known(config: Path, old: Path, flipbench: Flipbench) -> None:
    before, drawn = ids(old), pictures(old)
    result = flipbench("generate", config, "-q")
    assert result.status == 0 and f"edit: 0 done, {N} already there" in result.err
    judge(old)
    filtered = flipbench("filter", config, "-q")
    assert filtered.status == 0 and len(names(old)) == N - 1, filtered.err
    first = next(edits(old))
    Run(old).images.path(first.image).unlink()
    again = flipbench("generate", config, "-q")
    assert f"edit: 1 done, {N - 1} already there" in again.err
    assert (ids(old), pictures(old)) == (before, drawn)
    assert flipbench("filter", config, "-q").status == 0 and len(names(old)) == N - 1


@pytest.mark.parametrize("is_old", [False, True], ids=["without", "named"])
def test_a_recipe_is_rebuilt_under_another_version(
    is_old: bool,
    config: Path,
    request: pytest.FixtureRequest,
    flipbench: Flipbench,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import diffusers

    run: Path = request.getfixturevalue("old") if is_old else config.parent / "run"
    judge(run)
    assert flipbench("filter", config, "-q").status == 0
    result = flipbench("export", config, str(config.parent / "out"), "--format", "recipe")
    assert result.status == 0, result.err
    (recipe,) = (config.parent / "out").iterdir()
    monkeypatch.setattr(diffusers, "__version__", "0.99.0")
    rebuilt = flipbench("rebuild", recipe, "-q")
    assert rebuilt.status == 0 and f"{N}/{N} images are identical" in rebuilt.out, rebuilt
    assert ids(recipe) == ids(run) and names(recipe) == names(run)


def test_a_recipe_is_rebuilt_into_another_run(
    config: Path, flipbench: Flipbench, tmp_path: Path
) -> None:
    judge(config.parent / "run")
    assert flipbench("filter", config, "-q").status == 0
    out = tmp_path / "out"
    assert flipbench("export", config, str(out), "--format", "recipe").status == 0
    (recipe,) = out.iterdir()
    files = {path.name: path.read_bytes() for path in recipe.iterdir() if path.is_file()}
    other = tmp_path / "other"
    rebuilt = flipbench("rebuild", recipe, f"run={other}", "-q")
    assert rebuilt.status == 0 and f"{N}/{N} images are identical" in rebuilt.out, rebuilt
    assert names(other) == names(tmp_path / "run") and len(names(other)) == N - 1
    assert {path.name: path.read_bytes() for path in recipe.iterdir() if path.is_file()} == files
    assert not list(edits(recipe)), "the recipe itself stays as it is"
    for kind in (Flip, Caption):
        assert Run(other).ids(kind) == Run(recipe).ids(kind)
    again = flipbench("rebuild", recipe, f"run={other}", "-q")
    assert again.status == 0 and again.out == rebuilt.out

    (other / "expected.jsonl").write_text("{}\n")
    wrong = flipbench("rebuild", recipe, f"run={other}", "-q")
    assert wrong.status == 2 and "holds another recipe" in wrong.err
