"""Write items as JSONL with an image folder, or as one parquet file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from flipbench.benchmarks.jsonl import record_of_item
from flipbench.core.errors import DataError
from flipbench.core.files import atomic_file, write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, JsonDict
from flipbench.prompting.prompts import LETTERS

_ROWS_PER_GROUP = 64


def write_jsonl(items: Sequence[Item], images: ImageStore, folder: Path) -> Path:
    """Write ``items.jsonl`` and ``images/`` into ``folder``; return the JSONL file.

    `JsonlSpec` reads back the same items with the same ids. The JSONL file is written last: if it
    exists, so do all images.

    Raises
    ------
    DataError
        If an item could not be read back, or an image is missing.
    """
    _check(items)
    out = ImageStore(folder / "images")
    path = folder / "items.jsonl"
    lines = []
    for item in items:
        names = []
        for ref, data in zip(item.images, _bytes(item, images), strict=True):
            out.put(data, item.subject)
            names.append(f"images/{out.path(ref).name}")
        lines.append(json.dumps(record_of_item(item) | {"images": names}, ensure_ascii=False))
    return write_atomically(path, "".join(line + "\n" for line in lines))


def write_parquet(items: Sequence[Item], images: ImageStore, path: Path) -> Path:
    """Write one parquet file with ``datasets`` image features; return it.

    `HuggingFaceSpec` with ``mapping="flipbench"`` reads back the same items with the same ids;
    ``datasets.load_dataset`` decodes the images.

    Raises
    ------
    DataError
        If an item could not be read back, or an image is missing.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Features, Image, List, Value

    _check(items)
    text = Value("string")
    source = {"dataset": text, "revision": text, "split": text, "row": Value("int64")}
    other = {
        "images": List(Image()),
        "options": List(text),
        "answer": Value("int64"),
        "source": source,
    }
    features = Features({name: other.get(name, text) for name in Item.model_fields})
    with atomic_file(path) as partial, pq.ParquetWriter(partial, features.arrow_schema) as writer:
        rows = _parquet_rows(items, images)
        while batch := list(islice(rows, _ROWS_PER_GROUP)):
            writer.write_table(pa.Table.from_pylist(batch, schema=features.arrow_schema))
    return path


def _parquet_rows(items: Sequence[Item], images: ImageStore) -> Iterator[JsonDict]:
    for item in items:
        names = [images.path(ref).name for ref in item.images]
        pictures = [
            {"bytes": data, "path": name}
            for data, name in zip(_bytes(item, images), names, strict=True)
        ]
        row = record_of_item(item)
        yield row | {"images": pictures, "extra": json.dumps(row["extra"], ensure_ascii=False)}


def _check(items: Sequence[Item]) -> None:
    seen: set[tuple[str, str]] = set()
    for item in items:
        key = item.benchmark, item.name
        if key in seen:
            raise DataError(f"{item.subject}: two items have this name; names must be unique")
        seen.add(key)
        options = item.options
        if options is not None and not 2 <= len(options) <= len(LETTERS):
            raise DataError(f"{item.subject}: {len(options)} options; there must be 2 to 26")
        for text in (item.question, item.answer_text, *(options or ())):
            if not text.strip():
                raise DataError(
                    f"{item.subject}: question, answer or an option is blank; fix the item"
                )


def _bytes(item: Item, images: ImageStore) -> list[bytes]:
    try:
        return [images.read(ref) for ref in item.images]
    except DataError as error:
        raise DataError(f"{item.subject}: {error}") from error
