"""Image corpora as streams of encoded pictures, in parts that can be read on their own.

Folders, zip archives, WebDataset shards and parquet files are read here rather than by `datasets`,
which reads whole members, row groups and files that a path leads to, of any size and anywhere.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import itertools
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from flipbench.benchmarks.tables import parse_json
from flipbench.core.confined import UnsafePathError, read_confined
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.images import ImageStore
from flipbench.core.limits import FILE_BYTES, TABLE_BYTES
from flipbench.core.records import ImageRef, content_id

T = TypeVar("T")
IMAGE_ROOT = "image_root"
"""The setting that names the folder which paths and links of a corpus may lead to."""
SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"))
PART = 4096
"""Pictures in a part of a corpus that has no files of its own to divide it by."""
DAMAGE = (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile)
"""What a damaged, encrypted or unsupported archive raises."""

_HUB = "hf:"
_BRACES = re.compile(r"\{([^{}]+)\}")
_N_ROWS = 64  # of a parquet file in memory at a time
_HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
_MAX_HEADER = 2**20
_END = 2**16  # bytes at either end of a file, which tell whether it is still the same

Columns = dict[str, str | None]
"""The columns of a table that hold the ``image``, its ``key`` and its ``type``."""


class Picture(NamedTuple):
    """One entry of a corpus.

    Attributes
    ----------
    key : str
        Its name in the corpus.
    data : bytes
        The encoded picture; empty if it could not be read.
    type : str
        Modality, view or other kind; empty if unknown.
    error : str
        Why it could not be read.
    """

    key: str
    data: bytes = b""
    type: str = ""
    error: str = ""


@dataclass(frozen=True)
class Part:
    """A part of a corpus; ``read(n)`` yields its pictures from the ``n``-th on, in fixed order."""

    name: str
    read: Callable[[int], Iterator[Picture]]


@dataclass(frozen=True)
class Corpus:
    """A corpus of pictures.

    Attributes
    ----------
    name : str
        For messages and tables.
    fingerprint : str
        Hash of what tells whether the corpus is still the same: the names of its pictures, or
        names, sizes, and both ends of its files; not of every byte.
    parts : callable
        Yields the parts, in fixed order.
    n : int, optional
        Number of pictures, if known before reading.

    Raises
    ------
    DataError
        If it is known to be empty.
    """

    name: str
    fingerprint: str
    parts: Callable[[], Iterator[Part]]
    n: int | None = None

    def __post_init__(self) -> None:
        if self.n == 0:
            raise DataError(
                f"{self.name}: no pictures; check the path, and that files end in .jpg, .png, …;"
                " archives are given by a pattern, such as FOLDER/*.tar"
            )


def open_corpus(
    path: str,
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
    path : str
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
    columns: Columns = {"image": image_column, "key": key_column, "type": type_field}
    folder = Path(path)
    if path.startswith(_HUB):
        corpus = _hub_corpus(path.removeprefix(_HUB), columns, name, split, revision)
    elif any((folder / f).exists() for f in ("state.json", "dataset_dict.json")):
        corpus = _saved_corpus(folder, columns, split, image_root)
    elif folder.is_dir():
        corpus = folder_corpus(folder, root=image_root)
    elif path.endswith(".parquet"):
        corpus = _parquet_corpus(path, columns, image_root)
    elif path.endswith((".tar", ".tar.gz", ".tgz")):
        corpus = _tar_corpus(path, type_field)
    elif path.endswith(".zip") and folder.is_file():
        corpus = zip_corpus(folder)
    else:
        raise ConfigError(
            f"{path}: no such corpus; give an existing folder, a .zip, .tar or .parquet file or"
            " pattern, or hf:owner/name"
        )
    if image_root is None:
        return corpus
    # with another root, pictures that could not be read are tried again
    return replace(corpus, fingerprint=content_id(corpus.fingerprint, str(image_root.resolve())))


# --- folders, archives, and a benchmark's image store ---------------------------------------------


def folder_corpus(folder: Path, *, part_size: int = PART, root: Path | None = None) -> Corpus:
    """Return the pictures of a folder and its subfolders, sorted; linked folders are not entered.

    A picture's type is the name of the first subfolder. Files without a picture's suffix are not
    part of the corpus. Links that lead out of ``root``, by default the folder, are not read.

    Raises
    ------
    DataError
        If the folder holds no picture, or a folder cannot be listed.
    """

    def read(names: Sequence[str], skip: int) -> Iterator[Picture]:
        for name in names[skip:]:
            yield _from_file(Picture(name, type=_top_folder(name)), "", name, folder, root)

    digest, n = hashlib.sha256(), 0
    for name in _picture_names(folder):
        digest.update(os.fsencode(name) + b"\0")
        n += 1
    return Corpus(
        f"folder {folder}",
        content_id(digest.hexdigest(), part_size),
        lambda: _chunks(_picture_names(folder), part_size, read),
        n,
    )


def zip_corpus(path: Path, *, part_size: int = PART) -> Corpus:
    """Return the pictures of a zip archive, which is not extracted; types as `folder_corpus`.

    Raises
    ------
    DataError
        If it is no zip archive, or holds no picture.
    """
    try:
        archive = zipfile.ZipFile(path)
    except DAMAGE as error:
        raise DataError(f"{path}: not a readable zip archive ({error}); copy it again") from error
    members = [member for member in archive.infolist() if is_picture(member.filename)]

    def read(part: Sequence[zipfile.ZipInfo], skip: int) -> Iterator[Picture]:
        for member in part[skip:]:
            name = member.filename
            data, problem = b"", FILE_BYTES.excess(member.file_size)
            if not problem:
                try:
                    data = archive.read(member)
                except DAMAGE as error:
                    problem = str(error)
            yield Picture(name, data, _top_folder(name), problem and f"{name}: {problem}")

    state = content_id([(m.filename, m.CRC, m.file_size) for m in members], part_size)
    return Corpus(f"archive {path}", state, lambda: _chunks(members, part_size, read), len(members))


def store_corpus(
    refs: Iterable[ImageRef], store: ImageStore, *, types: Mapping[str, str] | None = None
) -> Corpus:
    """Return a benchmark's pictures, each once; their keys are the hashes of their bytes.

    Parameters
    ----------
    types : mapping of str to str, optional
        Types of the pictures by sha256.

    Raises
    ------
    DataError
        If there is none.
    """
    distinct = {ref.sha256: ref for ref in refs}
    types = types or {}

    def read(part: Sequence[ImageRef], skip: int) -> Iterator[Picture]:
        for ref in part[skip:]:
            picture = Picture(ref.sha256, type=types.get(ref.sha256, ""))
            try:
                yield picture._replace(data=store.read(ref))
            except DataError as error:
                yield picture._replace(error=str(error))

    return Corpus(
        f"image store {store.folder}",
        content_id(list(distinct), sorted(types.items())),
        lambda: _chunks(distinct.values(), PART, read),
        len(distinct),
    )


def is_picture(name: str) -> bool:
    """Return whether a file's name has a picture's suffix and is not hidden.

    >>> is_picture("scans/1.JPG"), is_picture("._1.jpg"), is_picture("notes.txt")
    (True, False, False)
    """
    path = Path(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _picture_names(folder: Path, prefix: str = "") -> Iterator[str]:
    """Yield the paths below a folder of all files with a picture's suffix, sorted by folder."""
    try:
        with os.scandir(folder) as listing:
            entries = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in listing)
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror}); check the path") from error
    for name, is_folder in entries:
        if is_folder:
            yield from _picture_names(folder / name, f"{prefix}{name}/")
        elif is_picture(name):
            yield prefix + name


