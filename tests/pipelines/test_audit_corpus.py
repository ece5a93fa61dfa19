"""`flipbench audit` with a corpus and a cohort: one configuration, one page, real tiny models."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from flipbench.cli import app
from flipbench.core.images import ImageStore
from flipbench.core.run import Run
from flipbench.filters.audit.corpus_overlap.flagged import read_flagged
from flipbench.shapes.benchmark import shapes_vqa
from tests.fixtures.browser import OpenPage
from tests.fixtures.command_line import Flipbench

pytestmark = pytest.mark.slow
N_ITEMS = 24
N_COPIES = 6


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 other pictures, JPEG copies of six of the benchmark's, and a damaged file."""
    folder = tmp_path_factory.mktemp("corpus") / "pictures"
    folder.mkdir()
    store = ImageStore(folder.parent / "store")
    items = shapes_vqa(store, 160)
    for number, item in enumerate([*items[:N_COPIES], *items[40:]]):
        with Image.open(store.path(item.images[0])) as image:
            image.save(folder / f"{number:03d}.jpg", quality=50)
    (folder / "damaged.png").write_bytes(b"\x89PNG but no more")
    return folder


@pytest.fixture(scope="module")
def config(corpus: Path) -> Path:
    path = corpus.parent / "audit.yaml"
    path.write_text(
        f"""
run: {corpus.parent / "run"}
benchmark: {{format: shapes, n_items: {N_ITEMS}}}
models:
  llava: {{path: "shapes:llava"}}
  qwen: {{path: "shapes:qwen2_vl"}}
  other: {{path: "shapes:llava", dtype: bfloat16}}
audit:
  checks: [duplicates]
  corpus: {{pictures: {corpus}, encoders: [phash], n_sample: 100}}
  cohort: {{models: [llava, qwen, other], external: [qwen], n_permutations: 199, top_k: 5}}
"""
    )
    return path


@pytest.fixture(scope="module")
def audited(config: Path) -> Path:
    result = CliRunner().invoke(app, ["audit", str(config), "--quiet"])
    assert result.exit_code == 0, result.output
    assert "rules fired on external baselines" in result.output
    assert "pictures have a near neighbour in it (phash)" in result.output
    return config.parent / "run"


def test_copies_are_flagged_and_ready_for_adjudication(audited: Path) -> None:
    found = json.loads((audited / "audit" / "audit.json").read_text())["corpus-overlap"]
    (overlap,) = found["encoders"]
    assert overlap["n_corpus"] == 126
    copied = {item.images[0].sha256 for item in shapes_vqa(Run(audited).images, N_COPIES)}
    assert copied <= {pair["sha256"] for pair in overlap["pairs"]}
    assert "Nobody has looked" in found["sentence"]
    flagged = read_flagged(audited)
    assert {pair.benchmark.sha256 for pair in flagged} >= copied
    for pair in flagged:
        Run(audited).images.open(pair.corpus)


def test_the_page_has_every_section_and_fits_a_phone(audited: Path, open_page: OpenPage) -> None:
    page = audited / "audit" / "index.html"
    keys = (
        "corpus-overlap",
        "external-baselines",
        "order-trend",
        "tail",
        "top-k",
        "subpopulations",
        "overlap-inflation",
    )
    text = page.read_text()
    assert all(f'<section id="{key}"' in text for key in keys)
    shown = open_page(page.as_uri(), viewport={"width": 390, "height": 844})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390


def test_tables_are_files_and_a_second_audit_repeats_nothing(
    audited: Path, config: Path, flipbench: Flipbench
) -> None:
    with (audited / "audit" / "order-trend.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 3 * 6
    before = {p: p.stat().st_mtime_ns for p in (audited / "responses").rglob("*.jsonl")}
    assert flipbench("audit", str(config), "--quiet").status == 0
    assert {p: p.stat().st_mtime_ns for p in (audited / "responses").rglob("*.jsonl")} == before


def test_workers_find_the_same(
    audited: Path, config: Path, tmp_path: Path, flipbench: Flipbench
) -> None:
    changes = [f"run={tmp_path / 'run'}", "audit.cohort=null", "--quiet"]
    done = flipbench("audit", config, "--workers", "2", *changes)
    assert done.status == 0, done.err
    found, alone = (
        json.loads((run / "audit" / "audit.json").read_text())["corpus-overlap"]["encoders"]
        for run in (tmp_path / "run", audited)
    )
    assert found == alone


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("audit.corpus.pictures=/nowhere", "no such corpus"),
        ("audit.cohort.models=[llava]", "at least two models"),
        ("audit.cohort.models=[llava,nobody]", "nobody"),
        ("audit.corpus.encoder=phash", "unknown key"),
    ],
)
def test_wrong_use_is_one_message(
    config: Path, flipbench: Flipbench, override: str, message: str
) -> None:
    result = flipbench("audit", str(config), override, "--quiet")
    assert result.status == 2 and message in result.err and "Traceback" not in result.err
