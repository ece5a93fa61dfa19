"""Datasets with columns to map: parquet, folders, ``save_to_disk``, Hub ids, and JSON files.

The ``datasets`` library reads them, JSON files excepted, whose types it would guess.
"""

from __future__ import annotations

import glob
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipbench.benchmarks.build import Draft, build_item
from flipbench.benchmarks.image_files import (
    ImageFolder,
    decode_base64,
    image_folder,
    is_base64,
)
from flipbench.benchmarks.jsonl import item_of_record, json_rows
from flipbench.benchmarks.question_text import split_question
from flipbench.benchmarks.report import Benchmark, Collector, Oddity, RowError, RowPlace
from flipbench.benchmarks.specs import ColumnMapping, HuggingFaceSpec, Layout
from flipbench.benchmarks.tables import check_columns, check_file, option_columns, parse_literal
from flipbench.core.errors import DataError, ServiceError, nearest
from flipbench.core.images import ImageStore
from flipbench.core.limits import check_parquet
from flipbench.core.records import ImageRef, JsonDict, Source
from flipbench.prompting.prompts import LETTERS

_BATCH = 16
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class _Table:
    """Rows of plain values (image bytes as stored), and the columns' features."""

    rows: Iterable[JsonDict]
    columns: list[str]
    features: dict[str, Any]
    dataset: str
    split: str
    on_hub: bool


def load_huggingface(spec: HuggingFaceSpec, images: ImageStore, strict: bool = False) -> Benchmark:
    """Read a dataset row by row; see `flipbench.benchmarks.load_benchmark`."""
    table = _open(spec)
    collector = Collector(spec.name or _name_of(spec.path), strict)
    folder = image_folder(spec.image_root, _default_root(spec.path, table.on_hub), images)
    if table.on_hub and not _COMMIT.fullmatch(spec.revision):
        what = f"the revision {spec.revision or '(none)'!r} of {spec.path} is not pinned"
        remedy = "set revision to the 40-digit commit: the dataset may change"
        collector.note(Oddity("unpinned_revision", what, remedy))
    if spec.mapping == "flipbench":
        _read_own(spec, table, folder, collector)
    else:
        _read_mapped(spec, table, folder, collector)
    if not collector.n_rows:
        raise DataError(f"{spec.path}: the dataset has no rows; choose another split")
    folder.note_relocated(collector)
    return collector.finish()


def _arrow_rows(data: Any, features: dict[str, Any]) -> Iterator[JsonDict]:
    for batch in data.with_format("arrow").iter(batch_size=_BATCH):
        for row in batch.to_pylist():
            yield {name: _class_name(value, features.get(name)) for name, value in row.items()}


def _read_mapped(
    spec: HuggingFaceSpec, table: _Table, folder: ImageFolder, collector: Collector
) -> None:
    layout = spec.layout
    option_columns = _option_columns(layout, table.columns, spec.path)
    columns = layout.columns
    texts = [columns.question, columns.answer, *option_columns, *columns.extra]
    texts += [c for c in (columns.index, columns.category, columns.group, columns.hint) if c]
    check_columns([*texts, *columns.images], table.columns, spec.path)
    for column in texts:
        if getattr(table.features.get(column), "dtype", "").startswith("float"):
            what = f"the column {column!r} contains floating-point numbers, not text"
            remedy = "'2' may have become '2.0': check the items"
            collector.note(Oddity("float_column", what, remedy))
    absent = option_columns if layout.options_in == "columns" else []
    n_missing = 0
    for number, cells in enumerate(table.rows):
        name = _text(cells[columns.index]).strip() if columns.index else str(number)
        row = RowPlace(number, name, f"{spec.path}, row {number} (index {name!r})")
        if name:
            collector.claim(name, row)
        with collector.row(row):
            if not name:
                raise RowError("index", "the index is empty", "give every row a unique index")
            n_missing += _empty_missing(cells, absent, columns.hint)
            raw = _text(cells[columns.question])
            answer = _text(cells[columns.answer])
            stem, options = raw, _options(cells, layout, option_columns)
            if layout.options_in == "question" and layout.question_style:
                stem, options = split_question(raw, layout.question_style, answer)
            draft = Draft(
                benchmark=collector.name,
                name=name,
                images=_images(cells, columns, folder, row),
                question=stem,
                raw_question=raw,
                options=options,
                answer=answer,
                source=Source(
                    dataset=table.dataset,
                    revision=spec.revision,
                    split=table.split,
                    row=number,
                ),
                answer_is=layout.answer_is,
                hint=_text(cells[columns.hint]) if columns.hint else "",
                category=_text(cells[columns.category]) if columns.category else "",
                group=_text(cells[columns.group]) if columns.group else "",
                licence=spec.licence,
                extra={c: text for c in columns.extra if (text := _text(cells[c]))},
            )
            collector.keep(row, *build_item(draft))
    if n_missing:
        what = f"last options and hints with the text 'nan' are read as none ({n_missing} rows)"
        collector.note(Oddity("missing_value", what, "pandas writes it for an empty cell"))