def _top_folder(name: str) -> str:
    return name.partition("/")[0] if "/" in name else ""


def _from_file(picture: Picture, row: str, name: str, folder: Path, root: Path | None) -> Picture:
    """Return the picture with its data from a file below ``root``, or with an error."""
    try:
        path = (folder / name).absolute()
        data = read_confined(path, root or folder, name=name, setting=IMAGE_ROOT)
        return picture._replace(data=data)
    except UnsafePathError as error:
        return picture._replace(error=f"{row}{error}")
    except OSError as error:
        return picture._replace(error=f"{row}{name}: {error.strerror}")


def _chunks(
    entries: Iterable[T], size: int, read: Callable[[Sequence[T], int], Iterator[Picture]]
) -> Iterator[Part]:
    """Divide a listing into parts of ``size`` pictures; ``read(chunk, n)`` skips n of them."""
    iterator = iter(entries)
    for number in itertools.count():
        if not (chunk := list(itertools.islice(iterator, size))):
            return
        yield Part(f"{number:06d}", partial(read, chunk))


# --- files named by a pattern ---------------------------------------------------------------------


def expand(pattern: str) -> list[tuple[str, Path]]:
    """Return the files of a pattern by their names below their common folder, sorted.

    ``{000..099}`` counts, ``{a,b}`` lists; ``*``, ``**``, ``?`` and ``[...]`` match names.

    Raises
    ------
    ConfigError
        If a file that the braces name is missing, or nothing matches.
    """
    files: set[str] = set()
    for name in _without_braces(pattern):
        matches = glob.glob(name, recursive=True) if glob.has_magic(name) else [name]
        if not matches or not all(map(os.path.isfile, matches)):
            raise ConfigError(f"{pattern}: no file {name}; check the path, and download all shards")
        files.update(matches)
    top = os.path.commonpath([os.path.dirname(file) for file in files])
    return [(Path(os.path.relpath(file, top)).as_posix(), Path(file)) for file in sorted(files)]


