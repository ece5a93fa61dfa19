"""The pages of the site that are made from the code: front page, keys, commands, records."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import mkdocs_gen_files
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.cli import get_docs_for_click
from typer.main import get_command

from flipbench.cli import app
from flipbench.config.experiment import Config
from flipbench.core import records

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "runs/demo/report/index.html"


def front_page() -> str:
    """Return README with links as they are from inside ``docs/``, and the demo's report."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](", text)
    text = re.sub(r'(src|srcset)="docs/', r'\1="', text)
    return re.sub(
        r"\]\((?!docs/)((?:configs|examples|CITATION|CONTRIBUTING|LICENSE)[^)]*)\)",
        r"](../\1)",
        text,
    )


def configuration() -> str:
    """Return every key of a configuration, by section, from the types that read it."""
    lines = ["# Configuration keys", "", "Made from the types that read a configuration."]
    parts: list[type[BaseModel]] = [Config]
    for part in parts:  # grows while it is read
        about = (part.__doc__ or "").split("\n\n")[0]
        lines += ["", f"## {part.__name__}", "", " ".join(about.split()), ""]
        lines += ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
        meanings = _meanings(part)
        for key, field in part.model_fields.items():
            below = [one for one in _models(field.annotation) if issubclass(one, BaseModel)]
            parts += [one for one in dict.fromkeys(below) if one not in parts]
            default = _default(field)
            type_ = ", ".join(f"[{one.__name__}](#{one.__name__.lower()})" for one in below)
            named = type_ or f"`{_words(field.annotation)}`"
            said = (
                f"`{field.alias or key}`",
                _cell(named),
                default,
                _cell(field.description or meanings.get(key, "")),
            )
            lines.append("| " + " | ".join(said) + " |")
    return "\n".join(lines) + "\n"


def _meanings(part: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field of a class and of those that it extends."""
    meanings = {}
    for cls in reversed(part.__mro__):
        if cls is BaseModel or not issubclass(cls, BaseModel):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        for field, text in itertools.pairwise(getattr(tree, "body", [])):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                meanings[ast.unparse(field.target)] = str(ast.literal_eval(text.value))
    return meanings


def _words(annotation: Any) -> str:
    """Return a type as written, without the names of modules."""
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", inspect.formatannotation(annotation))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Return the models that an annotation names, however deep."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    return "its keys'" if isinstance(value, BaseModel) else f"`{_cell(str(value)) or 'empty'}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def commands() -> str:
    """Return the commands' help."""
    import click

    command = get_command(app)
    for one in getattr(command, "commands", {}).values():
        one.short_help = (one.help or "").split("\n\n")[0]  # the list would cut it
    context = click.Context(command, info_name="flipbench")
    return (
        f"# Commands\n\n{get_docs_for_click(obj=command, ctx=context, indent=1, name='flipbench')}"
    )


def record_page() -> str:
    """Return every record with its fields."""
    names = sorted(
        name
        for name, value in vars(records).items()
        if isinstance(value, type) and issubclass(value, records.Record) and hasattr(value, "kind")
    )
    parts = [f"::: flipbench.core.records.{name}" for name in names]
    return "\n\n".join(["# Records", "What the files of a run hold, a line each.", *parts]) + "\n"


def api() -> str:
    """Return the functions of ``import flipbench as fb``."""
    import flipbench as fb

    names = sorted(name for name in fb.__all__ if callable(getattr(fb, name)))
    parts = [f"::: flipbench.{name}" for name in names]
    return "\n\n".join(["# Python API", "After `import flipbench as fb`.", *parts]) + "\n"


for path, text in {
    "index.md": front_page(),
    "reference/configuration.md": configuration(),
    "reference/cli.md": commands(),
    "reference/records.md": record_page(),
    "reference/api.md": api(),
}.items():
    with mkdocs_gen_files.open(path, "w", encoding="utf-8") as page:
        page.write(text)
if REPORT.exists():
    with mkdocs_gen_files.open("report.html", "wb") as page:
        page.write(REPORT.read_bytes())