def _empty_missing(cells: JsonDict, options: list[str], hint: str | None) -> bool:
    """Empty a row's cells that held no value before pandas made text of them.

    Mirrors of MMBench on the Hub have such cells. An option "nan" before another is kept.
    """
    last = list(itertools.takewhile(lambda c: cells[c] in ("nan", None, ""), reversed(options)))
    missing = [c for c in (*last, *([hint] if hint else [])) if cells[c] == "nan"]
    cells.update(dict.fromkeys(missing))
    return bool(missing)


def _read_own(
    spec: HuggingFaceSpec, table: _Table, folder: ImageFolder, collector: Collector
) -> None:
    check_columns(["benchmark", "name", "images", "question", "answer"], table.columns, spec.path)
    for number, cells in enumerate(table.rows):
        record = {key: value for key, value in cells.items() if value is not None}
        name = str(record.get("name", number))
        row = RowPlace(number, name, f"{spec.path}, row {number} (index {name!r})")
        collector.claim(name, row, str(record.get("benchmark", "")))
        with collector.row(row):
            refs = _refs(record.pop("images", []), "images", folder, row)
            item, oddities = item_of_record(record, tuple(refs), row, collector.name, table.dataset)
            collector.keep(row, item, oddities)


def _open_json(path: Path, split: str) -> _Table:
    check_file(path)
    columns = list(dict.fromkeys(key for row in json_rows(path) for key in row))
    rows = (dict.fromkeys(columns) | row for row in json_rows(path))
    return _Table(rows, columns, {}, path.name, split, on_hub=False)


def _open(spec: HuggingFaceSpec) -> _Table:
    local = Path(spec.path)
    if local.suffix.lower() in (".json", ".jsonl") and not local.is_dir():
        return _open_json(local, spec.split)
    import datasets
    from pyarrow import parquet

    pattern = sorted(glob.glob(spec.path)) if glob.has_magic(spec.path) else []
    on_hub = not pattern and not local.exists()
    options: dict[str, Any] = {"name": spec.config_name or None, "streaming": not on_hub}
    if on_hub and not _HUB_ID.fullmatch(spec.path):
        raise DataError(f"{spec.path}: no such file or folder; fix the path")
    files = pattern or ([spec.path] if local.is_file() else [])
    if not all(file.endswith(".parquet") for file in files):
        raise DataError(
            f"{spec.path}: not a .parquet, .json or .jsonl file; use format: vlmeval for a .tsv"
        )
    try:
        if files:
            for file in files:
                with parquet.ParquetFile(file) as checked:
                    check_parquet(checked, file, in_memory=False)
            opened = datasets.load_dataset(
                "parquet", data_files={spec.split or "train": files}, streaming=True
            )
        elif (local / "state.json").exists() or (local / "dataset_dict.json").exists():
            opened = datasets.load_from_disk(spec.path)
        elif on_hub:
            opened = datasets.load_dataset(spec.path, revision=spec.revision or None, **options)
        else:
            opened = datasets.load_dataset(spec.path, **options)
    except DataError:
        raise
    except Exception as error:  # datasets, hub, pyarrow and fsspec share no base class
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        if on_hub:
            raise ServiceError(
                f"{spec.path}: no such file or folder, and loading it from the Hub failed"
                f" ({first}); fix the name, log in, or download it and give its folder"
            ) from error
        raise DataError(
            f"{spec.path}: datasets cannot open it ({first}); download it again, or give its"
            " parquet files"
        ) from error
    split, data = _one_split(opened, spec, is_files=bool(files))
    features = dict(data.features or {})
    columns = list(features) or list(next(iter(data), {}))
    dataset = spec.path if on_hub else local.name
    return _Table(_arrow_rows(data, features), columns, features, dataset, split, on_hub)


