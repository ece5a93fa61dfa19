from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flipbench.benchmarks import (
    Benchmark,
    HuggingFaceSpec,
    JsonlSpec,
    load_benchmark,
    write_jsonl,
    write_parquet,
)
from flipbench.benchmarks.report import Problem
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Source

MakePng = Callable[..., bytes]
NASTY = [
    "NA",
    "None",
    "null",
    "nan",
    "1",
    "2.0",
    "True",
    "",
    "a\tb",
    '"',
    "x\r\ny\u2028z",
    " 한국 ",
]
TEXT = st.one_of(st.sampled_from(NASTY), st.text(max_size=20))
SOME_TEXT = TEXT.filter(str.strip)


@st.composite
def items(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw what items say, without images; ``shades`` are the images' to be."""
    found = []
    for name in draw(st.lists(TEXT, min_size=1, max_size=4, unique=True)):
        options = draw(st.none() | st.lists(SOME_TEXT, min_size=2, max_size=10))
        answer = draw(st.integers(0, len(options) - 1)) if options else None
        text = options[answer] if options and answer is not None else draw(SOME_TEXT)
        found.append(
            {
                "benchmark": draw(st.sampled_from(["one", "two"])),
                "name": name,
                "question": draw(SOME_TEXT),
                "options": options,
                "answer": answer,
                "answer_text": text,
                "raw_question": draw(SOME_TEXT),
                "category": draw(TEXT),
                "group": draw(TEXT),
                "licence": draw(TEXT),
                "source": Source(dataset=draw(TEXT), split=draw(TEXT), row=draw(st.integers(0, 9))),
                "extra": draw(st.dictionaries(TEXT, st.none() | st.integers() | TEXT, max_size=2)),
                "shades": draw(st.lists(st.integers(0, 5), max_size=3)),
            }
        )
    return found


QUICK = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def make(rows: list[dict[str, Any]], store: ImageStore, png: MakePng) -> list[Item]:
    made = []
    for row in rows:
        images = tuple(store.put(png(shade), "a test") for shade in row["shades"])
        cells = {key: value for key, value in row.items() if key != "shades"}
        made.append(Item(images=images, **cells))
    return made


def as_jsonl(written: list[Item], store: ImageStore, folder: Path) -> JsonlSpec:
    return JsonlSpec(path=write_jsonl(written, store, folder))


def as_parquet(written: list[Item], store: ImageStore, folder: Path) -> HuggingFaceSpec:
    path = write_parquet(written, store, folder / "out.parquet")
    return HuggingFaceSpec(path=str(path), mapping="flipbench")


@pytest.mark.parametrize("write", [as_jsonl, pytest.param(as_parquet, marks=pytest.mark.slow)])
@QUICK
@given(rows=items())
def test_items_are_read_as_they_were_written(
    tmp_path: Path, store: ImageStore, png: MakePng, write: Any, rows: list[dict[str, Any]]
) -> None:
    written = make(rows, store, png)
    spec, fresh = write(written, store, tmp_path / "out"), ImageStore(tmp_path / "fresh")
    assert load_benchmark(spec, fresh, strict=True).items == written
    assert [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")] == []
    for ref in (ref for item in written for ref in item.images):
        assert fresh.path(ref).read_bytes() == store.path(ref).read_bytes()


@pytest.fixture
def item(store: ImageStore, png: MakePng) -> Item:
    return make([{**ROW, "shades": [1]}], store, png)[0]


ROW: dict[str, Any] = {
    "benchmark": "b",
    "name": "n",
    "question": "q?",
    "options": ["x", "y"],
    "answer": 1,
    "answer_text": "y",
    "source": Source(dataset="d"),
}


def test_datasets_shows_the_images_of_our_parquet(
    tmp_path: Path, store: ImageStore, item: Item
) -> None:
    path = write_parquet([item], store, tmp_path / "out.parquet")
    opened = datasets.load_dataset("parquet", data_files=[str(path)], streaming=True)["train"]
    (row,) = list(opened)
    assert row["images"][0].size == (12, 8)
    assert (row["options"], row["answer"], row["id"]) == (["x", "y"], 1, item.id)


def jsonl(path: Path, store: ImageStore, *rows: Any, strict: bool = False) -> Benchmark:
    path.write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows))
    return load_benchmark(JsonlSpec(path=path), store, strict=strict)


