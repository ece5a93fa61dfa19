"""A section of a page: what was found, its tables and figures, and what they cannot show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from flipbench.reporting.figures import Figure
from flipbench.reporting.tables import Table
from flipbench.reporting.writers import markdown as table_markdown

Status = Literal["ok", "look", "defect", "not_run"]


@dataclass(frozen=True)
class PicturePair:
    """Two pictures side by side, as data URIs; one that could not be read is empty."""

    caption: str
    uris: tuple[str, str]


@dataclass(frozen=True)
class Section:
    """One part of an analysis, ready for a page and for Markdown.

    Attributes
    ----------
    key, title : str
        Its name in links and files; its heading.
    status : str
        ``ok`` (nothing found), ``look``, ``defect`` or ``not_run``.
    sentence : str
        The result in one or two sentences.
    headline : str
        What the page's first lines must say of it; empty if nothing.
    notes : tuple of str
        What the figures mean, and what they cannot show.
    data : dict
        Every number, for a JSON file: records, dataclasses and plain values.
    """

    key: str
    title: str
    status: Status
    sentence: str
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    headline: str = ""
    pairs: tuple[PicturePair, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


def markdown(sections: Sequence[Section], words: dict[Status, str]) -> str:
    """Return sections as Markdown; ``words`` says each status."""
    lines: list[str] = []
    for section in sections:
        lines += ["", f"## {section.title}: {words[section.status]}", "", section.sentence]
        for table in section.tables:
            lines += ["", table_markdown(table).rstrip()]
        lines += [line for note in section.notes for line in ("", note)]
    return "\n".join(lines) + "\n" if lines else ""
