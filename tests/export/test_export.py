"""Exports: both sides through one encoder, read back as the kits read them."""

from __future__ import annotations

import ast
import base64
import io
import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import datasets
import pandas as pd
import pytest
import yaml
from PIL import Image

from flipbench.benchmarks import JsonlSpec, TsvSpec, load_benchmark
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark, PictureChoice
from flipbench.core.records import Item
from flipbench.core.run import Run
from flipbench.evaluate.predictions.gap import gap_of_predictions
from flipbench.export import FORMATS, forbids_derivatives
from flipbench.export.pairs import export_name
from flipbench.export.recipe import write_recipe
from flipbench.export.vlmeval import write_vlmeval
from tests.fixtures.cases import paired_cases

NASTY = (
    "NA",
    "None",
    "null",
    "nan",
    "1",
    "2.50",
    "007",
    "True",
    "1e5",
    "N/A",
    "-inf",
    "12 ",
    "#N/A",
)


def as_the_kit_reads(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, sep="\t")


def test_options_survive_the_kit_s_default_reader(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    lists = [(a, b) for a, b in zip(NASTY, (*NASTY[1:], NASTY[0]), strict=True)]
    benchmark = make([*lists, ("x", "y", "2")])
    for path in write_vlmeval(benchmark, tmp_path / "out"):
        read = as_the_kit_reads(path)
        assert list(read["index"]) == list(range(len(lists) + 1))
        for row, pair in zip(read.to_dict("records"), benchmark.pairs, strict=True):
            options = [str(row[c]).rstrip("\u00a0") for c in "ABC" if not pd.isna(row[c])]
            assert options == list(pair.original.options or ())
            assert str(row["name"]).rstrip("\u00a0") == pair.original.name
            assert str(row["category"]).rstrip("\u00a0") == "NA"
            assert str(row["item_id"]).startswith("id-")


def test_the_gap_of_the_kit_s_predictions_knows_which_items_share_an_image(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    """12 questions, each of its own group, of 4 groups, or all about one picture."""
    benchmark, notes = make([("red", "blue")] * 12), []
    for groups in ([f"g{i}" for i in range(12)], [f"g{i // 3}" for i in range(12)], [""] * 12):
        pairs = [
            Pair(*(Item.model_validate(side.model_dump() | {"id": "", "group": name})
                   for side in (pair.original, pair.perturbed)))
            for pair, name in zip(benchmark.pairs, groups, strict=True)
        ]  # fmt: skip
        files = []
        for path in write_vlmeval(replace(benchmark, pairs=tuple(pairs)), tmp_path / groups[-1]):
            table = as_the_kit_reads(path).drop(columns="image").assign(prediction="A")
            files.append(path.with_suffix(".xlsx"))
            table.to_excel(files[-1], index=False)
        test = gap_of_predictions(*files).by_rule["mcnemar"]
        assert (test.n, test.statistic) == (12, -1.0)
        notes.append(" ".join(w.partition(" images")[0] for w in test.warnings if "share" in w))
    assert notes == ["", "12 items share 4", "12 items share 1"]


def test_both_sides_pass_one_encoder_and_one_template(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    original, perturbed = map(
        as_the_kit_reads, write_vlmeval(make([("red", "blue")] * 3), tmp_path / "out")
    )
    same = ["index", "question", "A", "B", "category", "name"]
    pd.testing.assert_frame_equal(original[same], perturbed[same])
    assert list(original["answer"]) == ["A"] * 3 and list(perturbed["answer"]) == ["B"] * 3
    for table in (original, perturbed):
        for cell in table["image"]:
            assert len(cell) > 64, "a shorter cell is taken for another row's index"
            assert Image.open(io.BytesIO(base64.b64decode(cell))).format == "PNG"


def test_export_names_are_safe_for_the_kit_and_follow_the_content(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    benchmark = make([("red", "blue")], name="Circular MMBench/openended MMMU")
    names = [path.name for path in write_vlmeval(benchmark, tmp_path / "out")]
    for name in names:
        assert benchmark.id[:8] in name and "/" not in name
    assert len(set(names)) == 2
    other = make([("red", "green")], name=benchmark.name)
    assert export_name(other) != export_name(benchmark)


# By these parts of a name VLMEvalKit, or a model in it, chooses a prompt, a type or a summary.
KIT_CHOOSES_BY = (
    "mmbench ccbench circular mmcr openended mmmu MMT MMSci MME COCO AI2D MathVista ChartQA DocVQA"
    " MMVet mmstar realworldqa scienceqa seedbench video image Q-Bench1 A-Bench CORE_MM V11"
).split()


@pytest.mark.parametrize("trigger", KIT_CHOOSES_BY)
def test_no_name_makes_the_kit_choose_another_benchmark_s_code(
    make: Callable[..., PairedBenchmark], tmp_path: Path, trigger: str
) -> None:
    for name in (trigger, f"my {trigger.upper()} set", f"New{trigger}2"):
        benchmark = make([("red", "blue"), None], name=name)
        for path in write_vlmeval(benchmark, tmp_path / "out"):
            own = path.stem.rpartition(benchmark.id[:8])[0]
            assert trigger.lower() not in own.lower()


def test_several_pictures_are_a_list(
    make: Callable[..., PairedBenchmark], store: ImageStore, tmp_path: Path
) -> None:
    (pair,) = make([("red", "blue")]).pairs
    two = [
        Item.model_validate(
            i.model_dump() | {"id": "", "images": (*i.images, *pair.perturbed.images)}
        )
        for i in (pair.original, pair.perturbed)
    ]
    benchmark = PairedBenchmark("two", (Pair(*two),), store)
    for path in write_vlmeval(benchmark, tmp_path / "out"):
        assert len(ast.literal_eval(as_the_kit_reads(path)["image"][0])) == 2


def test_cases_of_many_pictures_come_back_from_every_format(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        benchmark = paired_cases(run, 3)
    counts = [len(pair.original.images) for pair in benchmark.pairs]
    pixels = [
        [benchmark.images.open(ref).tobytes() for ref in item.images]
        for item in benchmark.perturbed
    ]
    store = ImageStore(tmp_path / "read")
    _, perturbed = write_vlmeval(benchmark, tmp_path / "kit")
    read = load_benchmark(TsvSpec(path=perturbed), store)
    assert [[store.open(ref).tobytes() for ref in i.images] for i in read.items] == pixels
    assert [item.answer for item in read.items] == [item.answer for item in benchmark.perturbed]
    _, lines = FORMATS["jsonl"](benchmark, tmp_path / "lines")
    again = load_benchmark(JsonlSpec(path=lines), store)
    assert [item.id for item in again.items] == [item.id for item in benchmark.perturbed]
    FORMATS["huggingface"](benchmark, tmp_path / "many-pictures")
    rows = datasets.load_dataset(str(tmp_path / "many-pictures"), "perturbed")["test"]
    assert [len(row["images"]) for row in rows] == counts
    task = FORMATS["lmms-eval"](benchmark, tmp_path / "lmms")[1]
    table = datasets.load_dataset("parquet", data_files=str(task.parent / "perturbed.parquet"))
    assert [len(doc["images"]) for doc in table["train"]] == counts


def test_a_recipe_holds_the_choices_of_pictures(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        benchmark = paired_cases(run, 3)
        run.write_provenance("run: run\n")
        written = write_recipe(benchmark, run, tmp_path / "out")
    recipe = written[0].parent
    choices = {choice.index for choice in Run(recipe).read(PictureChoice)}
    assert choices == {pair.original.extra["decides"] for pair in benchmark.pairs}
    rows = [json.loads(line) for line in (recipe / "expected.jsonl").read_text().splitlines()]
    assert [row["kept"] for row in rows] == [True] * 3


def test_open_questions_have_files_of_their_own(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    paths = write_vlmeval(make([("red", "blue"), None]), tmp_path / "out")
    assert len(paths) == 4
    opened = [as_the_kit_reads(p) for p in paths if "open-" in p.name]
    assert all("A" not in table and len(table) == 1 for table in opened)


def test_a_hugging_face_folder_opens_by_configuration(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    benchmark = make([("red", "blue")] * 2, licence="CC-BY-4.0")
    FORMATS["huggingface"](benchmark, tmp_path / "hub")
    for side, answer in (("original", 0), ("perturbed", 1)):
        read = datasets.load_dataset(str(tmp_path / "hub"), side)["test"]
        assert [row["answer"] for row in read] == [answer] * 2
    head = yaml.safe_load((tmp_path / "hub" / "README.md").read_text().split("---")[1])
    assert head["license"] == "cc-by-4.0" and len(head["configs"]) == 2
    assert "| pairs | 2 |" in (tmp_path / "hub" / "README.md").read_text()


@pytest.mark.parametrize(
    ("licence", "barred"),
    [("CC-BY-ND-4.0", True), ("cc by-nc-nd 3.0", True), ("No Derivatives", True)]
    + [("CC-BY-SA-4.0", False), ("Apache-2.0", False), ("", False), ("Standard", False)],
)
def test_licences_that_forbid_edited_images_are_refused(licence: str, barred: bool) -> None:
    assert forbids_derivatives(licence) == barred


def test_a_benchmark_s_description_is_kept(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    benchmark = replace(make([("red", "blue")]), exchangeable=False)
    benchmark.save(tmp_path / "run" / "benchmark")
    again = PairedBenchmark.load(tmp_path / "run" / "benchmark")
    assert again.exchangeable is False and again.made_by == {"seed": "0"}
    assert json.loads((tmp_path / "run" / "benchmark" / "benchmark.json").read_text())


def to_recipe(benchmark: PairedBenchmark, folder: Path) -> list[Path]:
    run = Run(folder.parent / "run")
    if not (run.path / "config.yaml").exists():
        (run.path / "config.yaml").write_text("seed: 0\n" * 99)
    return write_recipe(benchmark, run, folder)


@pytest.mark.parametrize("write", [*FORMATS.values(), to_recipe], ids=[*FORMATS, "recipe"])
def test_a_full_disk_leaves_every_exported_file_whole(
    write: Callable[[PairedBenchmark, Path], list[Path]],
    make: Callable[..., PairedBenchmark],
    tmp_path: Path,
) -> None:
    benchmark, out = make([("red", "blue")] * 3, licence="cc0-1.0"), tmp_path / "out"

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    write(benchmark, out)
    whole, limits = content(), resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = {len(data) for data in whole.values()} - {0}
    assert sizes
    for size in sizes:  # a different file is the first that is too large
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, limits[1]))
        try:
            with pytest.raises(DataError, match=str(out)):
                write(benchmark, out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert content() == whole