@pytest.fixture
def folder(tmp_path: Path, png: MakePng) -> Path:
    (tmp_path / "a.png").write_bytes(png(1))
    return tmp_path


HAND: dict[str, Any] = {"images": "a.png", "question": "q?", "options": ["x", "y"], "answer": "B"}


def test_a_handwritten_row_is_read(folder: Path, store: ImageStore) -> None:
    rows = [
        HAND,
        HAND | {"name": "n1", "answer": "x"},
        "\n",
        HAND | {"name": 7, "answer": 0, "images": ["a.png", "a.png"]},
        HAND | {"options": None, "answer": "free", "images": []},
    ]
    benchmark = jsonl(folder / "hand.jsonl", store, *rows)
    assert benchmark.problems == []
    assert [(i.name, i.answer, i.answer_text) for i in benchmark.items] == [
        ("0", 1, "y"),
        ("n1", 0, "x"),
        ("7", 0, "x"),
        ("3", None, "free"),
    ]
    assert [len(i.images) for i in benchmark.items] == [1, 1, 2, 0]
    assert {i.benchmark for i in benchmark.items} == {"hand"}
    assert benchmark.items[1].raw_question == "q?"


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"imgaes": "a.png"}, "keys", "mean 'images'"),
        ({"images": None}, "image", "no key 'images'"),
        ({"images": [1]}, "image", "'images' contains int"),
        ({"images": "../a.png"}, "image", "leads out of"),
        ({"question": 3}, "text", "'question' is 3"),
        ({"question": "\ud800"}, "text", ""),
        ({"options": ["x", 1]}, "options", "'options' is"),
        ({"options": ["x"]}, "options", "1 options"),
        ({"options": ["x", " "]}, "options", "option B is blank"),
        ({"options": None, "answer": 3}, "answer", "not text"),
        ({"options": None, "answer": None}, "answer", "no answer"),
        ({"answer": "C"}, "answer", "answer is C"),
        ({"answer": 2}, "answer", "not a position"),
        ({"answer": -1}, "answer", "not a position"),
        ({"answer": True}, "answer", "'answer' is True"),
        ({"answer": 0, "answer_text": "y"}, "answer", "'answer_text'"),
        ({"id": "0" * 24}, "id", "does not match its content"),
        ({"extra": [1]}, "text", "must be objects"),
        ({"source": {"row": 1}}, "text", "dataset: Field required"),
    ],
)
def test_a_bad_row_is_refused(
    folder: Path, store: ImageStore, change: dict[str, Any], kind: str, says: str
) -> None:
    benchmark = jsonl(folder / "x.jsonl", store, HAND, HAND | change)
    assert len(benchmark.items) == 1
    (problem,) = benchmark.refused
    assert (problem.row, problem.kind) == (1, kind)
    assert says in problem.what
    assert problem.where.startswith("x.jsonl, line 2, row 1")


def test_lines_that_are_not_objects_are_refused(folder: Path, store: ImageStore) -> None:
    benchmark = jsonl(folder / "x.jsonl", store, "[1]\n", HAND, '{"images": "a.p')
    assert [(p.row, p.kind) for p in benchmark.refused] == [(0, "json"), (2, "json")]
    with pytest.raises(DataError, match="line 1, row 0 .*not a JSON object"):
        jsonl(folder / "x.jsonl", store, "[1]\n", HAND, strict=True)