def _without_braces(pattern: str) -> Iterator[str]:
    braces = _BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    choices = braces[1].split(",")
    if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", braces[1]):
        low, high = numbers.groups()
        choices = [f"{n:0{len(low)}d}" for n in range(int(low), int(high) + 1)]
    for choice in choices:
        yield from _without_braces(pattern[: braces.start()] + choice + pattern[braces.end() :])


def _file_state(names: Sequence[tuple[str, Path]], options: Any) -> str:
    """Return a hash of files' names, sizes, beginnings and ends, and of the options."""
    states: list[tuple[str, int, str]] = []
    for name, path in names:
        with path.open("rb") as file:
            head = file.read(_END)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _END))
            states.append((name, size, hashlib.sha256(head + file.read()).hexdigest()))
    return content_id(states, options)


def _tar_corpus(pattern: str, type_field: str | None) -> Corpus:
    names = expand(pattern)
    parts = [Part(name, partial(_read_tar, name, path, type_field)) for name, path in names]
    return Corpus(f"shards {pattern}", _file_state(names, type_field), lambda: iter(parts))


def _read_tar(name: str, path: Path, type_field: str | None, skip: int) -> Iterator[Picture]:
    """Yield a shard's pictures; the files of a sample share their name up to its first dot."""
    pending: list[Picture] = []
    sample, kind, n_seen = "", "", 0
    error_entry = None
    try:
        with path.open("rb") as file:  # other compression may need gigabytes to unpack
            mode: Any = "r:gz" if file.read(2) == b"\x1f\x8b" else "r:"
        with tarfile.open(path, mode, tarinfo=_BoundedMember) as tar:
            while member := _next_member(tar):
                tar.members = []  # type: ignore[attr-defined]  # or the whole index stays in memory
                folder, _, filename = member.name.rpartition("/")
                stem = f"{folder}/{filename.partition('.')[0]}"
                if stem != sample:
                    yield from (picture._replace(type=kind) for picture in pending)
                    pending, sample, kind = [], stem, ""
                if not member.isfile():
                    continue
                if is_picture(filename):
                    n_seen += 1
                    if n_seen > skip:
                        pending.append(_member(tar, member, f"{name}/{member.name}"))
                elif type_field and filename.endswith(".json") and n_seen >= skip:
                    kind = _json_field(_member(tar, member, "").data, type_field)
            if tar.fileobj.tell() < tar.offset + tarfile.BLOCKSIZE:
                raise EOFError("it ends without an end mark")
    except (tarfile.TarError, *DAMAGE) as error:
        problem = f"{path}: the archive is damaged ({error}); copy it again"
        error_entry = Picture(name, error=problem)
    yield from (picture._replace(type=kind) for picture in pending)
    if error_entry:
        yield error_entry


