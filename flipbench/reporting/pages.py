"""HTML pages: the one Jinja environment, with the style and the macros that all pages share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from flipbench.core.files import markdown_text, printable
from flipbench.reporting import formats

TEMPLATES = Path(__file__).parent / "templates"


def environment(*folders: Path) -> Environment:
    """Return an environment that looks for templates in ``folders``, then in the shared folder.

    All values are escaped and `printable`, and an undefined name is an error. In an attribute that
    a script compares, ``{{ name | e }}`` is escaped alone.
    """
    pages = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["signed"] = formats.signed
    return pages


def text_environment(*folders: Path) -> Environment:
    """Return an environment for sentences and Markdown, with the functions of `formats` as filters.

    Nothing is escaped but by the filter ``md``, and an undefined name is an error.
    """
    texts = Environment(
        loader=FileSystemLoader(folders),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    texts.filters |= {
        name: getattr(formats, name)
        for name in ("as_sentence", "number", "p_equation", "p_value", "percent", "points", "rate")
    }
    texts.filters |= {"md": markdown_text, "n": "{:,}".format, "interval": formats.interval}
    return texts


def _shown(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
