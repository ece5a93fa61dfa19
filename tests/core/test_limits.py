"""Small files that unpack to much: refused before memory is spent, with what raises the limit."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flipbench.benchmarks import HuggingFaceSpec, TsvSpec, load_benchmark
from flipbench.benchmarks.image_files import split_cell
from flipbench.benchmarks.tables import numbered_rows, open_table, parse_literal, read_rows
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.images import ImageStore, decode
from flipbench.core.limits import LIMITS, ROWS
from flipbench.filters.audit.corpus_overlap.corpora import open_corpus


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def parquet(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path, compression="zstd")
    return path


def workbook(path: Path, cell: str = "B2", member_size: int = 10) -> Path:
    """Write a workbook whose last cell is far away, or one of whose members is large."""
    import openpyxl

    book = openpyxl.Workbook()
    book.active["A1"], book.active["B1"], book.active[cell] = "index", "prediction", "A"
    book.save(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/more.xml", b"\0" * member_size)
    return path


def read_tsv(path: Path) -> None:
    list(open_table(path).rows)


def read_benchmark(path: Path) -> None:
    kind = TsvSpec if path.suffix == ".tsv" else HuggingFaceSpec
    load_benchmark(kind(path=str(path)), ImageStore(path.parent / "images"))


Case = tuple[Callable[[Path], object], Callable[[Path], Path], dict[str, int]]
TABLES: dict[str, Case] = {
    "parquet rows": (
        read_rows,
        lambda p: parquet(p / "a.parquet", index=["x"] * 3_000_000),
        {},
    ),
    "parquet list": (
        read_rows,
        lambda p: parquet(p / "a.parquet", index=pa.array([[None] * 50], pa.list_(pa.int8()))),
        {"CELLS": 49},
    ),
    "parquet dictionary": (
        read_rows,
        lambda p: parquet(p / "a.parquet", index=["x" * 9_000] * 50),
        {"TABLE_BYTES": 50_000},
    ),
    "csv rows": (read_rows, lambda p: text(p / "a.csv", "index\n" + "x\n" * 9), {"ROWS": 8}),
    "csv cells": (read_rows, lambda p: text(p / "a.csv", "a,b\n" + "x,\n" * 9), {"CELLS": 17}),
    "csv bytes": (read_rows, lambda p: text(p / "a.csv", "a\n" + "xx\n" * 9), {"TABLE_BYTES": 17}),
    "jsonl line": (
        read_rows,
        lambda p: text(p / "a.jsonl", json.dumps({"index": "x" * 900})),
        {"FILE_BYTES": 800},
    ),
    "json": (read_rows, lambda p: text(p / "a.json", "[" + " " * 900 + "]"), {"FILE_BYTES": 800}),
    "xlsx bytes": (
        read_rows,
        lambda p: workbook(p / "a.xlsx", member_size=100_000),
        {"FILE_BYTES": 90_000},
    ),
    "xlsx cells": (read_rows, lambda p: workbook(p / "a.xlsx", "XFD99"), {"CELLS": 1_000_000}),
    "our csv": (numbered_rows, lambda p: text(p / "a.csv", "index\n" + "x\n" * 9), {"ROWS": 8}),
    "benchmark rows": (
        read_benchmark,
        lambda p: text(
            p / "a.tsv",
            "index\tquestion\tanswer\timage\n" + "".join(f"{n}\t\t\t\n" for n in range(9)),
        ),
        {"ROWS": 8},
    ),
    "benchmark parquet": (
        read_benchmark,
        lambda p: parquet(p / "a.parquet", index=["x"] * 9),
        {"ROWS": 8},
    ),
    "csv columns": (read_rows, lambda p: text(p / "a.csv", "c," * 9 + "\n"), {"COLUMNS": 8}),
    "csv cells of a row": (
        read_rows,
        lambda p: text(p / "a.csv", 'a,b\n"x",' + "," * 9),
        {"COLUMNS": 8},
    ),
    "json columns": (
        read_rows,
        lambda p: text(p / "a.json", json.dumps([{str(n): 1 for n in range(9)}])),
        {"COLUMNS": 8},
    ),
    "tsv line": (read_tsv, lambda p: text(p / "a.tsv", "index\t" * 900), {"FILE_BYTES": 800}),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_over_a_limit_is_refused_with_what_raises_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, make, limits = TABLES[name]
    path = make(tmp_path)
    for limit, n in limits.items():
        monkeypatch.setenv(f"FLIPBENCH_MAX_{limit}", str(n))
    variable = f"FLIPBENCH_MAX_{next(iter(limits), 'ROWS')}"
    with pytest.raises(DataError, match=f"a.*more than the limit.*{variable}"):
        read(path)
    monkeypatch.setenv(variable, "1_000_000_000" if limits else "1")
    complaint = ""
    try:
        read(path)
    except DataError as error:  # some hold no good row
        complaint = str(error)
    assert ("more than the limit" in complaint) is not bool(limits)


@pytest.mark.parametrize("value", ["0", "-1", "many", "9" * 30])
def test_a_limit_is_a_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({limit.variable for limit in LIMITS}) == len(LIMITS)
    monkeypatch.setenv(ROWS.variable, value)
    with pytest.raises(ConfigError, match=f"{ROWS.variable}.*number of rows"):
        ROWS.check(1, "x")


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    return file.getvalue()


def zipped(folder: Path) -> str:
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.png", b"\0" * 100_000)
        archive.writestr("good.png", png())
    return str(folder / "a.zip")


def tarred(folder: Path, mode: str, kind: bytes = tarfile.REGTYPE) -> str:
    """Return a shard with a large member and a good one."""
    path = folder / ("a.tgz" if mode.endswith("gz") else "a.tar")
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for name, data in (("bomb.png", b"\0" * 100_000), ("good.png", png())):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            if kind == tarfile.GNUTYPE_SPARSE and name == "bomb.png":  # 8 GiB of nothing
                member.pax_headers = {
                    **{"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,1"},
                    **{"GNU.sparse.size": str(8 << 30), "GNU.sparse.numblocks": "1"},
                }
            tar.addfile(member, io.BytesIO(data))
    return str(path)


def in_parquet(folder: Path) -> str:
    cells = [{"bytes": b"\0" * 100_000, "path": None}, {"bytes": png(), "path": None}]
    parquet(folder / "a.parquet", image=cells)
    return str(folder / "a.parquet")


@pytest.mark.parametrize(
    "make",
    [
        zipped,
        in_parquet,
        lambda folder: tarred(folder, "w"),
        lambda folder: tarred(folder, "w:gz"),
        lambda folder: tarred(folder, "w", tarfile.GNUTYPE_SPARSE),
    ],
)
def test_a_picture_that_unpacks_to_too_much_fails_alone(
    make: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = open_corpus(make(tmp_path))
    monkeypatch.setenv("FLIPBENCH_MAX_FILE_BYTES", "90_000")
    bomb, good = [picture for part in corpus.parts() for picture in part.read(0)]
    assert not bomb.data and "FLIPBENCH_MAX_FILE_BYTES" in bomb.error
    assert good.data == png() and not good.error


def test_a_row_group_that_unpacks_to_too_much_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [png(), png(), *[b"\0" * 100_000] * 2, png()]
    table = pa.table({"image": pa.array(cells, pa.binary()), "other": ["x" * 200_000] * 5})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", row_group_size=2)
    monkeypatch.setenv("FLIPBENCH_MAX_TABLE_BYTES", "90_000")
    (part,) = open_corpus(str(tmp_path / "a.parquet"), image_column="image").parts()
    first, second, failure, last = part.read(0)
    assert [picture.data for picture in (first, second, last)] == [png()] * 3
    assert "rows 2 to 3 unpacks to" in failure.error
    assert "FLIPBENCH_MAX_TABLE_BYTES" in failure.error
    assert list(part.read(2)) == [failure, last] and list(part.read(3)) == [last]


def test_the_header_of_a_shard_has_a_bounded_size(tmp_path: Path) -> None:
    name = tarfile.TarInfo("a.png")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 1 << 32
    (tmp_path / "a.tar").write_bytes(name.tobuf() + b"\0" * 10_240)
    (picture,) = [p for part in open_corpus(str(tmp_path / "a.tar")).parts() for p in part.read(0)]
    assert "damaged (a header of" in picture.error


def jpeg(*, extra: bytes = b"", size: tuple[int, int] = (64, 64), cut: int | None = None) -> bytes:
    file = io.BytesIO()
    Image.new("L", size).save(file, "JPEG", progressive=cut is not None)
    data = file.getvalue()
    whole = data[:2] + extra + data[2:]
    return whole if cut is None else whole[:cut] + b"\xff\xd9"


def with_scans(n: int) -> bytes:
    """Return a progressive JPEG whose scans are repeated until there are n."""
    file = io.BytesIO()
    Image.new("L", (64, 64)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    start = data.rindex(b"\xff\xda")
    n_more = n - data.count(b"\xff\xda")
    return data[:-2] + data[start:-2] * n_more + data[-2:]


EXIF = b"\xff\xe1" + struct.pack(">H", 18) + b"Exif\0\0MM\0*\0\0\0\x08\0\0"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\n%%EOF",
            "not an image",
        ),
        (b"P6 8 8 255\n" + b"\0" * 192, "not an image"),
        (jpeg(extra=EXIF * 800), "EXIF"),
        (jpeg(size=(7999, 1000), cut=700), "cannot hold 7999 x 1000 pixels"),
        (jpeg(size=(2000, 1000)), ""),
        (jpeg(extra=EXIF), ""),
        (with_scans(101), "more than 100 scans"),
        (with_scans(100), ""),
        (jpeg(extra=b"\xff\xed" + struct.pack(">H", 402) + b"\xff\xda" * 200), ""),
    ],
)
def test_pictures_that_claim_too_much_or_start_programs_are_refused(
    data: bytes, problem: str
) -> None:
    if not problem:
        assert decode(data, "x")[0] == "JPEG"
        return
    with pytest.raises(DataError, match=f"x: .*{problem}"):
        decode(data, "x")


@pytest.mark.parametrize(
    "cell",
    [
        "[0x" + "f" * 100_000 + "]",
        "[" + "9" * 5_000 + "]",
        "[" + "-" * 100_000 + "1]",
        "[" + "(" * 50_000 + ")" * 50_000 + "]",
        "[1" + "+1" * 50_000 + "]",
        "[" + "'\\'" * 50_000 + "]",
        "[" + " " * 100_000 + "!]",
        "[b'a']",
        "['a', ['b']]",
        "['a' for x in y]",
    ],
)
def test_a_cell_that_is_no_flat_list_is_one_bad_row(cell: str) -> None:
    with pytest.raises(DataError, match="not a list of texts"):
        split_cell(cell)


def test_flat_lists_are_read_as_python_writes_them() -> None:
    for value in (
        ["a", "b'\"\\", "é\n\t"],
        [],
        [1, -2.5, None, True],
        ("x",),
        {"A": "(a)", "B": "]"},
    ):
        assert parse_literal(repr(value)) == value
