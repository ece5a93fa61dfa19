"""``flipbench init``: a configuration for a benchmark of one's own, and what cannot be one."""

from __future__ import annotations

import base64
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from PIL import Image

from flipbench.benchmarks import HuggingFaceSpec, JsonlSpec, TsvSpec, load_benchmark
from flipbench.config.experiment import Config, load_config
from flipbench.core.images import ImageStore
from tests.fixtures.command_line import Flipbench

HEADER = ["index", "question", "A", "B", "answer", "image_path"]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "images" / "one.png"
    path.parent.mkdir()
    Image.new("RGB", (64, 64)).save(path)
    return path


def write_tsv(path: Path, header: Sequence[str], *rows: Sequence[str]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([header, *rows])
    return path


def test_a_tsv_is_imported_by_what_init_wrote(
    flipbench: Flipbench, picture: Path, tmp_path: Path
) -> None:
    write_tsv(tmp_path / "My Bench.tsv", HEADER, ["1", "Which?", "cat", "dog", "A", "one.png"])
    result = flipbench("init", "My Bench.tsv")
    assert result.status == 0
    assert [line.split("#")[0].strip() for line in result.err.splitlines()[1:]] == [
        "flipbench import 'My Bench.yaml'",
        "flipbench generate 'My Bench.yaml' --dry-run",
        "flipbench run 'My Bench.yaml'",
    ]
    config = load_config("My Bench.yaml")
    assert config.benchmark == TsvSpec(path=Path("My Bench.tsv"), image_root=Path("images"))
    assert config.run == Path("runs/My Bench") and config.generate.editor.kind == "flux-controlnet"
    imported = flipbench("import", "My Bench.yaml")
    assert imported.status == 0 and "1 rows, 1 items (1 with 2 options), 0 refused" in imported.out


def test_nothing_is_overwritten(flipbench: Flipbench, picture: Path, tmp_path: Path) -> None:
    write_tsv(tmp_path / "b.tsv", HEADER, ["1", "Which?", "cat", "dog", "A", "one.png"])
    (tmp_path / "b.yaml").write_text("mine")
    result = flipbench("init", "b.tsv")
    assert result.status == 2 and "b.yaml exists already; choose another name" in result.err
    assert (tmp_path / "b.yaml").read_text() == "mine"
    assert flipbench("init", "b.tsv", "--out", "c.yaml").status == 0
    assert flipbench("init", "b.tsv", "--out", "no/c.yaml").status == 2


def test_the_commented_keys_are_keys(flipbench: Flipbench, picture: Path, tmp_path: Path) -> None:
    write_tsv(tmp_path / "b.tsv", HEADER, ["1", "Which?", "cat", "dog", "A", "one.png"])
    flipbench("init", "b.tsv")
    lines = (tmp_path / "b.yaml").read_text().splitlines()
    keys = ("# generate:", "# filter:", "# models:", "# evaluate:", "# contaminate:", "#   ")
    used = [line[2:] if line.startswith(keys) else line for line in lines]
    assert sum(a != b for a, b in zip(lines, used, strict=True)) > 10
    (tmp_path / "all.yaml").write_text("\n".join(used))
    config = load_config(tmp_path / "all.yaml")
    assert config.contaminate.strategies and config.models["suspect"].dose is None
    assert config.filter.judges == () and config.generate.captioner.kind == "local"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (["id", "question", "answer", "image"], "there is no column 'index'"),
        (["index", "Question", "answer", "image"], "did you mean 'Question'?"),
        (["index", "question", "answer", "picture"], "there is no column 'image' (base64)"),
    ],
)
def test_a_missing_column_is_named(
    flipbench: Flipbench, tmp_path: Path, header: list[str], message: str
) -> None:
    write_tsv(tmp_path / "b.tsv", header, ["1", "Which?", "A", "x"])
    result = flipbench("init", "b.tsv")
    assert result.status == 2 and message in result.err
    assert not (tmp_path / "b.yaml").exists()


def test_images_that_are_nowhere_are_named(flipbench: Flipbench, tmp_path: Path) -> None:
    write_tsv(tmp_path / "b.tsv", HEADER, ["1", "Which?", "cat", "dog", "A", "gone.png"])
    assert "gone.png is not in ., images, b: set image_root" in flipbench("init", "b.tsv").out


def configured(flipbench: Flipbench, path: Path, *overrides: str) -> Config:
    """Return what ``init`` writes for a file, once ``import`` has read every row by it."""
    assert flipbench("init", path.name).status == 0
    config = path.with_suffix(".yaml")
    imported = flipbench("import", config, *overrides)
    assert imported.status == 0 and ", 0 refused" in imported.out
    return load_config(config)


