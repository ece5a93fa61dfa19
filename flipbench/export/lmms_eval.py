"""A task folder for lmms-eval: two tasks, one ``utils.py``, one parquet file per side."""

from __future__ import annotations

import re
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item
from flipbench.export import lmms_utils
from flipbench.export.pairs import export_name, png_of, sides
from flipbench.prompting.prompts import LETTERS, choice_prompt, open_prompt

_ROWS_PER_GROUP = 64
_FUNCTIONS = ("doc_to_visual", "doc_to_text", "doc_to_target", "process_results")


def write_lmms_eval(benchmark: PairedBenchmark, folder: Path) -> list[Path]:
    """Write the folder ``NAME_HASH/``; return its two YAML files.

    Run it with ``--include_path FOLDER --tasks NAME_original_HASH,NAME_perturbed_HASH
    --log_samples``; `flipbench gap` reads the sample logs. The YAML files contain absolute paths
    of the parquet files: update ``data_files`` if the folder moves.
    """
    task_folder = folder / export_name(benchmark)
    task_folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(lmms_utils.__file__, task_folder / "utils.py")
    written = []
    for side, items in sides(benchmark):
        data = task_folder / f"{side}.parquet"
        _write_parquet(items, benchmark.images, data)
        name = export_name(benchmark, side)
        task = {
            "task": name,
            "dataset_path": "parquet",
            "dataset_kwargs": {"data_files": {"test": str(data.resolve())}},
            "test_split": "test",
            "output_type": "generate_until",
            "generation_kwargs": {"max_new_tokens": 16, "temperature": 0, "do_sample": False},
            "metric_list": [
                {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True},
                {
                    "metric": "flipbench_item",
                    "aggregation": "!function utils.count",
                    "higher_is_better": True,
                },
            ],
            "lmms_eval_specific_kwargs": {"default": {"pre_prompt": "", "post_prompt": ""}},
            "metadata": {"version": benchmark.id[:8]},
        }
        task |= {function: f"!function utils.{function}" for function in _FUNCTIONS}
        path = task_folder / f"{name}.yaml"
        path.write_text(_yaml(task))
        written.append(path)
    return written


def _yaml(task: dict[str, Any]) -> str:
    text = yaml.safe_dump(task, sort_keys=False, allow_unicode=True)
    return re.sub(r"'(!function utils\.\w+)'", r"\1", text)  # a tag, which YAML would quote


def _write_parquet(items: list[Item], images: ImageStore, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Features, Image, List, Value

    text = Value("string")
    features = Features(
        {
            "id": text,
            "name": text,
            "images": List(Image()),
            "prompt": text,
            "options": List(text),
            "target": text,
            "category": text,
        }
    )
    rows = (_doc(item, images) for item in items)
    with pq.ParquetWriter(path, features.arrow_schema) as writer:
        while batch := list(islice(rows, _ROWS_PER_GROUP)):
            writer.write_table(pa.Table.from_pylist(batch, schema=features.arrow_schema))


def _doc(item: Item, images: ImageStore) -> dict[str, Any]:
    options = list(item.options or ())
    prompt = choice_prompt(item.question, options) if options else open_prompt(item.question)
    return {
        "id": item.id,
        "name": item.name,
        "images": [{"bytes": png_of(ref, images), "path": None} for ref in item.images],
        "prompt": prompt,
        "options": options,
        "target": item.answer_text if item.answer is None else LETTERS[item.answer],
        "category": item.category,
    }
