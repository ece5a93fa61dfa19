"""Corpora in many files or on the hub: WebDataset shards, parquet files, Hugging Face data sets."""

from __future__ import annotations

import glob
import gzip
import hashlib
import itertools
import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flipbench.benchmarks.tables import parse_json
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.limits import FILE_BYTES
from flipbench.core.record_base import content_id

from .corpora import (
    DAMAGE,
    PART,
    Corpus,
    Part,
    Picture,
    chunks,
    counted,
    folder_corpus,
    is_picture,
    read_picture,
    zip_corpus,
)

_BRACES = re.compile(r"\{([^{}]+)\}")
_N_ROWS = 64  # of a parquet file in memory at a time
_HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
_LONGEST_HEADER = 2**20
_END = 2**16  # bytes at either end of a file, which tell whether it is still the same
_HUB = "hf:"
Names = list[tuple[str, Path]]
Columns = dict[str, str | None]


def open_corpus(
    where: str,
    *,
    image_column: str | None = None,
    key_column: str | None = None,
    type_field: str | None = None,
    name: str | None = None,
    split: str = "train",
    revision: str | None = None,
    image_root: Path | None = None,
) -> Corpus:
    """Return the corpus at a path, pattern or hub id.

    Parameters
    ----------
    where : str
        A folder of pictures; a ``.zip`` archive; ``.tar`` shards (WebDataset) or ``.parquet``
        files, as a path or pattern (``pmc-{000..099}.tar``, ``data/*.parquet``); a data set
        saved by ``save_to_disk``; or ``hf:owner/name``, which is streamed.
    image_column, key_column : str, optional
        Columns of a table; by default the only column of pictures, and the file and row.
    type_field : str, optional
        The column, or the field in a WebDataset sample's JSON file, with the picture's type. In
        folders and archives the type is the first subfolder's name.
    name, split, revision : str, optional
        Configuration, split and revision of a Hugging Face data set.
    image_root : Path, optional
        The folder that paths in rows, and links in folders, may lead to; by default the corpus'
        own. Pictures elsewhere count as unreadable.

    Raises
    ------
    ConfigError
        If no such path, column or split exists.
    DataError
        If there is no picture, or a file cannot be read at all.
    """
    columns = {"image": image_column, "key": key_column, "type": type_field}
    corpus = _open(where, columns, name, split, revision, image_root)
    if image_root is None:
        return corpus
    # with another root, pictures that could not be read are tried again
    return replace(corpus, fingerprint=content_id(corpus.fingerprint, str(image_root.resolve())))


def _open(
    where: str,
    columns: Columns,
    name: str | None,
    split: str,
    revision: str | None,
    image_root: Path | None,
) -> Corpus:
    path = Path(where)
    if where.startswith(_HUB):
        return _hub_corpus(where[len(_HUB) :], columns, name, split, revision)
    if path.is_dir():
        if any((path / f).exists() for f in ("state.json", "dataset_dict.json")):
            return _saved_corpus(path, columns, split, image_root)
        return folder_corpus(path, root=image_root)
    if where.endswith(".parquet"):
        return _parquet_corpus(where, columns, image_root)
    if where.endswith((".tar", ".tar.gz", ".tgz")):
        return _tar_corpus(where, columns["type"])
    if where.endswith(".zip") and path.is_file():
        return zip_corpus(path)
    raise ConfigError(
        f"{where}: no such corpus; give an existing folder, a .zip, .tar or .parquet file or"
        " pattern, or hf:owner/name"
    )


def expand(pattern: str) -> Names:
    """Return the files of a pattern by their names below their common folder, sorted.

    ``{000..099}`` counts, ``{a,b}`` lists; ``*``, ``**``, ``?`` and ``[...]`` match names.

    Raises
    ------
    ConfigError
        If a file that the braces name is missing, or nothing matches.
    """
    files: set[str] = set()
    for name in _unbraced(pattern):
        found = glob.glob(name, recursive=True) if glob.has_magic(name) else [name]
        if not found or not all(map(os.path.isfile, found)):
            raise ConfigError(f"{pattern}: no file {name}; check the path, and download all shards")
        files.update(found)
    top = os.path.commonpath([os.path.dirname(file) for file in files])
    return [(Path(os.path.relpath(file, top)).as_posix(), Path(file)) for file in sorted(files)]


def _unbraced(pattern: str) -> Iterator[str]:
    braces = _BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    if counted := re.fullmatch(r"(\d+)\.\.(\d+)", braces[1]):
        first, last = counted.groups()
        choices = [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
    else:
        choices = braces[1].split(",")
    for choice in choices:
        yield from _unbraced(pattern[: braces.start()] + choice + pattern[braces.end() :])


def _file_state(names: Names, *options: Any) -> str:
    return content_id([(name, *_ends(path)) for name, path in names], *options)


def _ends(path: Path) -> tuple[int, str]:
    """Return a file's size, and a hash of how it begins and ends."""
    with path.open("rb") as file:
        head = file.read(_END)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END))
        return size, hashlib.sha256(head + file.read()).hexdigest()