def test_a_repeated_name_is_refused(folder: Path, store: ImageStore) -> None:
    twice = [HAND | {"name": "n"}, HAND | {"name": "m"}, HAND | {"name": "n"}]
    with pytest.raises(DataError, match="line 3, row 2 .*first at .*line 1, row 0"):
        jsonl(folder / "x.jsonl", store, *twice)
    apart = [HAND | {"name": "n", "benchmark": b} for b in "pq"]
    assert len(jsonl(folder / "x.jsonl", store, *apart).items) == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "empty"), (b"\n\n", "no rows"), (b'{}\n{"a": "\xe9"}\n', "line 2: not UTF-8")],
)
def test_unusable_files_are_refused(
    tmp_path: Path, store: ImageStore, content: bytes, says: str
) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=says):
        load_benchmark(JsonlSpec(path=tmp_path / "x.jsonl"), store)
    with pytest.raises(DataError, match="is a folder"):
        load_benchmark(JsonlSpec(path=tmp_path), store)


def test_a_byte_order_mark_is_not_part_of_the_first_row(folder: Path, store: ImageStore) -> None:
    path = folder / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(HAND).encode())
    assert load_benchmark(JsonlSpec(path=path), store).problems == []


def test_a_parquet_row_that_was_changed_is_refused(
    tmp_path: Path, store: ImageStore, item: Item
) -> None:
    rows = pq.read_table(write_parquet([item], store, tmp_path / "a.parquet"))
    change = {"extra": "{bad", "question": "other?", "images": [{"bytes": b"x", "path": None}]}
    for key, value in change.items():
        (row,) = rows.to_pylist()
        path = tmp_path / f"{key}.parquet"
        pq.write_table(pa.Table.from_pylist([row | {key: value}], schema=rows.schema), path)
        benchmark = load_benchmark(HuggingFaceSpec(path=str(path), mapping="flipbench"), store)
        kinds = {"extra": "text", "question": "id", "images": "image"}
        assert [p.kind for p in benchmark.refused] == [kinds[key]]


def test_an_edited_export_is_noticed(tmp_path: Path, store: ImageStore, item: Item) -> None:
    path = write_jsonl([item], store, tmp_path / "out")
    path.write_text(path.read_text().replace('"q?"', '"other?"'))
    benchmark = load_benchmark(JsonlSpec(path=path), store)
    assert [p.kind for p in benchmark.refused] == ["id"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"options": ["y"], "answer": 0}, "1 options"),
        ({"options": ["y"] * 27}, "27 options"),
        ({"options": [" ", "y"]}, "blank"),
        ({"question": ""}, "blank"),
    ],
)
def test_items_that_could_not_be_read_back_are_not_written(
    tmp_path: Path, store: ImageStore, png: MakePng, change: dict[str, Any], says: str
) -> None:
    bad = make([{**ROW, **change, "shades": [1]}], store, png)
    with pytest.raises(DataError, match=says):
        write_jsonl(bad, store, tmp_path / "out")
    with pytest.raises(DataError, match=says):
        write_parquet(bad, store, tmp_path / "out.parquet")


def test_repeated_names_and_missing_images_are_not_written(
    tmp_path: Path, store: ImageStore, item: Item
) -> None:
    with pytest.raises(DataError, match="b n: two items"):
        write_jsonl([item, item], store, tmp_path / "out")
    store.path(item.images[0]).unlink()
    with pytest.raises(DataError, match="b n: .*the image is missing"):
        write_jsonl([item], store, tmp_path / "out")
    with pytest.raises(DataError, match="b n: .*the image is missing"):
        write_parquet([item], store, tmp_path / "parquet" / "x.parquet")
    assert not (tmp_path / "out" / "items.jsonl").exists()
    assert list((tmp_path / "parquet").iterdir()) == []


def test_a_benchmark_must_account_for_every_row(item: Item) -> None:
    fatal = Problem(1, "1", "row 1", "image", "gone", "put it back", True)
    odd = Problem(0, "0", "row 0", "answer", "odd", "look", False)
    assert Benchmark("b", [item], [odd, fatal], 2).refused == [fatal]
    for n_rows in (1, 3):
        with pytest.raises(DataError, match="report it"):
            Benchmark("b", [item], [odd, fatal], n_rows)
