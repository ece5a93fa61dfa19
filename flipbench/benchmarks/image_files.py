"""Image bytes from cells: base64, lists, and paths that may not leave the image folder."""

from __future__ import annotations

import ast
import base64
import binascii
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

from flipbench.benchmarks.report import Collector, Oddity, RowError, RowPlace
from flipbench.core.errors import DataError

MAX_FILE_BYTES = 256_000_000
_MAIN_FOLDER_SHARE = 0.9


def split_cell(cell: str) -> list[str]:
    """Return the texts of a cell: itself, or the members of a stringified list.

    >>> split_cell("['a.png', 'b.png']"), split_cell("a.png"), split_cell("")
    (['a.png', 'b.png'], ['a.png'], [])

    Raises
    ------
    RowError
        Where it looks like a list and is none of texts.
    """
    text = cell.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return [text] if text else []
    try:
        members = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        members = None
    if not isinstance(members, list) or not all(isinstance(m, str | int) for m in members):
        raise RowError("image", f"{text[:60]!r} is no list of texts", "write it as ['a', 'b']")
    return [str(member).strip() for member in members]


def decode_base64(text: str) -> bytes:
    """Return the bytes of a base64 text, with or without a ``data:`` head.

    Raises
    ------
    RowError
        Where it is not base64.
    """
    body = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        what = f"the image is not whole base64 ({error}; {len(text)} characters)"
        raise RowError("image", what, "write the cell anew") from error


@dataclass
class ImageFolder:
    """Reads images below ``root`` and nothing else.

    A relative path is relative to ``root``. An absolute path of another machine is looked up
    below ``root`` by its file name, and by its folders where the name is there more than once.

    Parameters
    ----------
    root : Path
        The folder; need not exist before it is used.
    """

    root: Path
    _by_name: dict[str, list[Path]] | None = None
    _moved: list[tuple[RowPlace, str]] = field(default_factory=list)

    def read(self, name: str, row: RowPlace) -> bytes:
        """Return the bytes of the image that a cell of ``row`` names.

        Raises
        ------
        RowError
            Where it is missing, ambiguous, too large, or outside ``root``.
        """
        try:
            path = self._locate(name, row)
            if not path.resolve().is_relative_to(self.root.resolve()):
                raise self._outside(name, "leads out of")
            if not path.is_file():
                what = f"the image {name!r} is not in {self.root}"
                raise RowError("image", what, "put it there, or mend image_root")
            if path.stat().st_size > MAX_FILE_BYTES:
                what = f"the image {name!r} has more than {MAX_FILE_BYTES:,} bytes"
                raise RowError("image", what, "make it smaller")
            return path.read_bytes()
        except (OSError, RuntimeError, ValueError) as error:  # too long a name, a loop of links
            what = f"the image {name[:120]!r} cannot be read ({error})"
            raise RowError("image", what, "mend the path") from error

    def note_moved(self, collector: Collector) -> None:
        """Tell what was odd about absolute paths: that there are any, and folders apart.

        In a perturbed release a row whose folder is not the others' may still be the original
        image.
        """
        if not self._moved:
            return
        folders = Counter(folder for _, folder in self._moved)
        main, n_main = folders.most_common(1)[0]
        collector.note(
            Oddity(
                "moved_images",
                f"{len(self._moved)} image paths are absolute ones of another machine ({main}/…)",
                f"they were found by file name in {self.root}",
            )
        )
        if n_main < _MAIN_FOLDER_SHARE * len(self._moved):
            return
        refused = {problem.row for problem in collector.problems if problem.fatal}
        for row, folder in self._moved:
            if folder != main and row.number not in refused:
                odd = Oddity(
                    "other_folder",
                    f"its image path lies in {folder}, the others' in {main}",
                    "see whether this is the image you mean and not, say, the unedited one",
                )
                collector.note(odd, row)

    def _locate(self, name: str, row: RowPlace) -> Path:
        pure: PurePath = PurePosixPath(name)
        if "\\" in name or re.match(r"[A-Za-z]:", name):
            pure = PureWindowsPath(name)
        if ".." in pure.parts or "\0" in name:
            raise self._outside(name, "leads out of")
        rooted = bool(pure.root or pure.drive)
        if not rooted:
            return self.root.joinpath(*pure.parts)
        if isinstance(pure, PurePosixPath):
            here = Path(name)
            if here.is_relative_to(self.root) or here.is_relative_to(self.root.resolve()):
                return here
            if here.is_file():
                raise self._outside(name, "lies outside")
        found = self._find(name, pure)
        self._moved.append((row, pure.parent.as_posix()))
        return found

    def _find(self, name: str, pure: PurePath) -> Path:
        if self._by_name is None:
            self._by_name = {}
            for folder, _, files in os.walk(self.root):
                for file in files:
                    self._by_name.setdefault(file, []).append(Path(folder).resolve() / file)
        candidates = self._by_name.get(pure.name, [])
        if not candidates:
            what = f"the image {name!r} is of another machine, and {self.root} has no {pure.name!r}"
            raise RowError("image", what, "set image_root to the folder that holds the images")
        scores = [_n_common_ending(path.parts, pure.parts) for path in candidates]
        best = [
            path for path, score in zip(candidates, scores, strict=True) if score == max(scores)
        ]
        if len(best) > 1:
            what = f"the image {name!r} may be {best[0]} or {best[1]}"
            raise RowError("image", what, "set image_root to the folder that is meant")
        return best[0]

    def _outside(self, name: str, how: str) -> RowError:
        what = f"the image path {name!r} {how} the image folder {self.root}"
        return RowError("image", what, "paths must stay inside image_root; move the file or set it")


def image_folder(image_root: Path | None, default: Path) -> ImageFolder:
    """Return the folder that images are read from.

    Raises
    ------
    DataError
        Where ``image_root`` is given and is no folder.
    """
    if image_root is not None and not image_root.is_dir():
        raise DataError(f"{image_root}: image_root is not a folder; mend the path")
    return ImageFolder(image_root or default)


def _n_common_ending(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    n = 0
    for one, other in zip(reversed(a), reversed(b), strict=False):
        if one != other:
            break
        n += 1
    return n
