"""Read what a server sends, and keep the API key out of everything that leaves the client."""

from __future__ import annotations

import html
import json
import logging
import re
from typing import Any
from urllib.parse import quote

_HIDDEN = "***"
_PLACEHOLDERS = ("none", "empty", "dummy")  # given to servers that need no key
_MIN_KEY = 5
_FRAGMENT = 12
_BLOCK = _FRAGMENT // 2
_MAX_ERROR = 300
_MAX_DEPTH = 100
_MASK = re.compile(r"(?:[*•●█#]{2,}|(?:%2[Aa]){2,}|%E2%80%A6|…|\.{3,}|[xX]{4,})")
_PART = re.compile(r"[\w+/=~-]*")
_MAX_PART = 200
_OTHER_KEY = re.compile(r"\b(?:sk|key)-[\w*-]{4,}")  # some servers name keys of their own
_BEARER = re.compile(r"\bbearer\s+[^\s\"',;}]+", re.IGNORECASE)
_LOGGERS = (
    "httpx",
    "httpx2",
    "httpcore.connection",
    "httpcore.http11",
    "httpcore2.connection",
    "httpcore2.http11",
    "openai",
    "openai._base_client",
)


class Scrubber:
    """Remove the API key that a client sends from text, JSON and JSONL that its server sent.

    The key is removed as it is, as JSON, HTML or a URL spells it, in pieces of 12 or more
    characters, and partly masked ("abcd****wxyz"); a mask keeps at most the last four characters.
    A key of fewer than five characters, and a placeholder such as "EMPTY", is no secret.

    >>> Scrubber("q7Zp-3fKx-91Lm-vT").text("no access for q7Zp-3fKx-91Lm-vT")
    'no access for ***'
    >>> Scrubber("q7Zp-3fKx-91Lm-vT").json({"error": "q7Zp-3fK*****m-vT"})
    {'error': '***'}
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._spellings: tuple[str, ...] = ()
        if len(key) < _MIN_KEY or key.casefold() in _PLACEHOLDERS:
            return
        as_json = json.dumps(key)[1:-1]
        spellings = (key, as_json, as_json.replace("/", "\\/"), html.escape(key), quote(key, ""))
        self._spellings = tuple(dict.fromkeys(spellings))
        pieces = [piece for text in self._spellings for piece in _pieces(text, _FRAGMENT, 1)]
        blocks = [block for text in self._spellings for block in _pieces(text, _BLOCK, _BLOCK)]
        self._piece = re.compile("|".join(re.escape(piece) for piece in dict.fromkeys(pieces)))
        self._blocks = tuple(dict.fromkeys(blocks))  # any piece contains one of them

    def text(self, text: str) -> str:
        """Return a text without the key."""
        if not self._spellings:
            return text
        if any(block in text for block in self._blocks):
            text = self._without_pieces(text)
        return self._without_masked(text)

    def error(self, text: str) -> str:
        """Return a server's message on one line, shortened, without this or any other key."""
        text = _OTHER_KEY.sub(_HIDDEN, self.text(text))
        text = _BEARER.sub(f"Bearer {_HIDDEN}", text)
        return " ".join(text.split())[:_MAX_ERROR]

    def json(self, value: Any) -> Any:
        """Return a JSON value, as `parse` returns it, without the key in any string."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(element) for element in value]
        if isinstance(value, dict):
            return {self.text(name): self.json(element) for name, element in value.items()}
        return value

    def lines(self, data: bytes) -> bytes:
        """Return a JSONL file without the key; lines without it, valid or not, stay as they are."""
        return b"\n".join(self._line(line) for line in data.split(b"\n"))

    def guard_logs(self) -> None:
        """Remove the key from what the HTTP packages log, such as a server's status line."""
        if self._spellings:
            _FILTER.scrubbers[self._key] = self
            for name in _LOGGERS:
                logging.getLogger(name).addFilter(_FILTER)  # added once only

    def _line(self, line: bytes) -> bytes:
        try:
            value = parse(line)
        except ValueError:
            return self.text(line.decode("latin-1")).encode("latin-1")
        clean = self.json(value)
        return line if clean == value else json.dumps(clean).encode()

    def _without_pieces(self, text: str) -> str:
        parts, position = [], 0
        while match := self._piece.search(text, position):
            end = match.end()
            while end < len(text) and self._contains(text[match.start() : end + 1]):
                end += 1
            parts += [text[position : match.start()], _HIDDEN]
            position = end
        return "".join([*parts, text[position:]])

    def _contains(self, piece: str) -> bool:
        return any(piece in spelling for spelling in self._spellings)

    def _without_masked(self, text: str) -> str:
        """Hide what stands around a mask if it belongs to the key."""
        parts, position = [], 0
        for mask in _MASK.finditer(text):
            start, end = mask.span()
            if start < position or not self._reveals_key(
                text[max(position, start - _MAX_PART) : start], text[end : end + 5]
            ):
                continue
            prefix = text[max(position, start - _MAX_PART) : start]
            part = _PART.match(prefix[::-1])
            start -= part.end() if part else 0
            part = _PART.match(text, end, end + _MAX_PART)
            parts += [text[position:start], _HIDDEN]
            position = part.end() if part else end
        return "".join([*parts, text[position:]])

    def _reveals_key(self, prefix: str, suffix: str) -> bool:
        """Whether a text ends as the key begins, or either text has five letters of the key."""
        if prefix[-3:] in self._key and len(prefix) > 2:
            longest = min(len(prefix), len(self._key))
            if any(prefix.endswith(self._key[:n]) for n in range(3, longest + 1)):
                return True
        return any(len(part) == 5 and part in self._key for part in (prefix[-5:], suffix))


def parse(data: bytes) -> Any:
    """Return the JSON value that a server sent.

    Raises
    ------
    ValueError
        If it is not JSON in UTF-8, is nested more than 100 levels deep, or contains half a
        surrogate pair, which no file can store.
    """
    text = data.decode("utf-8-sig")
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            break
    else:
        raise ValueError("nested too deeply")
    if "\\ud" in text or "\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()
    return value


class _LogFilter(logging.Filter):
    """Scrubs the messages of a logger with the scrubbers of all clients."""

    def __init__(self) -> None:
        super().__init__()
        self.scrubbers: dict[str, Scrubber] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._clean(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = self._clean(logging.Formatter().formatException(record.exc_info))
        return True

    def _clean(self, text: str) -> str:
        for scrubber in list(self.scrubbers.values()):
            text = scrubber.text(text)
        return text


_FILTER = _LogFilter()


def _pieces(text: str, length: int, step: int) -> list[str]:
    """Return every ``step``-th piece of a length; the whole text if it is shorter."""
    starts = range(0, max(1, len(text) - length + 1), step)
    return [text[start : start + length] for start in starts]


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
