"""What a real release gets wrong without a reader noticing: each oddity is named."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from PIL import Image

from flipbench.benchmarks import (
    Benchmark,
    BenchmarkSpec,
    ColumnMapping,
    HuggingFaceSpec,
    JsonlSpec,
    TsvSpec,
    load_benchmark,
)
from flipbench.benchmarks.guess import guess_spec
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.prompting.prompts import LETTERS
from tests.fixtures.command_line import Flipbench

# The eight answer cells of MMStar's perturbed release that are no option's letter: in seven rows
# the cell is also an option's text.
BAD_ANSWERS = ["Other Answers", "Other Answers", "Other Answers", "F", "F", "G", "I", "J"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.new("RGB", (16, 16), "red").save(tmp_path / "one.png")
    return tmp_path


def tsv(folder: Path, rows: list[dict[str, Any]]) -> TsvSpec:
    header = list(dict.fromkeys(key for row in rows for key in row))
    with (folder / "x.tsv").open("w", newline="") as file:
        writer = csv.DictWriter(file, header, restval="", delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    return TsvSpec(path=folder / "x.tsv")


def row(index: Any, answer: str = "A", **cells: str) -> dict[str, Any]:
    options = {"A": "red", "B": "blue"} if not cells else cells
    asked = {"index": index, "question": "Which?", **options, "answer": answer}
    return asked | {"image_path": "one.png"}


def load(spec: BenchmarkSpec, folder: Path) -> Benchmark:
    return load_benchmark(spec, ImageStore(folder / "store"))


def mmstar_like(n: int = 60) -> list[dict[str, Any]]:
    rows = [row(i, "ABCD"[i % 4], A="one", B="two", C="three", D="four") for i in range(n)]
    for i, answer in enumerate(BAD_ANSWERS):
        text = answer if i else "something else"
        rows[i] = row(i, answer, A="one", B="two", C=text, D="four")
    return rows


def test_answers_outside_the_letters_of_a_file_of_letters_are_named(folder: Path) -> None:
    benchmark = load(tsv(folder, mmstar_like()), folder)
    named = [(p.row, p.kind, p.fatal) for p in benchmark.problems]
    assert named == [(0, "answer", True), *((i, "answer_text", True) for i in range(1, 8))]
    assert "'F' is none of the letters A, B, C, D but the text of option C" in str(
        benchmark.problems[3]
    )
    assert [item.name for item in benchmark.items] == [str(i) for i in range(8, 60)]
    assert benchmark.items[0].answer == 0 and benchmark.n_rows == 60
    with pytest.raises(DataError, match="is none of the letters A, B, C, D but the text of"):
        load_benchmark(tsv(folder, mmstar_like()[1:]), ImageStore(folder / "store"), strict=True)


def test_answers_that_are_texts_throughout_are_no_oddity(folder: Path) -> None:
    rows = [row(i, ("red", "blue", "A")[i % 3]) for i in range(30)]
    assert load(tsv(folder, rows), folder).problems == []


def test_rows_of_our_own_with_a_single_text_among_letters(folder: Path) -> None:
    lines = [
        {"name": str(i), "images": ["one.png"], "question": "Which?", "options": ["red", "blue"]}
        | {"answer": "red" if i == 4 else "B"}
        for i in range(20)
    ]
    (folder / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    benchmark = load(JsonlSpec(path=folder / "x.jsonl"), folder)
    (problem,) = benchmark.problems
    assert (problem.name, problem.kind, problem.fatal) == ("4", "answer_text", True)
    assert len(benchmark.items) == 19 and "4" not in {item.name for item in benchmark.items}


@pytest.mark.parametrize("letters", ["ab", "abcd", "ABc", "ABCd"])
def test_options_in_columns_of_small_letters_are_refused(folder: Path, letters: str) -> None:
    spec = tsv(folder, [row(0, "A", **{letter: f"text {letter}" for letter in letters})])
    small = ", ".join(letter for letter in letters if letter.islower())
    with pytest.raises(DataError, match=rf"columns named by small letters \({small}\).*rename"):
        load(spec, folder)


def test_other_columns_may_have_small_letters(folder: Path) -> None:
    rows = [row(0) | {"x": "3", "y": "4", "a": "7"}]
    assert load(tsv(folder, rows), folder).problems == []


@pytest.mark.parametrize("filled", [False, True])
def test_a_27th_option_is_refused_by_name(folder: Path, filled: bool) -> None:
    cells = {letter: f"text {letter}" for letter in LETTERS}
    rows = [row(0, "B", **cells, AA="one more" if filled else ""), row(1, "C", **cells)]
    benchmark = load(tsv(folder, rows), folder)
    assert len(benchmark.items) == 2 - filled
    said = [str(problem) for problem in benchmark.refused]
    assert len(said) == filled and all("option AA, after Z; at most 26" in text for text in said)


def parquet(folder: Path, columns: list[str]) -> HuggingFaceSpec:
    cells = {column: [f"text {column}"] for column in columns}
    images = {"image": [{"bytes": (folder / "one.png").read_bytes(), "path": "one.png"}]}
    data = {"question": ["Which?"], "answer": ["A"], **cells, **images}
    Dataset.from_dict(data).to_parquet(folder / "x.parquet")
    return HuggingFaceSpec(path=str(folder / "x.parquet"))


def test_a_dataset_with_small_columns_is_refused_and_can_be_mapped(folder: Path) -> None:
    spec = parquet(folder, ["a", "b", "c"])
    with pytest.raises(DataError, match=r"small letters \(a, b, c\)"):
        load(spec, folder)
    guess = guess_spec(spec.path)
    assert isinstance(guess.spec, HuggingFaceSpec) and guess.spec.columns
    assert guess.spec.columns.options == ("a", "b", "c")
    (item,) = load(guess.spec, folder).items
    assert item.options == ("text a", "text b", "text c")


def test_a_dataset_s_27th_option_column_is_refused(folder: Path) -> None:
    names = [f"choice{number}" for number in range(27)]
    spec = parquet(folder, names)
    mapped = spec.model_copy(update={"columns": ColumnMapping(options=tuple(names))})
    (problem,) = load(mapped, folder).refused
    assert "option 27, after Z" in str(problem)


@pytest.mark.parametrize(
    ("one", "two"), [("q1", "Q1"), ("stra\u00dfe", "STRASSE"), ("caf\u00e9", "cafe\u0301")]
)
def test_ids_that_differ_in_form_only_are_named(folder: Path, one: str, two: str) -> None:
    benchmark = load(tsv(folder, [row(one), row("other"), row(two)]), folder)
    assert len(benchmark.items) == 3
    (problem,) = benchmark.problems
    assert (problem.row, problem.name, problem.kind) == (2, two, "similar_index")
    assert "x.tsv, line 2, row 0" in problem.what and "by case or Unicode form only" in problem.what


def test_rotations_of_a_question_are_counted(folder: Path) -> None:
    """As in VLMEvalKit's files of MMBench; another answer is another question."""
    rows = [row(i, A="red", B="blue", C="green") | {"question": f"Q{i}?"} for i in range(3)]
    turned = [
        row(1_000_000 + i, "C", A="blue", B="green", C="red") | {"question": f"Q{i}?"}
        for i in range(2)
    ]
    other = row(9, "B", A="red", B="blue", C="green") | {"question": "Q2?"}
    (odd,) = load(tsv(folder, [*rows, *turned, other]), folder).problems
    assert (odd.kind, odd.row) == ("rotated", None) and odd.what.startswith("2 rows repeat")
    assert not load(tsv(folder, [*rows, other]), folder).problems


