"""Our own format: an item a line as JSON with image files beside it, or one parquet file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from flipbench.benchmarks.build import AnswerIs, build_item
from flipbench.benchmarks.report import Oddity, RowPlace
from flipbench.benchmarks.tables import RowError, parse_json
from flipbench.core.errors import DataError, nearest, shorten
from flipbench.core.files import atomic_file, write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Item, JsonDict, Source
from flipbench.prompting.prompts import LETTERS

TEXTS = ("question", "answer_text", "raw_question", "category", "group", "licence")
KEYS = ("id", "benchmark", "name", "images", "options", "answer", "source", "extra", *TEXTS)
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
    from datasets import Features, Image, List, Value

    _check(items)
    text = Value("string")
    source = {"dataset": text, "revision": text, "split": text, "row": Value("int64")}
    types = {
        "images": List(Image()),
        "options": List(text),
        "answer": Value("int64"),
        "source": source,
    }
    features = Features({name: types.get(name, text) for name in Item.model_fields})
    return write_parquet_rows(_parquet_rows(items, images), features.arrow_schema, path)


def write_parquet_rows(rows: Iterator[JsonDict], schema: Any, path: Path) -> Path:
    """Write rows to a parquet file with a `pyarrow.Schema`, few of them in memory; return it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_file(path) as partial, pq.ParquetWriter(partial, schema) as writer:
        while batch := list(islice(rows, _ROWS_PER_GROUP)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
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
    keys: set[tuple[str, str]] = set()
    for item in items:
        key = item.benchmark, item.name
        if key in keys:
            raise DataError(f"{item.subject}: two items have this name; names must be unique")
        keys.add(key)
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


def record_of_item(item: Item) -> JsonDict:
    """Return an item as a row, without its images.

    ``answer`` is the right option's position from 0; None for a free-form question.
    """
    row = item.model_dump(mode="json", exclude={"images"})
    return {key: row[key] for key in KEYS if key != "images"}


def item_of_record(
    record: JsonDict, refs: tuple[ImageRef, ...], place: RowPlace, benchmark: str, dataset: str
) -> tuple[Item, list[Oddity]]:
    """Return a row's item and its oddities.

    ``refs`` are its images; ``benchmark`` and ``dataset`` are used if the row names none.

    Raises
    ------
    RowError
        If a key is unknown, a value has the wrong type, or the row's id does not match its content.
    """
    unknown = [key for key in record if key not in KEYS]
    if unknown:
        problem = f"unknown key {shorten(unknown[0])!r}{nearest(unknown[0], list(KEYS))}"
        raise RowError("keys", problem, f"the keys are {', '.join(KEYS)}; move others into 'extra'")
    for key in ("id", "benchmark", *TEXTS):
        if not isinstance(record.get(key, ""), str):
            raise RowError("text", f"{key!r} is {record[key]!r:.60}, not text", "quote it")
    options = _options(record.get("options"))
    answer, answer_is = _answer(record, bool(options))
    extra = record.get("extra", {})
    if isinstance(extra, str):
        extra = parse_json(extra or "{}")
    source = record.get("source") or {"dataset": dataset, "row": place.number}
    if not isinstance(extra, dict) or not isinstance(source, dict):
        raise RowError("text", "'extra' and 'source' must be objects", "fix the row")
    item, oddities = build_item(
        benchmark=record.get("benchmark") or benchmark,
        name=place.name,
        images=refs,
        question=record.get("question", ""),
        raw_question=record.get("raw_question") or record.get("question", ""),
        options=list(zip(LETTERS, options, strict=False)),
        answer=answer,
        source=Source.model_validate(source),
        answer_is=answer_is,
        category=record.get("category", ""),
        group=record.get("group", ""),
        licence=record.get("licence", ""),
        extra=extra,
    )
    if record.get("id", item.id) != item.id:
        problem = f"its id {record['id']} does not match its content: the row was edited"
        raise RowError("id", problem, "remove the id to accept the change")
    return item, oddities


def _options(options: Any) -> Sequence[str]:
    if options is None:
        return ()
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise RowError("options", f"'options' is {options!r:.60}", "give a list of texts")
    if not 2 <= len(options) <= len(LETTERS):
        problem = f"there are {len(options)} options"
        raise RowError("options", problem, "give 2 to 26, or none for a free-form question")
    for letter, option in zip(LETTERS, options, strict=False):
        if not option.strip():
            raise RowError("options", f"option {letter} is blank", "fix the row")
    return options


def _answer(record: JsonDict, has_options: bool) -> tuple[str, AnswerIs]:
    answer, text = record.get("answer"), record.get("answer_text", "")
    if not has_options:
        free_form = text or answer or ""
        if not isinstance(free_form, str):
            raise RowError("answer", f"'answer' is {free_form!r:.60}, not text", "quote it")
        return free_form, "text"
    if isinstance(answer, int) and not isinstance(answer, bool):
        options = record["options"]
        if text and 0 <= answer < len(options) and options[answer] != text:
            problem = (
                f"'answer' is {answer}, option {options[answer]!r:.60}, 'answer_text' {text!r:.60}"
            )
            raise RowError("answer", problem, "make them agree")
        return str(answer), "index"
    if not isinstance(answer, str):
        problem = f"'answer' is {answer!r:.60}"
        raise RowError("answer", problem, "give a letter, an option's text, or a position from 0")
    return answer, "auto"
