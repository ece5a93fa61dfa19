from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, List, Value
from pydantic import TypeAdapter, ValidationError

from flipbench.benchmarks import (
    Benchmark,
    BenchmarkSpec,
    ColumnMapping,
    HuggingFaceSpec,
    load_benchmark,
)
from flipbench.core.errors import DataError, ServiceError
from flipbench.core.images import ImageStore

MakePng = Callable[..., bytes]
LETTER = "Please answer directly with only the letter of the correct option and nothing else."
WORD = "Please answer directly with a single word or number."
REAL = [
    (f"Where?\n\nA. Left\nB. NA\n{LETTER}", "B"),
    (f"How many? {WORD}", "3"),
    (f"Where?\nA. Left\nB. Right\n{LETTER}", "C"),
    (f"Which marker?\nA. C\nB. D\nC. A\n{LETTER}", "C"),
    (f"Where?\n{LETTER}", "A"),
]


@pytest.fixture
def real(png: MakePng) -> Any:
    rows = {
        "image": [{"bytes": png(i), "path": f"{i}.png"} for i in range(len(REAL))],
        "question": [question for question, _ in REAL],
        "answer": [answer for _, answer in REAL],
    }
    text = Value("string")
    return Dataset.from_dict(
        rows, features=Features({"image": Image(), "question": text, "answer": text})
    )


def save(dataset: Any, path: Path, how: str) -> str:
    if how == "file":
        dataset.to_parquet(path / "RealWorldQA.parquet")
        return str(path / "RealWorldQA.parquet")
    if how == "shards":
        for k in range(2):
            dataset.shard(2, k, contiguous=True).to_parquet(path / f"test-{k:05d}.parquet")
        return str(path / "test-*.parquet")
    if how == "folder":
        (path / "RealWorldQA" / "data").mkdir(parents=True)
        dataset.to_parquet(path / "RealWorldQA" / "data" / "test-00000-of-00001.parquet")
    elif how == "saved":
        dataset.save_to_disk(path / "RealWorldQA")
    else:
        DatasetDict(test=dataset, dev=dataset.select([0])).save_to_disk(path / "RealWorldQA")
    return str(path / "RealWorldQA")


def load(path: str, store: ImageStore, strict: bool = False, **spec: Any) -> Benchmark:
    return load_benchmark(HuggingFaceSpec(path=path, **spec), store, strict=strict)


@pytest.mark.parametrize("how", ["file", "shards", "folder", "saved", "saved splits"])
def test_realworldqa_from_every_kind_of_file(
    tmp_path: Path, store: ImageStore, png: MakePng, real: Any, how: str
) -> None:
    path = save(real, tmp_path, how)
    split = "test" if how in ("folder", "saved splits") else ""
    benchmark = load(path, store, mapping="realworldqa", name="RealWorldQA", split=split)
    assert benchmark.n_rows == 5
    assert [(p.row, p.kind, p.fatal) for p in benchmark.problems] == [
        (2, "answer", True),
        (3, "answer", False),
        (4, "options", True),
    ]
    choice, free, marker = benchmark.items
    assert (choice.question, choice.options, choice.answer) == ("Where?", ("Left", "NA"), 1)
    assert choice.raw_question == REAL[0][0]
    assert (free.question, free.options, free.answer_text) == ("How many?", None, "3")
    assert (marker.name, marker.answer_text, marker.source.row) == ("3", "A", 3)
    assert [store.path(i.images[0]).read_bytes() for i in benchmark.items] == [
        png(0),
        png(1),
        png(3),
    ]
    assert marker.source.split == split


def test_strict_raises_at_the_first_refused_row(
    tmp_path: Path, store: ImageStore, real: Any
) -> None:
    with pytest.raises(DataError, match="row 2 .*answer is C, but the options are A, B"):
        load(save(real, tmp_path, "file"), store, strict=True, mapping="realworldqa")