def guessed(folder: Path, **cells: Any) -> Benchmark:
    """Return a dataset of one row, as ``init`` would read it."""
    data = (folder / "one.png").read_bytes()
    images = {name: {"bytes": data} for name in ("decoded_image", "image_1") if name in cells}
    shown = images or {"image": {"bytes": data}}
    Dataset.from_list([{"question": "Is it?"} | shown | cells | images]).to_parquet(
        folder / "g.parquet"
    )
    return load(guess_spec(str(folder / "g.parquet")).spec, folder)


@pytest.mark.parametrize("answer", ["no", "No", "NO", "yes"])
def test_a_data_set_of_yes_and_no_is_read_however_they_are_spelt(folder: Path, answer: str) -> None:
    (item,) = guessed(folder, answer=answer).items
    assert item.answer_text == answer and len(item.options or ()) == 2


@pytest.mark.parametrize(
    "cells",
    [
        {"image_path": "0.webp", "image_id": "17"},  # RealWorldQA's mirror
        {"image": "images/1.jpg", "decoded_image": None},  # MathVista
        {"image_1": None, "image_2": None},  # MMMU
    ],
)
def test_the_columns_that_hold_the_pictures_are_found(folder: Path, cells: Any) -> None:
    (item,) = guessed(folder, answer="b", choices=["a", "b"], **cells).items
    assert (len(item.images), item.answer) == (1, 1)


def test_missing_cells_that_became_texts_are_none(folder: Path) -> None:
    """As in mirrors of MMBench; "nan" before another option is a text."""
    options = {"A": "nan", "B": "a", "C": "nan", "D": "nan"}
    benchmark = guessed(folder, answer="B", hint="nan", **options)
    (item,), (odd,) = benchmark.items, benchmark.problems
    assert (item.options, item.question) == (("nan", "a"), "Is it?")
    assert odd.kind == "missing_value" and "(1 rows)" in odd.what
    hinted = guessed(folder, answer="B", hint="Look.", **options)
    assert hinted.items[0].question == "Hint: Look.\nIs it?"


def test_import_writes_every_oddity_to_a_file(flipbench: Flipbench, folder: Path) -> None:
    rows = [*mmstar_like(120), *(row(f"={i}", "A", A="same", B="same") for i in range(20))]
    tsv(folder, rows)
    (folder / "x.yaml").write_text("run: run\nbenchmark: {format: vlmeval, path: x.tsv}\n")
    result = flipbench("import", "x.yaml")
    path = Path("run/import/problems.csv")
    assert result.status == 1 and f"all 28: {path}" in result.out
    with (folder / path).open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert len(listed) == 28 and [line["row"] for line in listed[:8]] == list("01234567")
    assert listed[0]["result"] == "refused" and listed[0]["kind"] == "answer"
    assert {line["kind"] for line in listed[8:]} == {"duplicate_options"}
    tsv(folder, [row(0)])
    result = flipbench("import", "x.yaml")
    assert result.status == 0 and "all " not in result.out
    assert len((folder / path).read_text().splitlines()) == 1  # the header
