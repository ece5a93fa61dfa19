"""Where the rows of a benchmark come from: a table file, or what the ``datasets`` library opens.

JSON is not left to ``datasets``, which would guess its types.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flipbench.benchmarks.specs import HuggingFaceSpec, JsonlSpec, TsvSpec
from flipbench.benchmarks.tables import Row, columns_of, open_table
from flipbench.core.errors import DataError, ServiceError, nearest
from flipbench.core.limits import check_parquet

_BATCH = 16
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class RowSource:
    """Rows of plain values (image bytes as stored), and what is known of them.

    Attributes
    ----------
    name, path : str
        The benchmark's default name, and the source's for messages.
    folder : Path
        Where image paths start by default.
    columns : list of str
        Empty for our own JSONL.
    dataset, split : str
        Stored with every item.
    features : dict
        The columns' types, if ``datasets`` knows them.
    """

    rows: Iterable[Row]
    columns: list[str]
    name: str
    path: str
    folder: Path
    dataset: str
    split: str = ""
    features: dict[str, Any] = field(default_factory=dict)
    on_hub: bool = False


def open_source(spec: TsvSpec | HuggingFaceSpec | JsonlSpec) -> RowSource:
    """Return the rows of a benchmark, which are read as they are asked for.

    Raises
    ------
    DataError
        If there is no such file, folder or split, or it cannot be opened.
    ServiceError
        If a dataset cannot be loaded from the Hugging Face Hub.
    """
    path = Path(spec.path)
    split = spec.split if isinstance(spec, HuggingFaceSpec) else ""
    is_json = path.suffix.lower() in (".json", ".jsonl") and not path.is_dir()
    if isinstance(spec, HuggingFaceSpec) and not is_json:
        return _open_dataset(spec)
    table = open_table(path)
    rows, columns = table.rows, table.columns
    if isinstance(spec, HuggingFaceSpec):
        columns = columns_of(_raise_errors(rows))
        blank = dict.fromkeys(columns)
        rows = (
            Row(row.where, blank | row.cells, row.number)
            for row in _raise_errors(open_table(path).rows)
        )
    return RowSource(rows, columns, path.stem, str(path), path.parent, path.name, split)


def _raise_errors(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        if row.error:
            raise DataError(f"{row.where}: {row.error}") from row.error
        yield row


def _open_dataset(spec: HuggingFaceSpec) -> RowSource:
    import datasets
    from pyarrow import parquet

    local = Path(spec.path)
    pattern = sorted(glob.glob(spec.path)) if glob.has_magic(spec.path) else []
    on_hub = not pattern and not local.exists()
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
                with parquet.ParquetFile(file) as unread:
                    check_parquet(unread, file, in_memory=False)
            opened = datasets.load_dataset(
                "parquet", data_files={spec.split or "train": files}, streaming=True
            )
        elif (local / "state.json").exists() or (local / "dataset_dict.json").exists():
            opened = datasets.load_from_disk(spec.path)
        else:
            config, revision = spec.config_name or None, spec.revision or None
            options: dict[str, Any] = {"revision": revision} if on_hub else {"streaming": True}
            opened = datasets.load_dataset(spec.path, name=config, **options)
    except DataError:
        raise
    except Exception as error:  # datasets, hub, pyarrow and fsspec share no base class
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if on_hub:
            raise ServiceError(
                f"{spec.path}: no such file or folder, and loading it from the Hub failed"
                f" ({reason}); fix the name, log in, or download it and give its folder"
            ) from error
        raise DataError(
            f"{spec.path}: datasets cannot open it ({reason}); download it again, or give its"
            " parquet files"
        ) from error
    split, data = _one_split(opened, spec, is_files=bool(files))
    features = dict(data.features or {})
    name = local.stem if local.suffix.lower() == ".parquet" else local.name
    return RowSource(
        rows=_dataset_rows(data, features, spec.path),
        columns=list(features) or list(next(iter(data), {})),
        name=local.parent.name if "*" in local.name else name,
        path=spec.path,
        folder=_hub_folder(spec.path) if on_hub else local if local.is_dir() else local.parent,
        dataset=spec.path if on_hub else local.name,
        split=split,
        features=features,
        on_hub=on_hub,
    )


def _dataset_rows(data: Any, features: dict[str, Any], path: str) -> Iterator[Row]:
    for batch in data.with_format("arrow").iter(batch_size=_BATCH):
        for cells in batch.to_pylist():
            yield Row(path, {k: _class_name(value, features.get(k)) for k, value in cells.items()})


def _class_name(value: Any, feature: Any) -> Any:
    """Return the name of a ClassLabel's value, and any other value unchanged."""
    names = getattr(feature, "names", None)
    if names and isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return value


def _one_split(opened: Any, spec: HuggingFaceSpec, is_files: bool) -> tuple[str, Any]:
    if not isinstance(opened, dict):
        name = str(opened.split or "")
        if spec.split and name and spec.split != name:
            raise DataError(f"{spec.path}: this is the split {name!r}, not {spec.split!r}")
        return spec.split or name, opened
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


def _hub_folder(hub_id: str) -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE) / f"datasets--{hub_id.replace('/', '--')}"
