"""The task folder for lmms-eval: moved, loaded and scored as the kit does."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml

from flipbench.core.paired import PairedBenchmark
from flipbench.evaluate.predictions.gap import gap_of_predictions
from flipbench.export.lmms_eval import pixel_limits, write_lmms_eval
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import LETTERS

OPTIONS = ("red", "a bus", "blue")
REPLIES = (
    "A|(B)|C.|b|The answer is B.|Answer: B|**B**|A red bus|A bus|blue|I see a bus, so B|A or B|"
    "Option C is right|none|<think>A? No.</think> B|A? (C)? No.</think> B|"
    "<think>It may be (B) or|The answer is a bus|It is (C)"
).split("|")


class Loader(yaml.SafeLoader):
    """YAML with the kit's tag left as text."""


Loader.add_constructor("!function", lambda loader, node: f"function {node.value}")


def task_of(path: Path) -> dict[str, Any]:
    """Read a task; the kit resolves relative data files against the YAML's folder."""
    task: dict[str, Any] = yaml.load(path.read_text(), Loader)
    files = task["dataset_kwargs"]["data_files"]
    task["dataset_kwargs"]["data_files"] = {
        split: str(path.parent / name) for split, name in files.items()
    }
    return task


def utils_of(path: Path) -> Any:
    """Load the functions beside a task as the kit does: by path, their folder is not importable."""
    spec = importlib.util.spec_from_file_location("utils", path.parent / "utils.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def docs_of(path: Path) -> Any:
    task = task_of(path)
    return datasets.load_dataset(task["dataset_path"], **task["dataset_kwargs"])["test"]


def moved(paths: list[Path], to: Path) -> list[Path]:
    shutil.move(paths[0].parent, to)
    return [to / path.name for path in paths]


def test_tasks_load_and_score_in_another_folder(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    written = write_lmms_eval(make([("red", "blue"), None]), tmp_path / "here")
    answers = (("A", "red"), ("B", "blue"))
    for path, golds in zip(moved(written, tmp_path / "there"), answers, strict=True):
        task = task_of(path)
        assert str(tmp_path) not in path.read_text()
        assert task["doc_to_text"] == "function utils.doc_to_text"
        assert task["metric_list"][1]["aggregation"] == "function utils.count"
        assert task["lmms_eval_specific_kwargs"]["default"] == {"pre_prompt": "", "post_prompt": ""}
        utils = utils_of(path)
        for doc, answer in zip(docs_of(path), golds, strict=True):
            assert utils.doc_to_target(doc) == answer
            assert utils.doc_to_visual(doc)[0].size == (40, 30)
            assert "Which is it?" in utils.doc_to_text(doc, {"post_prompt": "!"})
            assert utils.process_results(doc, [f"{answer}."])["exact_match"] == 1.0
            assert utils.process_results(doc, ["Zebra"])["exact_match"] == 0.0


def test_replies_are_read_by_our_own_parser(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    _, perturbed = write_lmms_eval(make([OPTIONS]), tmp_path)
    utils, (doc,) = utils_of(perturbed), list(docs_of(perturbed))
    marks = {r: utils.process_results(doc, [r])["exact_match"] for r in REPLIES}
    assert [r for r in REPLIES if marks[r]] == [
        *("(B)", "b", "The answer is B.", "Answer: B", "**B**", "A bus", "I see a bus, so B"),
        *("<think>A? No.</think> B", "A? (C)? No.</think> B", "The answer is a bus"),
    ]
    for reply in REPLIES:
        choice = parse_choice(reply, OPTIONS)
        assert marks[reply] == (choice >= 0 and LETTERS[choice] == doc["target"])


def test_yes_and_no_are_read_as_words(make: Callable[..., PairedBenchmark], tmp_path: Path) -> None:
    original, _ = write_lmms_eval(make([None]), tmp_path)
    utils, doc = utils_of(original), {"item": "1", "group": "", "options": [], "target": "Yes"}
    replies = ("Yes, it is.", "yes", "No", "It may be yes or no", "<think>No.</think>Yes!")
    marks = [utils.process_results(doc, [reply])["exact_match"] for reply in replies]
    assert marks == [1.0, 1.0, 0.0, 0.0, 1.0]


def test_both_tasks_name_the_same_item_and_gap_joins_by_it(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    benchmark = make([("red", "blue"), ("cat", "dog"), ("one", "two")])
    paths = write_lmms_eval(benchmark, tmp_path)
    metrics = [metric["metric"] for metric in task_of(paths[0])["metric_list"]]
    assert metrics == ["exact_match", "flipbench_item", "flipbench_group"]
    logs = []
    for side, path in zip(("original", "perturbed"), paths, strict=True):
        utils = utils_of(path)
        rows = []
        for number, doc in enumerate(docs_of(path)):
            scored = utils.process_results(doc, ["A"])
            prompt, target = utils.doc_to_text(doc), utils.doc_to_target(doc)
            row = {"doc_id": number, "input": prompt, "target": target, "filtered_resps": "A"}
            assert list(scored) == metrics  # the kit wants a value of each, and no other
            rows.append(row | scored)
        if side == "perturbed":  # the kit's row numbers would join the wrong items
            rows = [row | {"doc_id": i} for i, row in enumerate(reversed(rows))]
        logs.append(tmp_path / f"{side}.jsonl")
        logs[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = gap_of_predictions(*logs)
    counts = table.scores[0].paired
    assert counts is not None and (counts.n11, counts.b, counts.c) == (0, 3, 0)
    assert any("share 1 images or groups" in text for text in table.scores[0].warnings)


@pytest.mark.parametrize(
    ("file", "config", "limits"),
    [
        (
            "preprocessor_config.json",
            {"min_pixels": 3136, "max_pixels": 12845056},
            (3136, 12845056),
        ),
        ("preprocessor_config.json", {"size": {"shortest_edge": 9, "longest_edge": 99}}, (9, 99)),
        (
            "processor_config.json",
            {"image_processor": {"size": {"shortest_edge": 9, "longest_edge": 99}}},
            (9, 99),
        ),
        ("preprocessor_config.json", {"size": {"shortest_edge": 336}, "crop_size": 336}, None),
        ("preprocessor_config.json", {"size": 336}, None),
        ("preprocessor_config.json", ["odd"], None),
    ],
)
def test_the_readme_states_the_pixel_limits_of_each_model(
    make: Callable[..., PairedBenchmark],
    tmp_path: Path,
    file: str,
    config: Any,
    limits: tuple[int, int] | None,
) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / file).write_text(json.dumps(config))
    assert pixel_limits(checkpoint) == limits
    models = {"mine": checkpoint, "none": tmp_path / "no-such"}
    path, _ = write_lmms_eval(make([("red", "blue")]), tmp_path / "out", models)
    readme = (path.parent / "README.md").read_text()
    assert "have 1,200 pixels." in readme and path.stem in readme
    stated = limits and f"- `mine`: `min_pixels={limits[0]},max_pixels={limits[1]}`"
    assert stated in readme if stated else "`mine`" not in readme
    assert "`none`" not in readme
