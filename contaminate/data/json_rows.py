"""Find the rows of a JSON file without holding it in memory: one a line, or one list of them."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flipbench.core.errors import DataError
from flipbench.core.limits import bounded_lines

_PIECE = 1 << 20  # bytes read at a time
_LONGEST = 1 << 26  # characters of a row
_OPENING = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n,]*")


@dataclass(frozen=True)
class Places:
    """Where rows stand in a file: first byte, number of bytes, and line (in a list: number).

    Shapes: (n_rows,) each.
    """

    starts: array[int]
    lengths: array[int]
    numbers: array[int]
    is_list: bool

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.starts)

    def add(self, start: int, length: int, number: int) -> None:
        """Add a row."""
        self.starts.append(start)
        self.lengths.append(length)
        self.numbers.append(number)

    def only(self, rows: Sequence[int]) -> Places:
        """Return the places of some of the rows."""
        columns = (self.starts, self.lengths, self.numbers)
        starts, lengths, numbers = (array("Q", [c[i] for i in rows]) for c in columns)
        return Places(starts, lengths, numbers, self.is_list)

    def name(self, path: Path, row: int) -> str:
        """Return a row's name for messages."""
        number = self.numbers[row]
        return f"{path.name}[{number}]" if self.is_list else f"{path.name}:{number}"

    def read(self, path: Path, row: int) -> bytes:
        """Return a row's text."""
        with path.open("rb") as file:
            file.seek(self.starts[row])
            return file.read(self.lengths[row])

    def texts(self, path: Path, rows: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Yield each of the rows, in order, with its text."""
        with path.open("rb") as file:
            for row in map(int, rows):
                file.seek(self.starts[row])
                yield row, file.read(self.lengths[row])


def find_rows(path: Path) -> tuple[Places, str]:
    """Return the places of all rows of a file, and its SHA-256; blank lines are no rows.

    A file that begins with ``[`` is one JSON list. The rows of other files are not parsed.

    Raises
    ------
    DataError
        If the file cannot be read, is not UTF-8, or is a list that is not JSON.
    """
    try:
        with path.open("rb") as file:
            is_list = file.read(4096).lstrip().startswith(b"[")
        return _list_rows(path) if is_list else _line_rows(path)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _line_rows(path: Path) -> tuple[Places, str]:
    places = Places(array("Q"), array("Q"), array("Q"), False)
    sha256, start = hashlib.sha256(), 0
    with path.open("rb") as file:
        for number, line in enumerate(bounded_lines(file, path), 1):
            sha256.update(line)
            if line.strip():
                line.decode()
                places.add(start, len(line), number)
            start += len(line)
    return places, sha256.hexdigest()


def _list_rows(path: Path) -> tuple[Places, str]:
    places = Places(array("Q"), array("Q"), array("Q"), True)
    sha256, decoder = hashlib.sha256(), json.JSONDecoder()
    decode = codecs.getincrementaldecoder("utf-8")().decode
    text, at, start = "", 0, 0  # text[at] is the file's byte `start`
    opened = closed = False
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            sha256.update(piece)
            if closed:
                continue
            text, at = text[at:] + decode(piece), 0
            while not closed:
                gap = (_BETWEEN if opened else _OPENING).match(text, at)
                if gap is None:
                    break
                opened, start, at = True, start + gap.end() - at, gap.end()
                closed = text.startswith("]", at)
                try:
                    _, end = decoder.raw_decode(text, at)
                except (ValueError, RecursionError):
                    break  # the row may go on in the next piece
                if end == len(text):
                    break
                n_bytes = len(text[at:end].encode())
                places.add(start, n_bytes, len(places))
                start, at = start + n_bytes, end
            if len(text) - at > _LONGEST:
                break
    if not closed:
        raise DataError(f"{path}[{len(places)}]: the list is no JSON from here on")
    return places, sha256.hexdigest()