def test_answer_is_auto_refuses_a_letter_that_is_another_text(
    tmp_path: Path, store: ImageStore, real: Any
) -> None:
    path = save(real, tmp_path, "file")
    benchmark = load(path, store, mapping="realworldqa", answer_is="auto")
    assert [p.row for p in benchmark.refused] == [2, 3, 4]


def test_mmstar_rows_are_read(tmp_path: Path, store: ImageStore, png: MakePng) -> None:
    rows = {
        "index": [10, 11, 12, 13],
        "question": [
            "What?\nOptions: A: a cup, full, B: None, C: 2.0",
            "What?\nOptions: A: a, B: b",
            "What is it?",
            "What?\nOptions: A: a, B: b, C: a",
        ],
        "image": [png(i) for i in range(4)],  # plain bytes
        "answer": ["A", "F", "B", "B"],
        "category": ["x"] * 4,
        "l2_category": ["y"] * 4,
    }
    Dataset.from_dict(rows).to_parquet(tmp_path / "MMStar.parquet")
    benchmark = load(str(tmp_path / "MMStar.parquet"), store, mapping="mmstar")
    assert [(p.name, p.kind, p.fatal) for p in benchmark.problems] == [
        ("11", "answer", True),
        ("12", "options", True),
        ("13", "duplicate_options", False),
    ]
    first = benchmark.items[0]
    assert first.options == ("a cup, full", "None", "2.0")
    assert (first.name, first.category, first.extra) == ("10", "x", {"l2_category": "y"})
    assert store.path(first.images[0]).read_bytes() == png(0)
    assert benchmark.name == "MMStar"


def test_options_in_columns_and_class_labels(
    tmp_path: Path, store: ImageStore, png: MakePng
) -> None:
    text = Value("string")
    features = Features(
        {
            "pid": text,
            "pictures": List(Image()),
            "question": text,
            "one": text,
            "two": text,
            "three": Value("float64"),
            "gold": ClassLabel(names=["A", "B", "C"]),
            "topic": ClassLabel(names=["road", "sea"]),
        }
    )
    rows = [
        {"pid": "p0", "one": "1", "two": "True", "three": float("nan"), "gold": 1, "topic": 1},
        {"pid": "p1", "one": "1", "two": None, "three": 2.0, "gold": 2, "topic": 0},
    ]
    pictures = [{"bytes": png(i), "path": None} for i in range(2)]
    full = [row | {"question": "q?", "pictures": pictures} for row in rows]
    Dataset.from_list(full, features=features).save_to_disk(tmp_path / "set")
    columns = ColumnMapping(
        index="pid",
        images=("pictures",),
        answer="gold",
        options=("one", "two", "three"),
        category="topic",
        hint="one",
    )
    benchmark = load(str(tmp_path / "set"), store, columns=columns)
    first, second = benchmark.items
    assert (first.options, first.answer, first.category) == (("1", "True"), 1, "sea")
    assert (first.question, len(first.images)) == ("Hint: 1\nq?", 2)
    assert (second.options, second.answer_text, second.name) == (("1", "2.0"), "2.0", "p1")
    assert [(p.row, p.kind) for p in benchmark.problems] == [
        (None, "float_column"),
        (1, "option_gap"),
    ]


def test_options_in_a_list_answers_as_texts_and_images_as_paths(
    tmp_path: Path, store: ImageStore, png: MakePng
) -> None:
    (tmp_path / "p.png").write_bytes(png(3))
    rows = {
        "choices": ["['a', 'NA']", "[1, 2]", "", "{'a': 1}", "not a list", "['x', 'y']"],
        "question": ["q?"] * 6,
        "image": ["p.png"] * 5 + ["../p.png"],
        "answer": ["NA", "2", "a dog", "a", "a", "x"],
    }
    Dataset.from_dict(rows).to_parquet(tmp_path / "v.parquet")
    columns = ColumnMapping(options=("choices",))
    benchmark = load(str(tmp_path / "v.parquet"), store, columns=columns, options_in="list")
    assert [item.answer_text for item in benchmark.items] == ["NA", "2", "a dog"]
    assert [item.answer for item in benchmark.items] == [1, 1, None]
    assert [(p.row, p.kind) for p in benchmark.refused] == [
        (3, "options"),
        (4, "options"),
        (5, "image"),
    ]
    assert store.path(benchmark.items[0].images[0]).read_bytes() == png(3)


