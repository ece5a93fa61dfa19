"""A run with damaged files recovers: what they held is made again by the same command."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Edit, Item
from flipbench.core.run import Run
from flipbench.models.vlm.checkpoints import CARD, resolve_path
from tests.fixtures.command_line import Flipbench
from tests.fixtures.stored_run import DAMAGE, unpack

KEPT = "contaminate.items=kept"
"""What the stored checkpoints were trained on."""


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
    result = flipbench(
        "evaluate", "shapes.yaml", KEPT, "evaluate.detectors=[bgr_shuffling]", "--quiet"
    )
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
    result = flipbench("evaluate", "shapes.yaml", KEPT, "--quiet")
    assert result.status == 2 and f"benchmark/{name}" in result.err and "recreate" in result.err
    assert flipbench("filter", "shapes.yaml", "--quiet").status == 0
    assert PairedBenchmark.load(path.parent).pairs == before.pairs


def checkpoints(stored: Path) -> list[Path]:
    """Return the folders of the epochs, the last of each training last."""
    return sorted((stored / "runs" / "shapes" / "checkpoints").glob("*/epoch-*"))


@pytest.mark.parametrize("content", [None, "", "[1]", '{"parent": "sha'])
def test_a_lost_or_damaged_card_is_restored(
    content: str | None, stored: Path, flipbench: Flipbench, caplog: pytest.LogCaptureFixture
) -> None:
    folder = checkpoints(stored)[1]
    before = json.loads((folder / CARD).read_text())
    (folder / CARD).unlink()
    if content is not None:
        (folder / CARD).write_text(content)
    assert flipbench("contaminate", "shapes.yaml", KEPT, "--quiet").status == 0
    assert f"{folder.name}: its card was lost or damaged" in caplog.text
    card = json.loads((folder / CARD).read_text())
    assert card["restored"] is True
    lost = {"losses", "training", "verification", "versions", "n_trainable", "trainable"}
    assert set(before) - set(card) <= lost | {"architectures"}
    assert all(card[k] == before[k] for k in before.keys() & card.keys() - {"flipbench"})
    assert card["flipbench"]["contaminated"] == before["flipbench"]["contaminated"]
    damaged = (folder / CARD).with_suffix(".damaged")
    assert damaged.exists() == (content is not None)
    caplog.clear()
    assert flipbench("contaminate", "shapes.yaml", KEPT, "--quiet").status == 0
    assert "restored" not in caplog.text


@pytest.mark.slow
def test_weights_that_are_gone_are_mentioned_where_their_answers_are_used(
    stored: Path, flipbench: Flipbench, caplog: pytest.LogCaptureFixture
) -> None:
    gone, cut = checkpoints(stored)[:2]
    (gone / "adapter_model.safetensors").unlink()
    DAMAGE["cut"](cut / "adapter_model.safetensors")
    gap = "evaluate.detectors=[perturbation_gap]"
    assert flipbench("evaluate", "shapes.yaml", KEPT, gap, "--quiet").status == 0
    assert caplog.text.count("its stored answers are used, but its weights could not") == 2
    for folder, problem in ((gone, "there are no safetensors"), (cut, "damaged weights")):
        assert folder.parent.name in caplog.text and problem in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "one bit"])
def test_damaged_weights_answer_no_new_question(
    damage: str, stored: Path, flipbench: Flipbench
) -> None:
    path = checkpoints(stored)[0] / "adapter_model.safetensors"
    DAMAGE[damage](path)
    result = flipbench(
        "evaluate", "shapes.yaml", KEPT, "evaluate.detectors=[bgr_shuffling]", "--quiet"
    )
    assert result.status == 2 and path.parent.name in result.err
    assert ("damaged weights" if damage == "cut" else "not the weights that the") in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("damage", ["cut", "empty"])
def test_a_damaged_parent_is_named_before_anything_is_trained(
    damage: str, stored: Path, flipbench: Flipbench
) -> None:
    parent = Path(shutil.copytree(resolve_path("shapes:llava"), stored / "parent"))
    DAMAGE[damage](parent / "model.safetensors")
    for command in ("contaminate", "evaluate"):
        result = flipbench(
            command, "shapes.yaml", KEPT, f"models.tiny-llava.path={parent}", "--quiet"
        )
        assert result.status == 2 and "parent/model.safetensors: damaged weights" in result.err
