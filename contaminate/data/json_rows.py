"""Find the rows of a JSON file without holding it in memory: one a line, or one list of them."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flipbench.core.errors import DataError
from flipbench.core.limits import bounded_lines

_PIECE = 1 << 20  # bytes read at a time
_LONGEST = 1 << 26  # characters of a row
_OPENING = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n,]*")


@dataclass(frozen=True)
class JsonRows:
    """The rows of a file, each read when it is asked for.

    Attributes
    ----------
    spans : array, shape (3 * n_rows,)
        Of each row in turn: first byte, number of bytes, and line (in a list: number).
    """

    path: Path
    spans: array[int]
    is_list: bool

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.spans) // 3

    def only(self, rows: Sequence[int]) -> JsonRows:
        """Return some of the rows."""
        values = (self.spans[3 * row + column] for row in rows for column in range(3))
        return replace(self, spans=array("Q", values))

    def name(self, row: int) -> str:
        """Return a row's name for messages."""
        number = self.spans[3 * row + 2]
        return f"{self.path.name}[{number}]" if self.is_list else f"{self.path.name}:{number}"

    def read(self, row: int) -> bytes:
        """Return a row's text."""
        start, n_bytes = self.spans[3 * row : 3 * row + 2]
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(n_bytes)


def find_rows(path: Path) -> tuple[JsonRows, str]:
    """Return all rows of a file, and its SHA-256; blank lines are no rows.

    A file that begins with ``[`` is one JSON list. The rows of other files are not parsed.

    Raises
    ------
    DataError
        If the file cannot be read, is not UTF-8, or is a list that is not JSON.
    """
    try:
        with path.open("rb") as file:
            is_list = file.read(4096).lstrip().startswith(b"[")
        spans, sha256 = _find_in_list(path) if is_list else _find_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    return JsonRows(path, spans, is_list), sha256


def _find_lines(path: Path) -> tuple[array[int], str]:
    spans, sha256, start = array("Q"), hashlib.sha256(), 0
    with path.open("rb") as file:
        for number, line in enumerate(bounded_lines(file, path), 1):
            sha256.update(line)
            if line.strip():
                line.decode()
                spans.extend((start, len(line), number))
            start += len(line)
    return spans, sha256.hexdigest()


def _find_in_list(path: Path) -> tuple[array[int], str]:
    spans, n_rows = array("Q"), 0
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
                spans.extend((start, n_bytes, n_rows))
                n_rows += 1
                start, at = start + n_bytes, end
            if len(text) - at > _LONGEST:
                break
    if not closed:
        raise DataError(f"{path}[{n_rows}]: the list is no JSON from here on")
    return spans, sha256.hexdigest()