def test_answers_can_be_positions(tmp_path: Path, store: ImageStore, png: MakePng) -> None:
    rows = {
        "o": [["a", "b"]] * 3,
        "question": ["q?"] * 3,
        "image": [png(), png(), b"broken"],
        "answer": [1, 2, 0],
    }
    Dataset.from_dict(rows).to_parquet(tmp_path / "v.parquet")
    spec = {"columns": ColumnMapping(options=("o",)), "options_in": "list", "answer_is": "index"}
    benchmark = load(str(tmp_path / "v.parquet"), store, **spec)
    assert [item.answer_text for item in benchmark.items] == ["b"]
    assert [(p.row, p.kind) for p in benchmark.refused] == [(1, "answer"), (2, "image")]


def test_missing_images_and_several_image_columns_are_handled(
    tmp_path: Path, store: ImageStore, png: MakePng
) -> None:
    features = Features(
        {
            "question": Value("string"),
            "answer": Value("string"),
            "image_1": Image(),
            "image_2": Image(),
        }
    )
    picture = {"bytes": png(1), "path": None}
    rows = [
        {"question": "q?", "answer": "x", "image_1": picture, "image_2": picture},
        {"question": "q?", "answer": "x", "image_1": picture, "image_2": None},
        {"question": "q?", "answer": "x", "image_1": None, "image_2": None},
    ]
    Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "set")
    columns = ColumnMapping(images=("image_1", "image_2"))
    benchmark = load(str(tmp_path / "set"), store, columns=columns, options_in="none")
    assert [len(item.images) for item in benchmark.items] == [2, 1]
    assert [(p.row, p.kind) for p in benchmark.refused] == [(2, "image")]


def test_an_image_folder_s_bytes_are_kept(tmp_path: Path, store: ImageStore, png: MakePng) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "a.png").write_bytes(png(4))
    (folder / "metadata.jsonl").write_text(
        '{"file_name": "a.png", "question": "q?", "answer": "None"}\n'
    )
    (item,) = load(str(folder), store, options_in="none").items
    assert store.path(item.images[0]).read_bytes() == png(4)
    assert item.answer_text == "None"


def test_a_missing_column_names_the_nearest(tmp_path: Path, store: ImageStore, real: Any) -> None:
    path = save(real.rename_column("answer", "answers"), tmp_path, "file")
    with pytest.raises(DataError, match="no column 'answer' .*mean 'answers'"):
        load(path, store, mapping="realworldqa")


def test_a_repeated_index_is_refused(tmp_path: Path, store: ImageStore, real: Any) -> None:
    path = save(real.add_column("index", ["a", "b", "c", "a", "d"]), tmp_path, "file")
    columns = ColumnMapping(index="index")
    with pytest.raises(DataError, match="row 3 .*'a' is used twice, first at .*row 0"):
        load(path, store, mapping="realworldqa", columns=columns)


def test_unknown_splits_are_refused(tmp_path: Path, store: ImageStore, real: Any) -> None:
    path = save(real, tmp_path, "saved splits")
    with pytest.raises(DataError, match="splits test, dev"):
        load(path, store, mapping="realworldqa")
    with pytest.raises(DataError, match="no split 'tset' .*mean 'test'"):
        load(path, store, mapping="realworldqa", split="tset")
    assert load(path, store, mapping="realworldqa", split="dev").n_rows == 1


