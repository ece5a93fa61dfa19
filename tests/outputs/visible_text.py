"""What a reader sees of a page: its text, one block a line."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser

_HIDDEN = {"script", "style", "svg", "template", "head"}
_IN_LINE = {"a", "abbr", "b", "code", "em", "i", "kbd", "small", "span", "strong", "sub", "sup"}
_CELLS = {"td", "th"}


def visible_text(page: str) -> str:
    """Return the text of a page: blocks and table rows as lines, pictures by what they say.

    What a script unpacks to show it is part of that, as JSON.
    """
    reader = _Reader()
    reader.feed(page)
    lines = (" ".join(line.split()) for line in "".join(reader.parts).splitlines())
    return "\n".join(line for line in lines if line.strip("| ")) + "\n"


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.n_hidden = 0
        self.is_data = self.is_title = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.is_title |= tag == "title"
        self.is_data = tag == "script" and values.get("type") == "application/json"
        self.n_hidden += tag in _HIDDEN
        if tag in _CELLS:
            self.parts.append(" | ")
        elif tag not in _IN_LINE:
            self.parts.append("\n")
        for name in ("alt", "title", "aria-label", "placeholder"):
            if values.get(name) and not self.n_hidden:
                self.parts.append(f"[{values[name]}]")

    def handle_endtag(self, tag: str) -> None:
        self.n_hidden -= tag in _HIDDEN
        self.is_title &= tag != "title"
        self.is_data = False
        if tag not in _IN_LINE | _CELLS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self.is_data:
            self.parts.append(f"\n{_unpacked(data)}\n")
        elif self.is_title or not self.n_hidden:
            self.parts.append(re.sub(r"\s+", " ", data))


def _unpacked(data: str) -> str:
    if data.startswith("H4sI"):  # gzip in base64
        data = gzip.decompress(base64.b64decode(data)).decode()
    content = json.loads(data)
    parts = content.items() if isinstance(content, dict) else enumerate(content)
    lines = []
    for key, value in parts:
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        lines.append(f"{key}:")
        lines += (f"{name}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in entries)
    return "\n".join(lines)
