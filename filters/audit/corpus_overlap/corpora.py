"""Image corpora as streams of encoded pictures, in parts that can be read on their own."""

from __future__ import annotations

import hashlib
import itertools
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from flipbench.core.confined import UnsafePathError, read_confined
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.limits import FILE_BYTES
from flipbench.core.record_base import content_id
from flipbench.core.records import ImageRef

T = TypeVar("T")
IMAGE_ROOT = "image_root"
"""The setting that names the folder which paths and links of a corpus may lead to."""
SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"))
PART = 4096
"""Pictures in a part of a corpus that has no files of its own to divide it by."""
DAMAGE = (OSError, EOFError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile)
"""What a damaged, encrypted or unsupported archive raises."""


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
    """

    name: str
    fingerprint: str
    parts: Callable[[], Iterator[Part]]
    n: int | None = None


def folder_corpus(folder: Path, *, part_size: int = PART, root: Path | None = None) -> Corpus:
    """Return the pictures of a folder and its subfolders, sorted; linked folders are not entered.

    A picture's type is the name of the first subfolder. Files without a picture's suffix are not
    part of the corpus. Links that lead out of ``root``, by default the folder, are not read.

    Raises
    ------
    DataError
        If the folder holds no picture.
    """

    def read(names: Sequence[str], skip: int) -> Iterator[Picture]:
        for name in names[skip:]:
            first, _, rest = name.partition("/")
            picture = Picture(name, type=first if rest else "")
            yield read_picture(picture, "", name, folder, root or folder)

    digest, n = hashlib.sha256(), 0
    for name in picture_names(folder):
        digest.update(os.fsencode(name) + b"\0")
        n += 1
    return counted(
        Corpus(
            f"folder {folder}",
            content_id(digest.hexdigest(), part_size),
            lambda: chunks(picture_names(folder), part_size, read),
            n,
        )
    )


def read_picture(picture: Picture, where: str, name: str, folder: Path, root: Path) -> Picture:
    """Return a picture with its data from the file ``name`` of a folder, or with an error.

    The file must be below ``root``; ``where`` names the row, for the message.
    """
    try:
        path = (folder / name).absolute()
        return picture._replace(data=read_confined(path, root, name=name, setting=IMAGE_ROOT))
    except UnsafePathError as error:
        return picture._replace(error=f"{where}{error}")
    except OSError as error:
        return picture._replace(error=f"{where}{name}: {error.strerror}")


def picture_names(folder: Path, prefix: str = "") -> Iterator[str]:
    """Yield the paths below a folder of all files with a picture's suffix, sorted by folder.

    Raises
    ------
    DataError
        If it cannot be listed.
    """
    try:
        with os.scandir(folder) as listing:
            entries = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in listing)
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror}); check the path") from error
    for name, is_folder in entries:
        if is_folder:
            yield from picture_names(folder / name, f"{prefix}{name}/")
        elif is_picture(name):
            yield prefix + name


def is_picture(name: str) -> bool:
    """Return whether a file's name has a picture's suffix and is not hidden.

    >>> is_picture("scans/1.JPG"), is_picture("._1.jpg"), is_picture("notes.txt")
    (True, False, False)
    """
    path = Path(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


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
            first, _, rest = name.partition("/")
            if problem := FILE_BYTES.excess(member.file_size):
                yield Picture(name, type=first if rest else "", error=f"{name}: {problem}")
                continue
            try:
                yield Picture(name, archive.read(member), first if rest else "")
            except DAMAGE as error:
                yield Picture(name, type=first if rest else "", error=f"{name}: {error}")

    state = content_id([(m.filename, m.CRC, m.file_size) for m in members], part_size)
    return counted(
        Corpus(f"archive {path}", state, lambda: chunks(members, part_size, read), len(members))
    )


def store_corpus(
    refs: Iterable[ImageRef], store: ImageStore, *, types: Mapping[str, str] | None = None
) -> Corpus:
    """Return a benchmark's pictures, each once; their keys are the hashes of their bytes.

    Parameters
    ----------
    refs : iterable of ImageRef
    store : ImageStore
    types : mapping of str to str, optional
        Types of the pictures by sha256.

    Raises
    ------
    DataError
        If there is none.
    """
    distinct = {ref.sha256: ref for ref in refs}

    def read(part: Sequence[ImageRef], skip: int) -> Iterator[Picture]:
        for ref in part[skip:]:
            kind = (types or {}).get(ref.sha256, "")
            try:
                yield Picture(ref.sha256, store.read(ref), kind)
            except DataError as error:
                yield Picture(ref.sha256, type=kind, error=str(error))

    def parts() -> Iterator[Part]:
        return chunks(distinct.values(), PART, read)

    state = content_id(list(distinct), sorted((types or {}).items()))
    return counted(Corpus(f"image store {store.folder}", state, parts, len(distinct)))


def chunks(
    names: Iterable[T], size: int, read: Callable[[Sequence[T], int], Iterator[Picture]]
) -> Iterator[Part]:
    """Divide a listing into parts of ``size`` pictures; ``read(chunk, n)`` skips n of them."""
    left = iter(names)
    for number in itertools.count():
        if not (chunk := list(itertools.islice(left, size))):
            return
        yield Part(f"{number:06d}", partial(read, chunk))


def counted(corpus: Corpus) -> Corpus:
    """Return the corpus.

    Raises
    ------
    DataError
        If it is known to be empty.
    """
    if corpus.n == 0:
        raise DataError(
            f"{corpus.name}: no pictures; check the path, and that files end in .jpg, .png, …;"
            " archives are given by a pattern, such as FOLDER/*.tar"
        )
    return corpus
