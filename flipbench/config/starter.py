"""The configuration that ``flipbench init`` writes for a user's benchmark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

import yaml
from pydantic import BaseModel

_TEMPLATE = Path(__file__).with_suffix(".yaml.txt")


def starter(name: str, benchmark: BaseModel, notes: Sequence[str] = ()) -> str:
    """Return a commented configuration that extends the reference configuration.

    ``name`` is that of the benchmark and the run directory; ``notes`` are observations about the
    file. Defaults of ``benchmark`` are left out.
    """
    data = benchmark.model_dump(mode="json", exclude_defaults=True)
    part = {"format": benchmark.model_dump()["format"], **data}
    text = yaml.safe_dump(part, sort_keys=False, allow_unicode=True).strip()
    block = "\n".join(f"  {line}" for line in text.splitlines())
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=json.dumps(f"{name}, answers flipped", ensure_ascii=False),
        run=json.dumps(f"runs/{name}", ensure_ascii=False),
        benchmark=block,
        notes=" ".join("; ".join(notes).split()) or "no problems in its first rows",
    )
