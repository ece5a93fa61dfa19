"""HTML pages: the one Jinja environment, with the style and the macros that all pages share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from flipbench.core.files import markdown_text, printable
from flipbench.reporting import formats

_FILTERS = ("as_sentence", "number", "p_equation", "p_value", "percent", "points", "rate")
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


def text_environment(folder: Path, *, flat: bool = False) -> Environment:
    """Return an environment for sentences and Markdown, with functions of `formats` as filters.

    Nothing is escaped but by the filter ``md``, and an undefined name is an error. With ``flat``,
    values and calls have no line breaks, so that only the template's own count.
    """
    texts = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        finalize=_flat if flat else None,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    texts.filters |= {name: getattr(formats, name) for name in _FILTERS}
    texts.filters |= {"md": markdown_text, "n": "{:,}".format}
    return texts


def paragraphs(text: str) -> list[str]:
    r"""Return the paragraphs of a text, each on one line.

    >>> paragraphs("one\nline\n \n\nanother\n")
    ['one line', 'another']
    """
    lines = (re.sub("[ \n]+", " ", part).strip() for part in re.split(r"\n\s*\n", text))
    return [line for line in lines if line]


def texts_in(path: Path) -> dict[str, Any]:
    """Return the texts of a YAML file beside the code that prints them."""
    texts: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return texts


def _flat(value: Any) -> Any:
    return re.sub(r"[\r\n]", " ", value) if isinstance(value, str) else value


def _shown(value: Any) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
