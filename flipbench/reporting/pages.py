"""HTML pages: the one Jinja environment, with the style and the macros that all pages share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from flipbench.core.files import printable
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


def _shown(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
