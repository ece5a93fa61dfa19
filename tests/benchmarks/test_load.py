"""Pairs that exist already: NaturalBench's rows, two mappings of one file, and what has no twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from flipbench.benchmarks import PairsSpec, load_pairs
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore

MakePng = Callable[..., bytes]


def write(rows: list[dict[str, Any]], images: tuple[str, ...], path: Path) -> None:
    features = datasets.Features(
        {k: datasets.Image() if k in images else datasets.Value("string") for k in rows[0]}
    )
    datasets.Dataset.from_list(rows, features=features).to_parquet(path)


@pytest.fixture
def naturalbench(tmp_path: Path, png: MakePng) -> Path:
    """Two groups in the columns of the release: one of yes and no, one with options."""
    rows = []
    for index, (kind, questions, answers) in enumerate(
        [
            ("yes_no", ("Is it red?", "Is it blue?"), ("Yes", "No", "No", "Yes")),
            (
                "multiple_choice",
                ("What is it?\nOption:A:a cat;B:a dog;", "Which one? Option: A: left; B: right"),
                ("A", "B", "B", "A"),
            ),
        ]
    ):
        rows.append(
            {
                "Index": str(index),
                "Image_0": {"bytes": png(1), "path": None},
                "Image_1": {"bytes": png(2), "path": None},
                "Question_0": questions[0],
                "Question_1": questions[1],
                "Image_0_Question_0": answers[0],
                "Image_1_Question_0": answers[1],
                "Image_0_Question_1": answers[2],
                "Image_1_Question_1": answers[3],
                "Question_Type": kind,
                "Source": "made up",
            }
        )
    folder = tmp_path / "NaturalBench"
    folder.mkdir()
    write(rows, ("Image_0", "Image_1"), folder / "train.parquet")
    return folder


def test_naturalbench_gives_two_pairs_a_row(naturalbench: Path, tmp_path: Path) -> None:
    spec = PairsSpec(naturalbench=str(naturalbench / "train.parquet"), licence="Apache-2.0")
    found = load_pairs(spec, ImageStore(tmp_path / "images"))
    benchmark = found.benchmark
    assert benchmark.name == "NaturalBench" and benchmark.exchangeable is False
    assert not found.unpaired
    expected = [
        (p.original.name, p.original.answer_text, p.perturbed.answer_text) for p in benchmark.pairs
    ]
    assert expected == [
        ("0-q0", "Yes", "No"),
        ("1-q0", "a cat", "a dog"),
        ("0-q1", "No", "Yes"),
        ("1-q1", "right", "left"),
    ]
    assert {p.original.group for p in benchmark.pairs} == {"0", "1"}
    assert benchmark.pairs[1].original.question == "What is it?"


@pytest.fixture
def two_columns(tmp_path: Path, png: MakePng) -> tuple[Path, PairsSpec]:
    path = tmp_path / "pairs.parquet"
    rows = []
    for number, (answer, counter) in enumerate((("A", "B"), ("B", "A"), ("A", "A"), ("A", ""))):
        rows.append(
            {
                "id": f"p{number}",
                "question": "Which?",
                "A": "a cup",
                "B": "a plate",
                "answer": answer,
                "counter_answer": counter,
                "image": {"bytes": png(1), "path": None},
                "counter_image": {"bytes": png(2), "path": None},
            }
        )
    write(rows, ("image", "counter_image"), path)

    def side(answer: str, image: str) -> dict[str, Any]:
        columns = {"index": "id", "question": "question", "answer": answer, "images": [image]}
        return {"format": "huggingface", "path": str(path), "columns": columns, "name": "cups"}

    part = {
        "original": side("answer", "image"),
        "counterfactual": side("counter_answer", "counter_image"),
    }
    return path, PairsSpec.model_validate({"parts": [part]})


def test_two_columns_of_one_file_make_pairs(
    two_columns: tuple[Path, PairsSpec], tmp_path: Path
) -> None:
    found = load_pairs(two_columns[1], ImageStore(tmp_path / "images"))
    assert [p.original.name for p in found.benchmark.pairs] == ["p0", "p1"]
    assert "both versions have the same answer" in found.unpaired[0] and "p2" in found.unpaired[0]
    assert "p3" in found.unpaired[1] and "not in the counterfactual" in found.unpaired[1]
    assert "there is no answer" in found.summary()


def test_a_spec_without_pairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no pairs: give 'parts'"):
        load_pairs(PairsSpec(), ImageStore(tmp_path / "images"))
