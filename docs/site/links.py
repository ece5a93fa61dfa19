"""What pages need to be a site: no links out of it, and intervals that are no references.

On a code host a link to a file opens it; the site has no copy, and names the file instead.
"""

from __future__ import annotations

import re
from posixpath import normpath
from typing import Any

_INTERVAL = re.compile(r"\[([−+-]?[\d.][^\[\]()`]*)\](?!\()")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links to files outside ``docs/``, and to data files in it, by the file's name."""
    folder = page.file.src_uri.rpartition("/")[0]

    def named(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path = normpath(f"docs/{folder}/{target}" if folder else f"docs/{target}")
        if path.startswith("docs/") and path.endswith((".md", ".html", ".png", ".webp")):
            return match[0]
        name = path.removeprefix("../")
        return text if name in text else f"{text} (`{name}`)"

    return _plain_intervals(_LINK.sub(named, markdown))


def _plain_intervals(markdown: str) -> str:
    """Escape the brackets of intervals: two in a row read as a link with its address."""
    lines, in_code = [], False
    for line in markdown.split("\n"):
        in_code ^= line.lstrip().startswith("```")
        parts = [line] if in_code else line.split("`")
        if not in_code:
            parts[::2] = [_INTERVAL.sub(r"\\[\1\\]", part) for part in parts[::2]]
        lines.append("`".join(parts))
    return "\n".join(lines)
