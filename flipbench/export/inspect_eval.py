"""A folder for Inspect: two tasks, one JSONL file per side, pictures, a README."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from flipbench.core.files import make_folder, write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import ImageRef, Item
from flipbench.export import lmms_utils
from flipbench.export.pairs import (
    export_name,
    png_of,
    question_rows,
    sides,
    standalone_parser,
    write_text,
)


def write_inspect(benchmark: PairedBenchmark, folder: Path) -> list[Path]:
    """Write the folder ``NAME_HASH/`` with ``task.py``, both sides' JSONL and pictures.

    Returns the task file, then the two JSONL files. The folder can be moved, and needs inspect_ai
    alone to run. Samples of both sides have the id of the original, by which `flipbench gap` joins
    the two logs. Replies are scored by a copy of `flipbench.prompting.parsing`.

    Raises
    ------
    DataError
        If an image is missing.
    """
    out = folder / export_name(benchmark)
    make_folder(out / "images")
    paths = [
        _write_side(items, benchmark, out / f"{side}.jsonl") for side, items in sides(benchmark)
    ]
    about = {side: export_name(benchmark, side) for side, _ in sides(benchmark)}
    version = {"version": benchmark.id[:8]}
    write_atomically(out / "benchmark.json", json.dumps(about | version, indent=2) + "\n")
    write_atomically(out / "parsing.py", standalone_parser())
    write_atomically(out / "scoring.py", Path(lmms_utils.__file__).read_bytes())
    write_text("inspect", out / "README.md", name=out.name, n_pairs=len(benchmark.pairs))
    source = Path(__file__).with_name("inspect_task.py")
    task = write_atomically(out / "task.py", source.read_bytes())
    return [task, *paths]


def _write_side(items: Sequence[Item], benchmark: PairedBenchmark, path: Path) -> Path:
    lines = []
    for row, item in question_rows(benchmark, items):
        row["images"] = [_put(ref, benchmark.images, path.parent) for ref in item.images]
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    return write_atomically(path, "".join(lines))


def _put(ref: ImageRef, images: ImageStore, folder: Path) -> str:
    """Write an image as PNG unless it is there; return its path below ``folder``."""
    name = f"images/{ref.sha256}.png"
    if not (folder / name).exists():
        write_atomically(folder / name, png_of(ref, images))
    return name