def test_our_own_jsonl(flipbench: Flipbench, picture: Path, tmp_path: Path) -> None:
    row = {"images": ["one.png"], "question": "Which?", "options": ["a", "b"], "answer": "A"}
    path = tmp_path / "b.jsonl"
    path.write_text(json.dumps(row) + "\n")
    config = configured(flipbench, path)
    assert config.benchmark == JsonlSpec(path=Path("b.jsonl"), image_root=Path("images"))
    path.write_text(json.dumps({"image": "one.png", "question": "Which?"}))
    result = flipbench("init", path, "--out", "other.yaml")
    assert result.status == 2 and "no column 'answer'" in result.err


@pytest.mark.parametrize(
    ("row", "layout"),
    [
        ({"A": "cat", "B": "dog", "answer": "B"}, ("columns", None, "auto")),
        ({"choices": ["cat", "dog"], "label": 1}, ("list", None, "index")),
        ({"answer": "a cat"}, ("none", None, "auto")),
        (
            {"question": "Which?\nA. cat\nB. dog", "answer": "A"},
            ("question", "lines", "auto"),
        ),
        (
            {"question": "Which?\nOptions: A: cat, B: dog", "answer": "A"},
            ("question", "inline", "auto"),
        ),
    ],
)
def test_a_parquet_file_is_mapped(
    flipbench: Flipbench, picture: Path, tmp_path: Path, row: dict[str, Any], layout: Any
) -> None:
    whole = {"id": "7", "question": "Which?", "image": {"bytes": picture.read_bytes()}} | row
    Dataset.from_list([whole]).to_parquet(tmp_path / "b.parquet")
    spec = configured(flipbench, tmp_path / "b.parquet").benchmark
    assert isinstance(spec, HuggingFaceSpec)
    found = spec.layout
    assert (found.options_in, found.question_style, found.answer_is) == layout
    assert found.columns.index == "id"


@pytest.mark.parametrize(
    ("row", "layout"),
    [
        ({"A": "cat", "B": "dog", "answer": "B"}, ("columns", "auto")),
        ({"choices": ["cat", "dog"], "label": 1}, ("list", "index")),
        ({"options": {"A": "cat", "B": "dog"}, "answer": "B", "split": "dev"}, ("list", "auto")),
        ({"answer": "a cat"}, ("none", "auto")),
    ],
)
@pytest.mark.parametrize("picture_in", ["images", "image_path", "base64"])
@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_json_of_others_is_mapped(
    flipbench: Flipbench,
    picture: Path,
    tmp_path: Path,
    row: dict[str, Any],
    layout: tuple[str, str],
    picture_in: str,
    suffix: str,
) -> None:
    data_url = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    shown = {
        "images": {"images": [picture.name]},
        "image_path": {"image_path": picture.name},
        "base64": {"image": data_url},
    }[picture_in]
    rows = [{"id": n, "question": f"Which is {n}?"} | shown | row for n in range(2)]
    path = (tmp_path / "b").with_suffix(suffix)
    path.write_text(json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows)))
    spec = configured(flipbench, path).benchmark
    assert isinstance(spec, HuggingFaceSpec)
    assert (spec.layout.options_in, spec.layout.answer_is) == layout
    assert spec.layout.columns.index == "id"
    items = load_benchmark(spec, ImageStore(tmp_path / "store")).items
    right = "a cat" if layout[0] == "none" else "dog"
    assert [(i.name, i.answer_text, i.source.row) for i in items] == [
        ("0", right, 0),
        ("1", right, 1),
    ]


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("b.jsonl", '{"image": "one.png"}\n{"image"\n', "line 2: not JSON"),
        ("b.jsonl", '["one.png"]\n', "line 1: not a JSON object"),
        ("b.json", '[{"image": "one.png"}, 3]', "object 2: not a JSON object"),
        ("b.json", '[{"image": "one.png"},', "line 1: not JSON"),
    ],
)
def test_json_that_is_broken_names_the_place(
    flipbench: Flipbench, picture: Path, tmp_path: Path, name: str, text: str, named: str
) -> None:
    (tmp_path / name).write_text(text)
    result = flipbench("init", name)
    assert result.status == 2 and f"{name}, {named}" in result.err


def test_what_is_no_benchmark_is_refused(flipbench: Flipbench, tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("index,question\n")
    assert "give a .tsv (VLMEvalKit), .jsonl, .json or .parquet" in flipbench("init", "b.csv").err
    assert "no such file; fix the path" in flipbench("init", "gone.tsv").err
    assert flipbench("init", "Lin-Chen/MMStar").status == 0
    config = load_config("MMStar.yaml")
    assert isinstance(config.benchmark, HuggingFaceSpec)
    assert config.benchmark.path == "Lin-Chen/MMStar"


@pytest.mark.parametrize("short", ["-h", "--help"])
def test_help_is_short_or_long(flipbench: Flipbench, short: str) -> None:
    for command in ((), ("init",), ("run",)):
        result = flipbench(*command, short)
        assert result.status == 0 and "Usage:" in result.out


def test_the_version_is_printed(flipbench: Flipbench) -> None:
    from flipbench import __version__

    assert flipbench("--version").out == f"flipbench {__version__}\n"