def _tar_corpus(pattern: str, type_field: str | None) -> Corpus:
    names = expand(pattern)

    def parts() -> Iterator[Part]:
        for name, path in names:
            yield Part(name, partial(_read_tar, name, path, type_field))

    return Corpus(f"shards {pattern}", _file_state(names, type_field), parts)


def _read_tar(name: str, path: Path, type_field: str | None, skip: int) -> Iterator[Picture]:
    """Yield a shard's pictures; the files of a sample share their name up to its first dot."""
    pending: list[Picture] = []
    sample, kind, n_seen = "", "", 0
    failure = None
    tar = None
    try:
        tar = _open_tar(path)
        while member := _next_member(tar):
            tar.members = []  # type: ignore[attr-defined]  # or the whole index stays in memory
            folder, _, file = member.name.rpartition("/")
            stem = f"{folder}/{file.partition('.')[0]}"
            if stem != sample:
                yield from (picture._replace(type=kind) for picture in pending)
                pending, sample, kind = [], stem, ""
            if not member.isfile():
                continue
            if is_picture(file):
                n_seen += 1
                if n_seen > skip:
                    pending.append(_member(tar, member, f"{name}/{member.name}"))
            elif type_field and file.endswith(".json") and n_seen >= skip:
                kind = _json_field(_member(tar, member, "").data, type_field)
        if tar.fileobj.tell() < tar.offset + tarfile.BLOCKSIZE:
            raise EOFError("it ends without an end mark")
    except (tarfile.TarError, *DAMAGE) as error:
        failure = Picture(name, error=f"{path}: the archive is damaged ({error}); copy it again")
    finally:
        if tar is not None:
            tar.close()
    yield from (picture._replace(type=kind) for picture in pending)
    if failure:
        yield failure


def _open_tar(path: Path) -> tarfile.TarFile:
    """Open a shard, compressed by gzip or not; other methods may need gigabytes to unpack."""
    with path.open("rb") as file:
        mode: Any = "r:gz" if file.read(2) == b"\x1f\x8b" else "r:"
    return tarfile.open(path, mode, tarinfo=_BoundedMember)