def _one_split(opened: Any, spec: HuggingFaceSpec, is_files: bool) -> tuple[str, Any]:
    if not isinstance(opened, dict):
        only = str(opened.split or "")
        if spec.split and only and spec.split != only:
            raise DataError(f"{spec.path}: this is the split {only!r}, not {spec.split!r}")
        return spec.split or only, opened
    names = list(opened)
    if is_files:
        return spec.split, opened[names[0]]
    if not spec.split and len(names) > 1:
        raise DataError(f"{spec.path}: has the splits {', '.join(names)}; set split to one of them")
    split = spec.split or names[0]
    if split not in names:
        guess = nearest(split, names)
        raise DataError(f"{spec.path}: no split {split!r} (found: {', '.join(names)}){guess}")
    return split, opened[split]


def _option_columns(layout: Layout, columns: list[str], where: str) -> list[str]:
    if layout.options_in == "list" or layout.columns.options:
        return list(layout.columns.options)
    if layout.options_in == "columns":
        return option_columns(columns, where)
    return []


def _options(cells: JsonDict, layout: Layout, columns: list[str]) -> tuple[tuple[str, str], ...]:
    if layout.options_in == "columns":
        beyond = [str(number) for number in range(len(LETTERS) + 1, len(columns) + 1)]
        letters = columns if set(columns) <= set(LETTERS) else [*LETTERS, *beyond]
        return tuple(
            (letter, _text(cells[column])) for letter, column in zip(letters, columns, strict=False)
        )
    if layout.options_in != "list":
        return ()
    value = cells[columns[0]]
    if isinstance(value, str) and value.strip():
        try:
            value = parse_literal(value.strip())
        except ValueError:
            value = 0
    if value is None or value == "":
        return ()
    if isinstance(value, dict) and value and value.keys() <= set(LETTERS):
        named = sorted((letter, text) for letter, text in value.items() if text is not None)
        return tuple((letter, _text(text)) for letter, text in named)
    if not isinstance(value, list | tuple):
        what = f"the column {columns[0]!r} does not contain a list: {cells[columns[0]]!r:.60}"
        raise RowError("options", what, "write it as ['a', 'b'] or {'A': 'a', 'B': 'b'}")
    if len(value) > len(LETTERS):
        what = f"there are {len(value)} options; at most 26 are supported"
        raise RowError("options", what, "remove the row")
    return tuple((letter, _text(v)) for letter, v in zip(LETTERS, value, strict=False))


def _images(
    cells: JsonDict, columns: ColumnMapping, folder: ImageFolder, row: RowPlace
) -> tuple[ImageRef, ...]:
    refs = [ref for name in columns.images for ref in _refs(cells[name], name, folder, row)]
    if not refs:
        raise RowError("image", "there is no image", "add one, or remove the row")
    return tuple(refs)


def _refs(value: Any, column: str, folder: ImageFolder, row: RowPlace) -> list[ImageRef]:
    refs = []
    for image in value if isinstance(value, list) else [value]:
        if image is None:
            continue
        is_struct = isinstance(image, dict)
        data, path = (image.get("bytes"), image.get("path")) if is_struct else (image, image)
        if isinstance(data, bytes):
            refs.append(folder.store.put(data, row.where))
        elif isinstance(path, str) and is_base64(path):
            refs.append(folder.store.put(decode_base64(path), row.where))
        elif isinstance(path, str) and path:
            refs.append(folder.put(path, row))
        else:
            what = f"the column {column!r} contains {type(image).__name__}, not an image"
            raise RowError("image", what, "map columns.images to images, bytes or paths")
    return refs


def _class_name(value: Any, feature: Any) -> Any:
    """Return the name of a ClassLabel's value, and any other value unchanged."""
    names = getattr(feature, "names", None)
    if names and isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return value


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, str | bool | int | float):
        return str(value)
    what = f"{str(value)[:60]!r} is a {type(value).__name__}, not text"
    raise RowError("text", what, "map a column that contains text")


def _name_of(path: str) -> str:
    last = Path(path)
    if "*" in last.name:
        return last.parent.name
    return last.stem if last.suffix.lower() in (".parquet", ".json", ".jsonl") else last.name


def _default_root(path: str, on_hub: bool) -> Path:
    if on_hub:
        from huggingface_hub.constants import HF_HUB_CACHE

        return Path(HF_HUB_CACHE) / f"datasets--{path.replace('/', '--')}"
    return Path(path) if Path(path).is_dir() else Path(path).parent
