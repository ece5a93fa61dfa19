"""Exports: both sides through one encoder, read back as the kits read them."""

from __future__ import annotations

import ast
import base64
import importlib.util
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import yaml
from PIL import Image

from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item, Source
from flipbench.export import FORMATS, forbids_derivatives
from flipbench.export.pairs import export_name
from flipbench.export.vlmeval import write_vlmeval

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


def picture(store: ImageStore, colour: str, form: str = "PNG") -> Any:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(out, format=form)
    return store.put(out.getvalue(), colour)


@pytest.fixture
def make(store: ImageStore) -> Callable[..., PairedBenchmark]:
    def build(
        option_lists: list[tuple[str, ...] | None], name: str = "MMBench-Lite", licence: str = ""
    ) -> PairedBenchmark:
        pairs = []
        for number, options in enumerate(option_lists):
            common: dict[str, Any] = {
                "benchmark": name,
                "name": f"00{number}",
                "question": "Which is it?",
                "options": options,
                "category": "NA",
                "licence": licence,
                "source": Source(dataset="made-up", row=number),
            }
            texts = options or ("red", "blue")
            sides = [
                Item(
                    **common,
                    images=(picture(store, colour, form),),
                    answer=answer if options else None,
                    answer_text=texts[answer],
                )
                for answer, colour, form in ((0, "red", "JPEG"), (1, "blue", "PNG"))
            ]
            pairs.append(Pair(*sides))
        return PairedBenchmark(name, tuple(pairs), store, {"items": len(pairs)}, {"seed": "0"})

    return build


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
        assert not any(t in name.lower() for t in ("mmbench", "circular", "openended", "mmmu"))
        assert benchmark.id[:8] in name and "/" not in name
    assert len(set(names)) == 2
    other = make([("red", "green")], name=benchmark.name)
    assert export_name(other) != export_name(benchmark)


def test_several_pictures_are_a_list(
    make: Callable[..., PairedBenchmark], store: ImageStore, tmp_path: Path
) -> None:
    (pair,) = make([("red", "blue")]).pairs
    two = [
        Item.model_validate(
            i.model_dump() | {"id": "", "images": (*i.images, picture(store, "green"))}
        )
        for i in (pair.original, pair.perturbed)
    ]
    benchmark = PairedBenchmark("two", (Pair(*two),), store)
    for path in write_vlmeval(benchmark, tmp_path / "out"):
        assert len(ast.literal_eval(as_the_kit_reads(path)["image"][0])) == 2


def test_open_questions_have_files_of_their_own(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    paths = write_vlmeval(make([("red", "blue"), None]), tmp_path / "out")
    assert len(paths) == 4
    opened = [as_the_kit_reads(p) for p in paths if "open-" in p.name]
    assert all("A" not in table and len(table) == 1 for table in opened)


def test_lmms_eval_tasks_load_and_score(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    benchmark = make([("red", "blue"), None])

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: f"function {node.value}")
    for path, answers in zip(
        FORMATS["lmms-eval"](benchmark, tmp_path), (("A", "red"), ("B", "blue")), strict=True
    ):
        task = yaml.load(path.read_text(), Loader)
        assert task["doc_to_text"] == "function utils.doc_to_text"
        assert task["metric_list"][1]["aggregation"] == "function utils.count"
        assert task["lmms_eval_specific_kwargs"]["default"] == {"pre_prompt": "", "post_prompt": ""}
        docs = datasets.load_dataset(task["dataset_path"], **task["dataset_kwargs"])["test"]
        spec = importlib.util.spec_from_file_location("utils", path.parent / "utils.py")
        assert spec and spec.loader
        utils = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(utils)
        for doc, answer in zip(docs, answers, strict=True):
            assert utils.doc_to_target(doc) == answer
            assert utils.doc_to_visual(doc)[0].size == (40, 30)
            assert "Which is it?" in utils.doc_to_text(doc, {"post_prompt": "!"})
            assert utils.process_results(doc, [f"{answer}."])["exact_match"] == 1.0
            assert utils.process_results(doc, ["Zebra"])["exact_match"] == 0.0
            assert utils.process_results(doc, ["x"])["flipbench_item"] == doc["id"]


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
