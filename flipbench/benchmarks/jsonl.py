"""Our own JSONL: one item per line, with image files next to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flipbench.benchmarks.image_files import ImageFolder, image_folder
from flipbench.benchmarks.own_rows import item_of_record
from flipbench.benchmarks.report import Benchmark, Collector, RowError, RowPlace
from flipbench.benchmarks.specs import JsonlSpec
from flipbench.benchmarks.tables import check_file, not_utf8
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef


def load_jsonl(spec: JsonlSpec, images: ImageStore, strict: bool = False) -> Benchmark:
    """Read our own JSONL; see `flipbench.benchmarks.load_benchmark`."""
    check_file(spec.path)
    folder = image_folder(spec.image_root, spec.path.parent)
    collector = Collector(spec.name or spec.path.stem, strict)
    for number, (line, record) in enumerate(_lines(spec.path)):
        name = str(record.get("name", number)) if isinstance(record, dict) else str(number)
        row = RowPlace(number, name, f"{spec.path.name}, line {line}, row {number} (name {name!r})")
        if isinstance(record, dict):
            collector.claim(name, row.where, str(record.get("benchmark", "")))
        with collector.row(row):
            if isinstance(record, ValueError):
                raise RowError("json", f"the line is not JSON ({record})", "fix the line")
            if not isinstance(record, dict):
                raise RowError("json", "the line is not a JSON object", "write it as {…}")
            refs = _images(record.pop("images", None), images, folder, row)
            item, oddities = item_of_record(record, refs, row, collector.name, spec.path.name)
            collector.keep(row, item, oddities)
    if not collector.n_rows:
        raise DataError(f"{spec.path}: there are no rows; download the file again")
    folder.note_relocated(collector)
    return collector.finish()


def _lines(path: Path) -> list[tuple[int, Any]]:
    rows: list[tuple[int, Any]] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise not_utf8(path) from error
            if not text.strip():
                continue
            try:
                rows.append((number, json.loads(text)))
            except (ValueError, RecursionError) as error:
                rows.append((number, ValueError(str(error))))
    return rows


def _images(
    value: Any, images: ImageStore, folder: ImageFolder, row: RowPlace
) -> tuple[ImageRef, ...]:
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        what = f"'images' is {value!r:.60}" if value is not None else "there is no key 'images'"
        raise RowError("image", what, "give a list of paths; [] for a question without an image")
    return tuple(images.put(folder.read(path, row), row.where) for path in paths)
