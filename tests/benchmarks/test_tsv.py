from __future__ import annotations

import base64
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flipbench.benchmarks import Benchmark, TsvSpec, load_benchmark
from flipbench.benchmarks.guess import guess_spec
from flipbench.benchmarks.tables import split_lines
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore

MakePng = Callable[..., bytes]
NASTY = ["NA", "N/A", "None", "null", "nan", "1", "2.0", "True", "a\tb", 'say "hi"', "x\ny", "한국"]


@pytest.fixture
def row(png: MakePng) -> Callable[..., dict[str, str]]:
    def make(index: object = 0, **cells: object) -> dict[str, str]:
        full: dict[str, Any] = {
            "index": index,
            "question": "What color?",
            "A": "red",
            "B": "blue",
            "answer": "A",
            "image": base64.b64encode(png(int(str(index)) if str(index).isdigit() else 0)).decode(),
        }
        return {key: str(value) for key, value in (full | cells).items() if value is not None}

    return make


MakeRow = Callable[..., dict[str, str]]


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write as VLMEvalKit does: pandas, tabs, every field quoted."""
    pd.DataFrame(rows).to_csv(path, sep="\t", index=False, quoting=csv.QUOTE_ALL)
    return path


def load(path: Path, store: ImageStore, strict: bool = False, **spec: Any) -> Benchmark:
    return load_benchmark(TsvSpec(path=path, name="bench", **spec), store, strict=strict)


def kinds(benchmark: Benchmark) -> list[tuple[int | None, str, bool]]:
    return [(p.row, p.kind, p.fatal) for p in benchmark.problems]


def test_every_cell_is_text_and_images_keep_their_bytes(
    tmp_path: Path, store: ImageStore, row: MakeRow, png: MakePng
) -> None:
    letters = "ABCDEFGHIJ"
    nasty = dict(zip(letters, NASTY, strict=False))
    rows = [row(7, **nasty, answer="D", hint="look", category="c", split="val", g_index="3")]
    rows[0]["l2-category"] = "fine"
    benchmark = load(write(tmp_path / "x.tsv", rows), store, licence="cc-by-4.0", revision="r1")
    assert benchmark.problems == []
    (item,) = benchmark.items
    assert item.options == tuple(NASTY[:10])
    assert (item.answer, item.answer_text) == (3, "null")
    assert (item.question, item.raw_question) == ("Hint: look\nWhat color?", "What color?")
    assert (item.name, item.benchmark, item.group, item.category) == ("7", "bench", "3", "c")
    assert (item.source.row, item.source.split, item.source.revision) == (0, "val", "r1")
    assert (item.licence, item.extra["l2_category"]) == ("cc-by-4.0", "fine")
    assert store.path(item.images[0]).read_bytes() == png(7)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(NASTY),
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
        ).filter(str.strip),
        min_size=2,
        max_size=10,
        unique_by=str.strip,
    ),
    st.data(),
)
def test_any_option_text_comes_back_as_written(
    tmp_path: Path, store: ImageStore, row: MakeRow, options: list[str], data: st.DataObject
) -> None:
    gold = data.draw(st.integers(0, len(options) - 1))
    letters = "ABCDEFGHIJ"[: len(options)]
    cells = dict(zip(letters, options, strict=True))
    path = write(tmp_path / "x.tsv", [row(0, **cells, answer=letters[gold])])
    (item,) = load(path, store).items
    assert item.options == tuple(options)
    assert item.answer == gold


HEADER = "index\tquestion\tA\tB\tanswer\timage"


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text('ab"\t\n\r é\0')
    | st.lists(st.sampled_from(['"', '"a"', '""', "\t", '"\t"', "\n", "b", '"\n'])).map("".join)
)
def test_rows_are_those_of_the_csv_module(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes(f"{HEADER}\n{text}".encode())
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file, delimiter="\t", strict=True)
        expected, problem = [], ""
        number = 1
        try:
            for cells in reader:
                expected += [(number, cells)] if cells else []
                number = reader.line_num + 1
        except csv.Error as error:
            problem = f"line {reader.line_num}: not a well-formed TSV ({error})"
    rows, message = [], ""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows.extend(split_lines(file, "\t", path))
    except DataError as error:
        message = str(error)
    assert rows == expected
    assert problem in message and bool(problem) == bool(message)


def test_the_oddities_of_a_perturbed_release_are_each_named(
    tmp_path: Path, store: ImageStore, png: MakePng
) -> None:
    home = "/home/somebody/LMUData/images"
    folder = tmp_path / "edited" / "deep"
    folder.mkdir(parents=True)
    lines = ["answer\tindex\tA\tB\tC\tD\tquestion\timage_path"]
    for i in range(24):
        # rows 12 and 13 still name the original images; row 12 has no image at all
        (folder / f"{i}.jpg").write_bytes(b"" if i == 12 else png(i))
        where = "Real" if i in (12, 13) else "Real_flux_v2"
        cells = {
            4: "A\t4\tthree\tfour\tthree\t",
            5: "A\t5\tleft\tright\tright \t",
            6: "C\t6\tB\tC\tA\t",
            7: "D\t7\tone\ttwo\t\tfour",
            8: "F\t8\tone\ttwo\tthree\t",
            9: "Other Answers\t9\tone\ttwo\t\t",
            10: "C\t10\tone\ttwo\t\tfour",
            11: "A\t11\tonly\t\t\t",
        }.get(i, f"B\t{i}\tyes\tno\t\t")
        lines.append(f"{cells}\tWhat?\t{home}/{where}/{i}.jpg")
    path = tmp_path / "pert_local.tsv"
    path.write_text("\n".join(lines) + "\n")
    benchmark = load(path, store, image_root=tmp_path / "edited")
    assert kinds(benchmark) == [
        (None, "moved_images", False),
        (4, "duplicate_options", False),
        (5, "duplicate_options", False),
        (6, "answer", False),
        (7, "option_gap", False),
        (8, "answer", True),
        (9, "answer", True),
        (10, "answer", True),
        (11, "options", True),
        (12, "image", True),
        (13, "other_folder", False),
    ]
    assert (benchmark.n_rows, len(benchmark.items)) == (24, 19)
    by_name = {item.name: item for item in benchmark.items}
    assert (by_name["7"].options, by_name["7"].answer) == (("one", "two", "four"), 2)
    assert by_name["7"].extra == {"letters": "ABD"}
    assert store.path(by_name["20"].images[0]).read_bytes() == png(20)
    assert "one of them is the answer" in benchmark.problems[1].what
    assert "one of them is the answer" not in benchmark.problems[2].what
    summary = benchmark.summary()
    counts = "24 rows, 19 items (15 with 2 options, 4 with 3 options), 5 refused, 6 oddities"
    assert counts in summary
    assert "refused: answer x 3 in rows 8, 9, 10" in summary


def test_references_lists_and_shared_images_are_resolved(
    tmp_path: Path, store: ImageStore, row: MakeRow, png: MakePng
) -> None:
    one, two = (base64.b64encode(png(i)).decode() for i in (1, 2))
    rows = [
        row(1000, image="5"),  # a row further down
        row(5, image=one),
        row(6, image=str([one, two])),
        row(7, image="6"),
        row(8, image=str(["5", two])),
        row(9, image="77"),
        row(10, image="1000"),  # a reference to a reference
        row(11, image="[oops"),
        row(12, image="[1, {}]"),
        row(13, image="8"),  # a reference to a list with a reference in it
        row("i" * 64, image=two),
        row(14, image="i" * 64),
    ]
    benchmark = load(write(tmp_path / "x.tsv", rows), store)
    shas = {i.name: [ref.sha256 for ref in i.images] for i in benchmark.items}
    first, second = shas["6"]
    assert shas["5"] == shas["1000"] == [first]
    assert shas["7"] == shas["8"] == [first, second]
    assert shas["14"] == [second]
    assert [(p.name, p.kind) for p in benchmark.refused] == [
        (name, "image") for name in ("9", "10", "11", "12", "13")
    ]


def test_several_paths_and_free_form_rows_are_read(
    tmp_path: Path, store: ImageStore, row: MakeRow, png: MakePng
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.png").write_bytes(png(1))
    (tmp_path / "b.png").write_bytes(png(2))
    rows = [
        row(0, image=None, image_path="['sub/a.png', 'b.png']", A="", B="", answer="a dog"),
        row(1, image=None, image_path="b.png", A="", B="", answer="B"),
    ]
    benchmark = load(write(tmp_path / "x.tsv", rows), store)
    free, lettered = benchmark.items
    assert [store.path(ref).read_bytes() for ref in free.images] == [png(1), png(2)]
    assert (free.options, free.answer, free.answer_text) == (None, None, "a dog")
    assert lettered.answer_text == "B"
    assert kinds(benchmark) == [(1, "letter_without_options", False)]


def test_a_missing_option_column_is_skipped(
    tmp_path: Path, store: ImageStore, row: MakeRow
) -> None:
    cells = {letter: letter.lower() for letter in "CDEFGHIJ"}
    (item,) = load(write(tmp_path / "x.tsv", [row(0, B=None, answer="J", **cells)]), store).items
    assert (len(item.options or ()), item.answer_text, item.extra["letters"]) == (
        9,
        "j",
        "ACDEFGHIJ",
    )


@pytest.mark.parametrize("missing", ["index", "question", "answer"])
def test_a_missing_required_column_is_refused(
    tmp_path: Path, store: ImageStore, row: MakeRow, missing: str
) -> None:
    cells = row(0)
    cells[missing.title()] = cells.pop(missing)
    with pytest.raises(DataError, match=f"no column '{missing}'.*mean '{missing.title()}'"):
        load(write(tmp_path / "x.tsv", [cells]), store)


def test_a_missing_image_column_is_refused(tmp_path: Path, store: ImageStore, row: MakeRow) -> None:
    with pytest.raises(DataError, match="'image'.*'image_path'.*found: index, question"):
        load(write(tmp_path / "x.tsv", [row(0, image=None)]), store)


def test_the_same_index_twice_names_both_rows(
    tmp_path: Path, store: ImageStore, row: MakeRow
) -> None:
    path = write(tmp_path / "x.tsv", [row(3), row(4), row(3)])
    with pytest.raises(DataError, match=r"line 4, row 2 .*'3' .*first at .*line 2, row 0"):
        load(path, store)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"index\tquestion\tanswer\timage\n", "no rows"),
        (
            "index\tquestion\tanswer\timage\n1\tcaf\u00e9\tA\tx\n".encode("latin-1"),
            "line 2: not UTF-8",
        ),
        (
            b"index\tindex\tquestion\tanswer\timage\n1\t1\tq\tA\tx\n",
            "two columns are named 'index'",
        ),
        (b'index\tquestion\tanswer\timage\n1\t"Stop" sign?\tA\tx\n', "line 2: not a well-formed"),
        (b'index\tquestion\tanswer\timage\n1\t"never closed\tA\tx\n', "not a well-formed"),
    ],
)
def test_unusable_files_are_refused(
    tmp_path: Path, store: ImageStore, content: bytes, says: str
) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        load(path, store)


def test_a_missing_file_or_a_folder_is_refused(tmp_path: Path, store: ImageStore) -> None:
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "none.tsv", store)
    with pytest.raises(DataError, match="is a folder"):
        load(tmp_path, store)


def test_byte_order_marks_and_blank_lines_are_ignored(
    tmp_path: Path, store: ImageStore, row: MakeRow
) -> None:
    path = write(tmp_path / "x.tsv", [row(0), row(1, question="two\nlines"), row(2)])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b'"2"', b'\n"2"', 1))
    benchmark = load(path, store)
    assert [item.name for item in benchmark.items] == ["0", "1", "2"]
    assert benchmark.problems == []


def test_bad_rows_are_refused_and_counted(tmp_path: Path, store: ImageStore, row: MakeRow) -> None:
    rows = [
        row(0),
        row(""),
        row(2, question=" "),
        row(3, answer=""),
        row(4, image=""),
        row(5, image="x" * 90),
        row(6, answer="C"),
    ]
    path = write(tmp_path / "x.tsv", rows)
    with path.open("a") as file:
        file.write('"7"\t"q"\n' + '"8"\t"q"\t"a"\t"b"\t"A"\t""\t"more"\n')
    benchmark = load(path, store)
    assert [(p.row, p.kind) for p in benchmark.refused] == [
        (1, "index"),
        (2, "question"),
        (3, "answer"),
        (4, "image"),
        (5, "image"),
        (6, "answer"),
        (7, "cells"),
        (8, "cells"),
    ]
    assert [item.name for item in benchmark.items] == ["0"]
    assert "x.tsv, line 10, row 8 (index '8')" in str(benchmark.refused[-1])
    with pytest.raises(DataError, match="row 1 .*index is empty"):
        load(path, store, strict=True)


def test_a_row_that_refers_to_a_bad_image_is_refused_too(
    tmp_path: Path, store: ImageStore, row: MakeRow
) -> None:
    path = write(tmp_path / "x.tsv", [row(0, image="y" * 91), row(1, image="0"), row(2)])
    benchmark = load(path, store)
    assert [p.row for p in benchmark.refused] == [0, 1]
    assert "refers to the row" in benchmark.refused[1].what
    assert "not valid base64" in benchmark.refused[1].what


def test_names_default_to_the_file_s(tmp_path: Path, store: ImageStore, row: MakeRow) -> None:
    path = write(tmp_path / "Nice.tsv", [row(0, source="book")])
    benchmark = load_benchmark(TsvSpec(path=path, extra_columns=("source",)), store)
    assert (benchmark.name, benchmark.items[0].benchmark) == ("Nice", "Nice")
    assert benchmark.items[0].extra == {"source": "book"}
    with pytest.raises(DataError, match="no column 'sources'.*mean 'source'"):
        load_benchmark(TsvSpec(path=path, extra_columns=("sources",)), store)


def test_the_cell_size_limit_is_restored(tmp_path: Path, store: ImageStore, row: MakeRow) -> None:
    before = csv.field_size_limit(100_000)
    try:
        path = write(tmp_path / "x.tsv", [row(0, question="w" * 200_000)])
        assert len(load(path, store).items[0].question) == 200_000
        assert csv.field_size_limit() == 100_000
    finally:
        csv.field_size_limit(before)


@pytest.mark.parametrize(
    ("question", "answer", "noticed"),
    [
        ("Is it?\nChoices:\n(A) Yes\n(B) No", "Yes", True),
        ("Which?\nA. a cat\nB. a dog", "A", True),
        ("Is there a dog in the picture?", "yes", False),
        ("How many are there?", "2", False),
    ],
)
def test_options_that_a_file_has_only_inside_its_questions_are_noticed(
    tmp_path: Path, row: MakeRow, question: str, answer: str, noticed: bool
) -> None:
    cells = {"A": None, "B": None, "question": question, "answer": answer}
    notes = guess_spec(str(write(tmp_path / "b.tsv", [row(i, **cells) for i in range(2)]))).notes
    assert "every question is free-form" in notes[0]
    assert any("into columns A, B" in note for note in notes) == noticed
