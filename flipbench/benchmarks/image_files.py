"""Image bytes from cells: base64, lists, and paths confined to the image folder."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from os.path import commonprefix
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

from flipbench.benchmarks.report import Collector, Oddity, RowPlace
from flipbench.benchmarks.tables import RowError, parse_literal
from flipbench.core.confined import UnsafePathError, read_confined
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef

_MAX_PATH = 4_096
_MAIN_FOLDER_SHARE = 0.9


def split_cell(cell: str) -> list[str]:
    """Return the texts of a cell: itself, or the members of a stringified list.

    >>> split_cell("['a.png', 'b.png']"), split_cell("a.png"), split_cell("")
    (['a.png', 'b.png'], ['a.png'], [])

    Raises
    ------
    RowError
        If it looks like a list but is not a list of texts.
    """
    text = cell.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return [text] if text else []
    try:
        members = parse_literal(text)
    except ValueError:
        members = None
    if not isinstance(members, list) or not all(isinstance(m, str | int) for m in members):
        problem = f"{text[:60]!r} is not a list of texts"
        raise RowError("image", problem, "write it as ['a', 'b']")
    return [str(member).strip() for member in members]


def is_base64(text: str) -> bool:
    """Return whether a text must be an image itself: a data URL, or longer than any path."""
    return text.startswith("data:") or len(text) > _MAX_PATH


def decode_base64(text: str) -> bytes:
    """Return the bytes of a base64 text, with or without a ``data:`` prefix.

    Raises
    ------
    RowError
        If it is not base64.
    """
    body = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        problem = f"the image is not valid base64 ({error}; {len(text)} characters)"
        raise RowError("image", problem, "write the cell again") from error


@dataclass
class ImageFolder:
    """Stores the images below ``root`` that cells name, and nothing else.

    A relative path is relative to ``root``. An absolute path from another machine is looked up
    below ``root`` by its file name, and by its folders if several files have that name. The folder
    need not exist until an image is read.
    """

    root: Path
    store: ImageStore
    _by_name: dict[str, list[Path]] | None = None
    _relocated: list[tuple[RowPlace, str]] = field(default_factory=list)

    def put(self, name: str, row: RowPlace) -> ImageRef:
        """Store the image that a cell of ``row`` names.

        Raises
        ------
        RowError
            If it is missing, ambiguous, too large, or outside ``root``.
        DataError
            If it is not an image.
        """
        try:
            path = self._locate(name, row)
            data = read_confined(path.absolute(), self.root, name=name, setting="image_root")
        except UnsafePathError as error:
            raise RowError("image", f"the image {error.problem}", error.remedy) from error
        except FileNotFoundError as error:
            problem = f"the image {name!r} is not in {self.root}"
            raise RowError("image", problem, "put it there, or fix image_root") from error
        except (OSError, ValueError) as error:  # too long a name, a loop of links
            problem = f"the image {name[:120]!r} cannot be read ({error})"
            raise RowError("image", problem, "fix the path") from error
        return self.store.put(data, row.where)

    def refs(self, value: Any, column: str, row: RowPlace) -> tuple[ImageRef, ...]:
        """Store the images of a cell: bytes, base64, paths, ``datasets`` structs, or a list.

        Raises
        ------
        RowError
            As `put`, or if the cell holds something else.
        DataError
            If it is not an image.
        """
        refs = []
        for image in value if isinstance(value, list) else [value]:
            if image is None:
                continue
            is_struct = isinstance(image, dict)
            data, path = (image.get("bytes"), image.get("path")) if is_struct else (image, image)
            if isinstance(data, bytes):
                refs.append(self.store.put(data, row.where))
            elif isinstance(path, str) and is_base64(path):
                refs.append(self.store.put(decode_base64(path), row.where))
            elif isinstance(path, str) and path:
                refs.append(self.put(path, row))
            else:
                problem = f"{column!r} contains {type(image).__name__}, not an image"
                remedy = "map columns.images to images, bytes or paths"
                raise RowError("image", problem, remedy)
        return tuple(refs)

    def note_relocated(self, collector: Collector) -> None:
        """Report absolute paths from another machine, and rows whose folder differs from the rest.

        In a perturbed release, such a row may still show the original image.
        """
        if not self._relocated:
            return
        folders = Counter(folder for _, folder in self._relocated)
        main, n_main = folders.most_common(1)[0]
        collector.note(
            Oddity(
                "moved_images",
                f"{len(self._relocated)} image paths are absolute, from another machine ({main}/…)",
                f"they were found by file name in {self.root}",
            )
        )
        if n_main < _MAIN_FOLDER_SHARE * len(self._relocated):
            return
        refused_rows = {problem.row for problem in collector.problems if problem.fatal}
        for row, folder in self._relocated:
            if folder != main and row.number not in refused_rows:
                odd = Oddity(
                    "other_folder",
                    f"its image path is in {folder}, most others are in {main}",
                    "check that this is the intended image and not, say, the unedited one",
                )
                collector.note(odd, row)

    def _locate(self, name: str, row: RowPlace) -> Path:
        pure: PurePath = PurePosixPath(name)
        if "\\" in name or re.match(r"[A-Za-z]:", name):
            pure = PureWindowsPath(name)
        if ".." in pure.parts or "\0" in name:
            raise self._outside(name, "leads out of")
        if not (pure.root or pure.drive):
            return self.root.joinpath(*pure.parts)
        if isinstance(pure, PurePosixPath):
            absolute = Path(name)
            if absolute.is_relative_to(self.root) or absolute.is_relative_to(self.root.resolve()):
                return absolute
            if absolute.is_file():
                raise self._outside(name, "is outside")
        path = self._find(name, pure)
        self._relocated.append((row, pure.parent.as_posix()))
        return path

    def _find(self, name: str, pure: PurePath) -> Path:
        if self._by_name is None:
            self._by_name = {}
            for folder, _, files in os.walk(self.root):
                for file in files:
                    self._by_name.setdefault(file, []).append(Path(folder).resolve() / file)
        candidates = self._by_name.get(pure.name, [])
        if not candidates:
            problem = f"the path {name!r} is from another machine; {self.root} has no {pure.name!r}"
            raise RowError(
                "image", problem, "set image_root to the folder that contains the images"
            )
        scores = [len(commonprefix([p.parts[::-1], pure.parts[::-1]])) for p in candidates]
        best = [
            path for path, score in zip(candidates, scores, strict=True) if score == max(scores)
        ]
        if len(best) > 1:
            problem = f"the image {name!r} could be {best[0]} or {best[1]}"
            raise RowError("image", problem, "set image_root to the right folder")
        return best[0]

    def _outside(self, name: str, relation: str) -> RowError:
        problem = f"the image path {name!r} {relation} the image folder {self.root}"
        return RowError(
            "image", problem, "paths must stay inside image_root; move the file or set it"
        )


def image_folder(image_root: Path | None, default: Path, store: ImageStore) -> ImageFolder:
    """Return the folder that images are read from, and the store they go to.

    Raises
    ------
    DataError
        If ``image_root`` is given but is not a folder.
    """
    if image_root is not None and not image_root.is_dir():
        raise DataError(f"{image_root}: image_root is not a folder; fix the path")
    return ImageFolder(image_root or default, store)