def _next_member(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
    """Return the next member; what is skipped of a compressed shard is unpacked in large pieces."""
    file: Any = tar.fileobj
    if isinstance(file, gzip.GzipFile):
        while (left := tar.offset - file.tell()) > 0 and file.read(min(left, 2**20)):
            pass
    return tar.next()


class _BoundedMember(tarfile.TarInfo):
    """A member whose long name or attributes, which are read as a whole, have a bounded size."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        return member


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo, key: str) -> Picture:
    if problem := FILE_BYTES.excess(member.size):  # of a sparse file: the size it unpacks to
        return Picture(key, error=f"{key}: {problem}")
    file = tar.extractfile(member)
    data = file.read() if file else b""
    if len(data) < member.size:
        return Picture(key, error=f"{key}: only {len(data)} of {member.size} bytes are there")
    return Picture(key, data)


def _json_field(data: bytes, field: str) -> str:
    try:
        value = parse_json(data)[field]
    except (ValueError, KeyError, TypeError):
        return ""
    return "" if value is None else str(value)


def _parquet_corpus(pattern: str, columns: Columns, root: Path | None) -> Corpus:
    from pyarrow import ArrowException, parquet

    names = expand(pattern)
    spans: list[tuple[str, Path, list[int], int]] = []
    n = 0
    wanted: Columns = {}
    for name, path in names:
        try:
            file = parquet.ParquetFile(path)
        except (ArrowException, OSError) as error:
            raise DataError(f"{path}: not a readable parquet file ({error}); copy it") from error
        with file:
            wanted = _columns(columns, {f.name: str(f.type) for f in file.schema_arrow}, str(path))
            groups: list[int] = []
            first, size = 0, 0
            for group in range(file.num_row_groups):
                groups.append(group)
                size += file.metadata.row_group(group).num_rows
                if size >= PART or group == file.num_row_groups - 1:
                    spans.append((name, path, groups, first))
                    first, size, groups = first + size, 0, []
            n += file.metadata.num_rows

    def parts() -> Iterator[Part]:
        for name, path, groups, first in spans:
            yield Part(
                f"{name}:{first}", partial(_read_parquet, name, path, groups, first, wanted, root)
            )

    return counted(Corpus(f"table {pattern}", _file_state(names, columns), parts, n))


def _read_parquet(
    name: str,
    path: Path,
    groups: list[int],
    first: int,
    columns: Columns,
    root: Path | None,
    skip: int,
) -> Iterator[Picture]:
    from pyarrow import ArrowException, parquet

    row, place = first, Place(path.parent, root)
    try:
        with parquet.ParquetFile(path) as file:
            while groups and row + file.metadata.row_group(groups[0]).num_rows <= first + skip:
                row += file.metadata.row_group(groups[0]).num_rows
                groups = groups[1:]
            names = [c for c in columns.values() if c]
            for batch in file.iter_batches(_N_ROWS, row_groups=groups, columns=names):
                for number in range(max(row, first + skip), row + len(batch)):
                    cells = batch.slice(number - row, 1).to_pylist()[0]  # one picture at a time
                    yield _from_row(cells, columns, f"{name}:{number}", place)
                row += len(batch)
    except (ArrowException, *DAMAGE) as error:
        why = f"{path}: damaged at row {row} or after ({error}); copy it again"
        yield Picture(f"{name}:{row}", error=why)


def _columns(columns: Columns, types: dict[str, str], where: str) -> Columns:
    """Return the columns to read; the image column is the only one that can hold pictures."""
    for column in columns.values():
        if column is not None and column not in types:
            known = ", ".join(types)
            raise ConfigError(f"{where}: no column {column!r}; its columns are {known}")
    if columns["image"] is not None:
        return columns
    fitting = [c for c, kind in types.items() if "Image" in kind or "binary" in kind]
    if len(fitting) != 1:
        found = ", ".join(fitting) or "none of " + ", ".join(types)
        raise ConfigError(f"{where}: name the column of pictures (image_column); {found} fit")
    return columns | {"image": fitting[0]}


class Place(NamedTuple):
    """Where the paths in a corpus' rows start, and the folder that they may lead to."""

    folder: Path
    root: Path | None


def _from_row(cells: dict[str, Any], columns: Columns, where: str, place: Place | None) -> Picture:
    """Return the picture in a row: bytes, or a struct of bytes and path."""
    key = where if columns["key"] is None else str(cells[columns["key"]])
    kind = cells[columns["type"]] if columns["type"] else ""
    kind = "" if kind is None else str(kind)
    cell = cells[columns["image"] or ""]
    if isinstance(cell, dict):
        data, path = cell.get("bytes"), cell.get("path")
        if data is None and path and place is not None:
            folder, root = place
            picture = Picture(key, type=kind)
            return read_picture(picture, f"{where}: ", str(path), folder, root or folder)
        cell = data
    if not isinstance(cell, bytes) or not cell:
        return Picture(key, type=kind, error=f"{where}: no picture in column {columns['image']!r}")
    if problem := FILE_BYTES.excess(len(cell)):
        return Picture(key, type=kind, error=f"{where}: {problem}")
    return Picture(key, cell, kind)


def _saved_corpus(path: Path, columns: Columns, split: str, root: Path | None) -> Corpus:
    import datasets

    data = datasets.load_from_disk(str(path))
    if isinstance(data, datasets.DatasetDict):
        if split not in data:
            raise ConfigError(f"{path}: no split {split!r}; its splits are {', '.join(data)}")
        data = data[split]
    data, wanted = _selected(data, columns, str(path))

    def read(rows: Iterable[int], skip: int) -> Iterator[Picture]:
        for row in itertools.islice(rows, skip, None):
            yield _from_row(data[row], wanted, f"{path.name}:{row}", Place(path, root))

    def parts() -> Iterator[Part]:
        return chunks(range(len(data)), PART, read)

    state = content_id(data._fingerprint, wanted)
    return counted(Corpus(f"data set {path}", state, parts, len(data)))


def _hub_corpus(
    hub_id: str, columns: Columns, name: str | None, split: str, revision: str | None
) -> Corpus:
    import datasets

    try:
        stream = datasets.load_dataset(hub_id, name, split=split, revision=revision, streaming=True)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise ConfigError(
            f"hf:{hub_id}: cannot be opened ({error}); check id, configuration, split and network"
        ) from error
    data, wanted = _selected(stream, columns, hub_id)

    def read(number: int, skip: int) -> Iterator[Picture]:
        shard = data.shard(num_shards=data.num_shards, index=number)
        row = skip
        try:
            for row, cells in enumerate(shard.skip(skip), skip):
                where = f"{hub_id.rpartition('/')[2]}:{number}:{row}"
                yield _from_row(cells, wanted, where, None)
        except DAMAGE as error:
            raise DataError(
                f"hf:{hub_id}, shard {number}, row {row} or after: {error}; check the network and"
                " run the same command again to continue"
            ) from error

    def parts() -> Iterator[Part]:
        for number in range(data.num_shards):
            yield Part(f"{number:06d}", partial(read, number))

    state = content_id(hub_id, name, split, revision, data.num_shards, wanted)
    return Corpus(f"data set {hub_id}", state, parts)


def _selected(data: Any, columns: Columns, where: str) -> tuple[Any, Columns]:
    """Return a data set with the columns to read, its pictures not decoded."""
    import datasets

    if data.features is None:
        data = data._resolve_features()
    wanted = _columns(columns, {c: repr(kind) for c, kind in data.features.items()}, where)
    data = data.select_columns([c for c in wanted.values() if c])
    if isinstance(data.features[wanted["image"]], datasets.Image):
        data = data.cast_column(wanted["image"], datasets.Image(decode=False))
    return data, wanted