def _next_member(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
    """Return the next member; what is skipped of a compressed shard is unpacked in large pieces."""
    file: Any = tar.fileobj
    if isinstance(file, gzip.GzipFile):
        while (n_bytes := tar.offset - file.tell()) > 0 and file.read(min(n_bytes, 2**20)):
            pass
    return tar.next()


class _BoundedMember(tarfile.TarInfo):
    """A member whose long name or attributes, which are read as a whole, have a bounded size."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _HEADERS and self.size > _MAX_HEADER:
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


# --- tables ---------------------------------------------------------------------------------------


def _parquet_corpus(pattern: str, columns: Columns, root: Path | None) -> Corpus:
    from pyarrow import ArrowException, parquet

    names = expand(pattern)
    parts: list[Part] = []
    n = 0
    for name, path in names:
        try:
            file = parquet.ParquetFile(path)
        except (ArrowException, OSError) as error:
            raise DataError(f"{path}: not a readable parquet file ({error}); copy it") from error
        with file:
            types = {field.name: str(field.type) for field in file.schema_arrow}
            selected = _select_columns(columns, types, str(path))
            groups: list[int] = []
            start = stop = 0
            for group in range(file.num_row_groups):
                groups.append(group)
                stop += file.metadata.row_group(group).num_rows
                if stop - start >= PART or group == file.num_row_groups - 1:
                    read = partial(_read_parquet, name, path, groups, start, selected, root)
                    parts.append(Part(f"{name}:{start}", read))
                    start, groups = stop, []
            n += file.metadata.num_rows
    return Corpus(f"table {pattern}", _file_state(names, columns), lambda: iter(parts), n)


def _read_parquet(
    name: str,
    path: Path,
    groups: Sequence[int],
    row: int,
    columns: Columns,
    root: Path | None,
    skip: int,
) -> Iterator[Picture]:
    """Yield the pictures of row groups, the first of which starts at ``row``."""
    from pyarrow import ArrowException, parquet

    names = [column for column in columns.values() if column]
    try:
        with parquet.ParquetFile(path) as file:
            for group in groups:
                about = file.metadata.row_group(group)
                problem = _group_excess(about, names)
                n_entries = 1 if problem else about.num_rows
                stop = row + about.num_rows
                if skip >= n_entries:
                    skip, row = skip - n_entries, stop
                    continue
                if problem:
                    rows = f"its row group of rows {row:,} to {stop - 1:,}"
                    yield Picture(f"{name}:{row}", error=f"{path}: {rows} unpacks to {problem}")
                    row = stop
                    continue
                skip, next_row = 0, row + skip
                for batch in file.iter_batches(_N_ROWS, row_groups=[group], columns=names):
                    for number in range(max(row, next_row), row + len(batch)):
                        cells = batch.slice(number - row, 1).to_pylist()[0]  # one picture at a time
                        yield _from_row(cells, columns, f"{name}:{number}", path.parent, root)
                    row += len(batch)
    except (ArrowException, *DAMAGE) as error:
        problem = f"{path}: damaged at row {row} or after ({error}); copy it again"
        yield Picture(f"{name}:{row}", error=problem)


def _group_excess(group: Any, columns: Sequence[str]) -> str:
    """Return what is wrong with the size of a row group's columns, which are unpacked as a whole.

    ``group`` is the metadata: a `pyarrow.parquet.RowGroupMetaData`.
    """
    chunks = (group.column(number) for number in range(group.num_columns))
    return TABLE_BYTES.excess(
        sum(c.total_uncompressed_size for c in chunks if c.path_in_schema.split(".")[0] in columns)
    )


def _saved_corpus(path: Path, columns: Columns, split: str, root: Path | None) -> Corpus:
    import datasets

    data = datasets.load_from_disk(str(path))
    if isinstance(data, datasets.DatasetDict):
        if split not in data:
            raise ConfigError(f"{path}: no split {split!r}; its splits are {', '.join(data)}")
        data = data[split]
    data, selected = _select(data, columns, str(path))

    def read(rows: Sequence[int], skip: int) -> Iterator[Picture]:
        for row in rows[skip:]:
            yield _from_row(data[row], selected, f"{path.name}:{row}", path, root)

    return Corpus(
        f"data set {path}",
        content_id(data._fingerprint, selected),
        lambda: _chunks(range(len(data)), PART, read),
        len(data),
    )


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
    data, selected = _select(stream, columns, hub_id)

    def read(number: int, skip: int) -> Iterator[Picture]:
        shard = data.shard(num_shards=data.num_shards, index=number)
        row = skip
        try:
            for row, cells in enumerate(shard.skip(skip), skip):
                row_name = f"{hub_id.rpartition('/')[2]}:{number}:{row}"
                yield _from_row(cells, selected, row_name, None, None)
        except DAMAGE as error:
            raise DataError(
                f"hf:{hub_id}, shard {number}, row {row} or after: {error}; check the network and"
                " run the same command again to continue"
            ) from error

    parts = [Part(f"{number:06d}", partial(read, number)) for number in range(data.num_shards)]
    state = content_id(hub_id, name, split, revision, data.num_shards, selected)
    return Corpus(f"data set {hub_id}", state, lambda: iter(parts))


def _select(data: Any, columns: Columns, source: str) -> tuple[Any, Columns]:
    """Return a data set with the columns to read, its pictures not decoded."""
    import datasets

    if data.features is None:
        data = data._resolve_features()
    types = {column: repr(kind) for column, kind in data.features.items()}
    selected = _select_columns(columns, types, source)
    data = data.select_columns([column for column in selected.values() if column])
    if isinstance(data.features[selected["image"]], datasets.Image):
        data = data.cast_column(selected["image"], datasets.Image(decode=False))
    return data, selected


def _select_columns(columns: Columns, types: Mapping[str, str], source: str) -> Columns:
    """Return the columns to read; by default the only one that can hold pictures."""
    for column in columns.values():
        if column is not None and column not in types:
            raise ConfigError(f"{source}: no column {column!r}; its columns are {', '.join(types)}")
    if columns["image"] is not None:
        return columns
    fitting = [c for c, kind in types.items() if "Image" in kind or "binary" in kind]
    if len(fitting) != 1:
        names = ", ".join(fitting) or "none of " + ", ".join(types)
        raise ConfigError(f"{source}: name the column of pictures (image_column); {names} fit")
    return columns | {"image": fitting[0]}


def _from_row(
    cells: Mapping[str, Any], columns: Columns, row: str, folder: Path | None, root: Path | None
) -> Picture:
    """Return the picture in a row: bytes, or a struct of bytes and a path below ``folder``."""
    key = row if columns["key"] is None else str(cells[columns["key"]])
    kind = cells[columns["type"]] if columns["type"] else None
    picture = Picture(key, type="" if kind is None else str(kind))
    cell = cells[columns["image"] or ""]
    if isinstance(cell, dict):
        data, path = cell.get("bytes"), cell.get("path")
        if data is None and path and folder is not None:
            return _from_file(picture, f"{row}: ", str(path), folder, root)
        cell = data
    if not isinstance(cell, bytes) or not cell:
        return picture._replace(error=f"{row}: no picture in column {columns['image']!r}")
    if problem := FILE_BYTES.excess(len(cell)):
        return picture._replace(error=f"{row}: {problem}")
    return picture._replace(data=cell)
