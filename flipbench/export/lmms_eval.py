"""A task folder for lmms-eval: two tasks, their functions, one parquet file per side, a README."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from flipbench.benchmarks.own_format import write_parquet_rows
from flipbench.core.files import write_atomically
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item
from flipbench.export import lmms_utils
from flipbench.export.pairs import (
    export_name,
    groups_of,
    png_of,
    question_rows,
    sides,
    standalone_parser,
    write_text,
)

_FUNCTIONS = ("doc_to_visual", "doc_to_text", "doc_to_target", "process_results")


def write_lmms_eval(
    benchmark: PairedBenchmark, folder: Path, models: Mapping[str, Path] | None = None
) -> list[Path]:
    """Write the folder ``NAME_HASH/``; return its two YAML files.

    Run it with ``--include_path FOLDER --tasks NAME_original_HASH,NAME_perturbed_HASH
    --log_samples``; `flipbench gap` reads the sample logs and joins them by ``flipbench_item``, the
    original's id. If items share images, ``flipbench_group`` says which. The folder can be moved:
    paths in it are relative to its YAML files. Replies are scored by a copy of
    `flipbench.prompting.parsing`.

    Parameters
    ----------
    models : mapping of str to Path, optional
        Names and folders of models whose pixel limits the folder's README states.
    """
    task_folder = folder / export_name(benchmark)
    write_atomically(task_folder / "utils.py", Path(lmms_utils.__file__).read_bytes())
    write_atomically(task_folder / "parsing.py", standalone_parser())
    paths = []
    metrics = ["flipbench_item", *(["flipbench_group"] if groups_of(benchmark) else [])]
    metrics += ["flipbench_judged_by"] if benchmark.judged_by else []
    for side, items in sides(benchmark):
        data = task_folder / f"{side}.parquet"
        _write_side(items, benchmark, data)
        name = export_name(benchmark, side)
        task = {
            "task": name,
            "dataset_path": "parquet",
            "dataset_kwargs": {"data_files": {"test": data.name}},
            "test_split": "test",
            "output_type": "generate_until",
            "generation_kwargs": {"max_new_tokens": 16, "temperature": 0, "do_sample": False},
            "metric_list": [
                {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True},
                *(
                    {
                        "metric": metric,
                        "aggregation": "!function utils.count",
                        "higher_is_better": True,
                    }
                    for metric in metrics
                ),
            ],
            "lmms_eval_specific_kwargs": {"default": {"pre_prompt": "", "post_prompt": ""}},
            "metadata": {"version": benchmark.id[:8]},
        }
        task |= {function: f"!function utils.{function}" for function in _FUNCTIONS}
        path = task_folder / f"{name}.yaml"
        paths.append(write_atomically(path, _yaml(task)))
    limits = {name: pixel_limits(path) for name, path in (models or {}).items()}
    write_text(
        "lmms_eval",
        task_folder / "README.md",
        names=",".join(path.stem for path in paths),
        n_pairs=len(benchmark.pairs),
        span=_span(benchmark),
        limits={name: ends for name, ends in limits.items() if ends},
    )
    return paths


def pixel_limits(folder: Path) -> tuple[int, int] | None:
    """Return the fewest and most pixels to which a checkpoint's processor resizes a picture.

    None if it has no such limits: it resizes every picture to one size, or the folder has no
    processor.
    """
    for name in ("preprocessor_config.json", "processor_config.json"):
        try:
            config = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        config = config.get("image_processor", config) if isinstance(config, dict) else {}
        size = config.get("size")
        size = size if isinstance(size, dict) else {}
        fewest = config.get("min_pixels") or size.get("shortest_edge")
        maximum = config.get("max_pixels") or size.get("longest_edge")
        if fewest and maximum:
            return int(fewest), int(maximum)
    return None


def _span(benchmark: PairedBenchmark) -> str:
    """Return the least and the largest size of a picture."""
    items = (*benchmark.originals, *benchmark.perturbed)
    sizes = [ref.width * ref.height for item in items for ref in item.images]
    ends = dict.fromkeys(f"{size:,}" for size in (min(sizes), max(sizes))) if sizes else ()
    return f"{' to '.join(ends) or 'no'} pixels"


def _yaml(task: dict[str, Any]) -> str:
    text = yaml.safe_dump(task, sort_keys=False, allow_unicode=True)
    return re.sub(r"'(!function utils\.\w+)'", r"\1", text)  # a tag, which YAML would quote


def _write_side(items: Sequence[Item], benchmark: PairedBenchmark, path: Path) -> None:
    from datasets import Features, Image, List, Value

    text = Value("string")
    names = ("item", "group", "judged_by", "id", "name", "prompt", "target", "category")
    several = {"options": List(text), "images": List(Image())}
    rows = (
        row | {"images": [{"bytes": png_of(ref, benchmark.images)} for ref in item.images]}
        for row, item in question_rows(benchmark, items)
    )
    schema = Features(dict.fromkeys(names, text) | several).arrow_schema
    write_parquet_rows(rows, schema, path)
