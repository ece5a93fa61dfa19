"""Every kind of corpus yields the same pictures, names what it cannot read, and skips exactly."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flipbench.core.errors import ConfigError, DataError
from flipbench.core.images import ImageStore
from flipbench.filters.audit.corpus_overlap.corpora import (
    Corpus,
    Picture,
    expand,
    folder_corpus,
    open_corpus,
    store_corpus,
    zip_corpus,
)


def pictures(corpus: Corpus) -> list[Picture]:
    return [picture for part in corpus.parts() for picture in part.read(0)]


def kind_of(number: int) -> str:
    return "ct" if number < 6 else "mri"


def make_folder(files: list[bytes], folder: Path) -> str:
    for number, data in enumerate(files):
        path = folder / kind_of(number) / "deep" / f"{number:02d}.JPG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / "notes.txt").write_text("no picture")
    (folder / "ct" / "._00.jpg").write_bytes(b"resource fork")
    return str(folder)


def make_zip(files: list[bytes], folder: Path) -> str:
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        archive.writestr("notes.txt", "no picture")
        for number, data in enumerate(files):
            archive.writestr(f"{kind_of(number)}/{number:02d}.jpg", data)
    return str(folder / "all.zip")


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def make_tars(files: list[bytes], folder: Path, suffix: str = "tar") -> str:
    folder.mkdir(parents=True)
    for shard in range(3):
        mode = "w:gz" if suffix.endswith("gz") else "w"
        with tarfile.open(folder / f"pmc-{shard:03d}.{suffix}", mode) as tar:  # type: ignore[call-overload]
            for number in range(4 * shard, 4 * shard + 4):
                about = json.dumps({"modality": kind_of(number)}).encode()
                if number % 2:
                    add(tar, f"{number:02d}.json", about)
                add(tar, f"{number:02d}.seen.jpg", files[number])
                add(tar, f"{number:02d}.txt", b"a caption")
                if not number % 2:
                    add(tar, f"{number:02d}.json", about)
    return str(folder / f"pmc-{{000..002}}.{suffix}")


def make_gzipped_tars(files: list[bytes], folder: Path) -> str:
    return make_tars(files, folder, "tar.gz")


def make_parquet(files: list[bytes], folder: Path) -> str:
    folder.mkdir(parents=True)
    for half in range(2):
        rows = range(6 * half, 6 * half + 6)
        table = pa.table(
            {
                "caption": [f"picture {row}" for row in rows],
                "image": [{"bytes": files[row], "path": f"{row}.jpg"} for row in rows],
                "modality": [kind_of(row) for row in rows],
            }
        )
        pq.write_table(table, folder / f"{half}.parquet", row_group_size=2)
    return str(folder / "*.parquet")


def make_saved(files: list[bytes], folder: Path) -> str:
    rows = [{"image": {"bytes": data, "path": None}} for data in files]
    data = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())
    data = data.add_column("modality", [kind_of(row) for row in range(len(files))])
    data = data.add_column("other", list(range(len(files))))
    datasets.DatasetDict({"train": data}).save_to_disk(str(folder))
    return str(folder)


def make_stream(files: list[bytes], folder: Path) -> str:
    make_parquet(files, folder)
    return f"hf:{folder}"


KINDS: dict[str, Callable[[list[bytes], Path], str]] = {
    "folder": make_folder,
    "zip": make_zip,
    "tar": make_tars,
    "tar.gz": make_gzipped_tars,
    "parquet": make_parquet,
    "saved data set": make_saved,
    "streamed data set": make_stream,
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_yields_its_pictures_with_types(
    kind: str, files: list[bytes], tmp_path: Path
) -> None:
    where = KINDS[kind](files, tmp_path / "corpus")
    corpus = open_corpus(where, type_field=None if kind in ("folder", "zip") else "modality")
    found = pictures(corpus)
    assert [picture.data for picture in found] == files
    assert [picture.type for picture in found] == [kind_of(n) for n in range(12)]
    assert len({picture.key for picture in found}) == 12
    assert not any(picture.error for picture in found)
    assert corpus.n in (12, None)
    for part in corpus.parts():
        whole = list(part.read(0))
        for skip in range(len(whole) + 1):
            assert list(part.read(skip)) == whole[skip:]
    again = open_corpus(where, type_field=None if kind in ("folder", "zip") else "modality")
    assert again.fingerprint == corpus.fingerprint and pictures(again) == found


@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "parquet", "saved data set"])
def test_an_added_picture_changes_the_fingerprint(
    kind: str, files: list[bytes], tmp_path: Path
) -> None:
    first = open_corpus(KINDS[kind](files, tmp_path / "first"))
    changed = [files[1], *files[1:]] if kind != "folder" else [*files, files[0]]
    second = open_corpus(KINDS[kind](changed, tmp_path / "second"))
    assert first.fingerprint != second.fingerprint


def test_parts_divide_a_long_listing(files: list[bytes], tmp_path: Path) -> None:
    folder = Path(make_folder(files, tmp_path / "folder"))
    archive = Path(make_zip(files, tmp_path / "zip"))
    for corpus in (folder_corpus(folder, part_size=5), zip_corpus(archive, part_size=5)):
        sizes = [len(list(part.read(0))) for part in corpus.parts()]
        assert sizes == [5, 5, 2] and len({part.name for part in corpus.parts()}) == 3


def test_a_picture_that_cannot_be_read_is_named(files: list[bytes], tmp_path: Path) -> None:
    folder = Path(make_folder(files, tmp_path / "corpus"))
    corpus = folder_corpus(folder)
    (folder / "ct" / "deep" / "03.JPG").unlink()
    (folder / "ct" / "deep" / "03.JPG").symlink_to(folder / "gone")
    found = pictures(corpus)
    assert [(p.key, p.error) for p in found if p.error] == [
        ("ct/deep/03.JPG", "ct/deep/03.JPG: No such file or directory")
    ]
    assert len(found) == 12


def test_a_damaged_zip_member_is_named(files: list[bytes], tmp_path: Path) -> None:
    path = Path(make_zip(files, tmp_path / "corpus"))
    data = bytearray(path.read_bytes())
    at = data.index(files[5]) + 100
    data[at : at + 4] = b"\0\1\2\3"
    path.write_bytes(bytes(data))
    found = pictures(open_corpus(str(path)))
    bad = [picture for picture in found if picture.error]
    assert [picture.key for picture in bad] == ["ct/05.jpg"] and "CRC" in bad[0].error
    assert len(found) == 12


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_a_truncated_shard_loses_only_its_end_and_says_so(
    suffix: str, files: list[bytes], tmp_path: Path
) -> None:
    pattern = make_tars(files, tmp_path / "corpus", suffix)
    path = tmp_path / "corpus" / f"pmc-001.{suffix}"
    path.write_bytes(path.read_bytes()[:3000])
    found = pictures(open_corpus(pattern))
    good = [picture.data for picture in found if not picture.error]
    assert files[:4] == good[:4] and files[8:] == good[-4:]
    errors = [picture for picture in found if picture.error]
    assert errors and all("pmc-001" in picture.key for picture in errors)


def test_a_file_that_is_no_shard_is_named(files: list[bytes], tmp_path: Path) -> None:
    pattern = make_tars(files, tmp_path / "corpus")
    (tmp_path / "corpus" / "pmc-001.tar").write_bytes(b"not an archive")
    errors = [picture for picture in pictures(open_corpus(pattern)) if picture.error]
    assert [picture.key for picture in errors] == ["pmc-001.tar"]
    assert "the archive is damaged" in errors[0].error


def test_rows_without_a_picture_are_named(files: list[bytes], tmp_path: Path) -> None:
    table = pa.table({"name": ["a", "b", "c"], "image": [files[0], None, b""]})
    pq.write_table(table, tmp_path / "x.parquet")
    found = pictures(open_corpus(str(tmp_path / "x.parquet"), key_column="name"))
    assert [picture.key for picture in found] == ["a", "b", "c"]
    assert found[1].error == "x.parquet:1: no picture in column 'image'" and found[2].error


def test_a_struct_may_hold_a_path_instead_of_bytes(files: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "0.jpg").write_bytes(files[0])
    cells = [{"bytes": None, "path": name} for name in ("0.jpg", "1.jpg")]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"image": pa.array(cells, kind)}), tmp_path / "x.parquet")
    first, second = pictures(open_corpus(str(tmp_path / "x.parquet")))
    assert first.data == files[0]
    assert second.error == "x.parquet:1: 1.jpg: No such file or directory"


@pytest.fixture
def paths(files: list[bytes], tmp_path: Path) -> Callable[[str], str]:
    """Return a function that gives a path to what lies outside of the corpus, or is no picture."""
    inside, outside = tmp_path / "corpus", tmp_path / "patient.jpg"
    inside.mkdir()
    outside.write_bytes(files[1])
    (inside / "ok.jpg").write_bytes(files[0])
    (inside / "out.jpg").symlink_to(outside)
    (inside / "zero.jpg").symlink_to("/dev/zero")
    os.mkfifo(inside / "fifo.jpg")
    (inside / "sub.jpg").mkdir()
    (inside / "loop.jpg").symlink_to("loop.jpg")
    with (inside / "sparse.jpg").open("wb") as file:
        file.truncate(1 << 40)
    return lambda name: name.format(outside=outside)


NO_PICTURE = ["zero.jpg", "fifo.jpg", "sub.jpg", "loop.jpg", "sparse.jpg", "/dev/zero", "a\0b"]
OUTSIDE = ["out.jpg", "{outside}", "../patient.jpg", "../corpus/../patient.jpg"]


def in_corpus(form: str, names: list[str], inside: Path) -> str:
    """Write a corpus whose rows have these paths."""
    cells = [{"bytes": None, "path": name} for name in names]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    if form == "parquet":
        pq.write_table(pa.table({"image": pa.array(cells, kind)}), inside / "x.parquet")
        return str(inside / "x.parquet")
    datasets.Dataset.from_dict({"image": cells}).save_to_disk(str(inside))
    return str(inside)


@pytest.mark.parametrize("form", ["parquet", "saved"])
def test_rows_do_not_lead_out_of_the_corpus(
    form: str, paths: Callable[[str], str], files: list[bytes], tmp_path: Path
) -> None:
    """Each is refused by itself, at once; a wider root is a setting."""
    inside = tmp_path / "corpus"
    names = ["ok.jpg", *map(paths, OUTSIDE), *NO_PICTURE]
    where = in_corpus(form, names, inside)
    corpus = open_corpus(where, image_column="image")
    first, *rest = pictures(corpus)
    assert first.data == files[0] and not any(picture.data for picture in rest)
    assert all("image_root" in picture.error for picture in rest[: len(OUTSIDE)])
    assert all(picture.error for picture in rest)
    wider = open_corpus(where, image_column="image", image_root=tmp_path)
    assert wider.fingerprint != corpus.fingerprint, "or its failures would be found as stored"
    wide = pictures(wider)
    assert [p.data for p in wide[1 : 1 + len(OUTSIDE)]] == [files[1]] * len(OUTSIDE)
    assert not any(picture.data for picture in wide[1 + len(OUTSIDE) :])


def test_links_of_a_folder_do_not_lead_out_of_it(
    paths: Callable[[str], str], files: list[bytes], tmp_path: Path
) -> None:
    """A pipe, a device and a sparse file neither hang nor fill the memory."""
    found = {p.key: p for p in pictures(open_corpus(str(tmp_path / "corpus")))}
    assert found["ok.jpg"].data == files[0]
    assert {name for name, p in found.items() if p.error} == {*found} - {"ok.jpg"}
    assert "image_root" in found["out.jpg"].error
    wide = {p.key: p for p in pictures(open_corpus(str(tmp_path / "corpus"), image_root=tmp_path))}
    assert wide["out.jpg"].data == files[1] and not wide["zero.jpg"].data


def test_a_benchmarks_store_is_a_corpus(files: list[bytes], store: ImageStore) -> None:
    refs = [store.put(data, "picture") for data in files[:3]]
    corpus = store_corpus([*refs, refs[0]], store, types={refs[1].sha256: "ct"})
    store.path(refs[2]).unlink()
    found = pictures(corpus)
    assert [picture.key for picture in found] == [ref.sha256 for ref in refs]
    assert [picture.type for picture in found] == ["", "ct", ""]
    assert found[0].data == files[0] and "the image is missing" in found[2].error


def test_patterns_count_list_and_match(tmp_path: Path) -> None:
    for name in ("a-08.tar", "a-09.tar", "a-10.tar", "b-09.tar"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a-08.tar").touch()
    names = [name for name, _ in expand(f"{tmp_path}/a-{{08..10}}.tar")]
    assert names == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert [name for name, _ in expand(f"{tmp_path}/{{b,a}}-09.tar")] == ["a-09.tar", "b-09.tar"]
    assert len(expand(f"{tmp_path}/*.tar")) == 4
    assert [name for name, _ in expand(f"{tmp_path}/**/a-08.tar")] == ["a-08.tar", "more/a-08.tar"]
    with pytest.raises(ConfigError, match="no file .*a-11.tar"):
        expand(f"{tmp_path}/a-{{08..11}}.tar")


def test_what_is_no_corpus_is_refused(files: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no pictures; check the path"):
        open_corpus(str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="no such corpus; give an existing folder"):
        open_corpus(str(tmp_path / "nowhere"))
    (tmp_path / "bad.zip").write_bytes(b"no archive")
    with pytest.raises(DataError, match="not a readable zip"):
        open_corpus(str(tmp_path / "bad.zip"))
    (tmp_path / "bad.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match="not a readable parquet"):
        open_corpus(str(tmp_path / "bad.parquet"))
    tables = make_parquet(files, tmp_path / "tables")
    with pytest.raises(ConfigError, match="no column 'picture'; its columns are caption, image"):
        open_corpus(tables, image_column="picture")
    with pytest.raises(ConfigError, match="no split 'test'; its splits are train"):
        open_corpus(make_saved(files, tmp_path / "saved"), split="test")
    pq.write_table(pa.table({"a": [b"1"], "b": [b"2"]}), tmp_path / "two.parquet")
    with pytest.raises(ConfigError, match=r"name the column of pictures .*a, b fit"):
        open_corpus(str(tmp_path / "two.parquet"))
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_corpus(f"hf:{tmp_path}/nothing")