def test_unopenable_paths_are_refused(tmp_path: Path, store: ImageStore) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        load(str(tmp_path / "none.parquet"), store)
    with pytest.raises(DataError, match="no such file; fix the path"):
        load(str(tmp_path / "none.json"), store)
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="not a .parquet, .json or .jsonl"):
        load(str(tmp_path / "x.csv"), store)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match="cannot open"):
        load(str(tmp_path / "bad.parquet"), store)
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match="cannot open"):
        load(str(tmp_path / "void"), store)


def test_texts_of_json_stay_as_they_are(tmp_path: Path, store: ImageStore, png: MakePng) -> None:
    (tmp_path / "x.png").write_bytes(png())
    texts = ["NA", "2024-01-01", "007", "2.0"]
    rows = [{"q": "Which?", "image": "x.png", "a": text, "o": texts} for text in texts]
    (tmp_path / "x.json").write_text(json.dumps([*rows, {"q": "Which?", "a": "NA"}]))
    columns = {"question": "q", "answer": "a", "images": ["image"], "options": ["o"]}
    benchmark = load(str(tmp_path / "x.json"), store, columns=columns, options_in="list")
    assert [item.answer_text for item in benchmark.items] == texts
    assert list(benchmark.items[0].options or ()) == texts
    (problem,) = benchmark.refused
    assert (problem.row, problem.kind) == (4, "image")


def test_an_empty_dataset_is_refused(tmp_path: Path, store: ImageStore, real: Any) -> None:
    path = save(real.select([]), tmp_path, "file")
    with pytest.raises(DataError, match="no rows"):
        load(path, store, mapping="realworldqa")


def hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[dict[str, Any]]:
    """Let ``datasets.load_dataset`` give ``answer``, and return what it was asked."""
    asked: list[dict[str, Any]] = []

    def load_dataset(path: str, **options: Any) -> Any:
        asked.append({"path": path, **options})
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    return asked


@pytest.mark.parametrize(("revision", "pinned"), [("", False), ("main", False), ("a1" * 20, True)])
def test_an_unpinned_hub_id_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, store: ImageStore, real: Any, revision: str, pinned: bool
) -> None:
    asked = hub(monkeypatch, DatasetDict(test=real))
    benchmark = load("xai-org/RealworldQA", store, mapping="realworldqa", revision=revision)
    assert (asked[0]["path"], asked[0]["revision"]) == ("xai-org/RealworldQA", revision or None)
    odd = [p for p in benchmark.problems if p.kind == "unpinned_revision"]
    assert [(p.row, p.fatal) for p in odd] == ([] if pinned else [(None, False)])
    assert benchmark.n_rows == 5
    source = benchmark.items[0].source
    assert (source.dataset, source.revision) == ("xai-org/RealworldQA", revision)


def test_a_refusing_hub_is_a_service_error(
    monkeypatch: pytest.MonkeyPatch, store: ImageStore
) -> None:
    hub(monkeypatch, ConnectionError("Couldn't reach 'no/such' on the Hub"))
    with pytest.raises(ServiceError, match="no/such.*Couldn't reach.*fix the name"):
        load("no/such", store)


@pytest.mark.parametrize(
    "bad",
    [
        {"format": "huggingface", "path": "x", "options_in": "question"},
        {"format": "huggingface", "path": "x", "options_in": "list"},
        {"format": "huggingface", "path": "x", "mapping": "mmbench"},
        {"format": "vlmeval", "path": "x", "split": "test"},
        {"format": "csv", "path": "x"},
    ],
)
def test_contradictory_specs_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(BenchmarkSpec).validate_python(bad)


def test_the_format_chooses_the_spec() -> None:
    spec: Any = TypeAdapter(BenchmarkSpec).validate_python(
        {"format": "huggingface", "path": "x", "mapping": "mmstar", "answer_is": "auto"}
    )
    assert isinstance(spec, HuggingFaceSpec)
    assert (spec.layout.question_style, spec.layout.answer_is) == ("inline", "auto")
    assert spec.layout.columns.index == "index"
