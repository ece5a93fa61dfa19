"""HTML pages: the one Jinja environment, with the style and the macros that all pages share."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from flipbench.reporting import formats

TEMPLATES = Path(__file__).parent / "templates"


def environment(*folders: Path) -> Environment:
    """Return an environment that looks for templates in ``folders``, then in the shared folder.

    All values are escaped, and an undefined name is an error.
    """
    pages = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["signed"] = formats.signed
    return pages
