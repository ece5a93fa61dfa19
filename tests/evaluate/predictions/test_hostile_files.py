"""Files of predictions broken in every part: read, or refused by name, and never a traceback."""

from __future__ import annotations

import copy
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flipbench.core.errors import DataError
from flipbench.evaluate.predictions.gap import gap_of_predictions
from flipbench.evaluate.predictions.inspect_logs import inspect_predictions
from flipbench.evaluate.predictions.read import read_predictions
from tests.fixtures.prediction_files import FILES, Row, both, plain_csv, rows

DEEP = "[" * 100_000
NESTED: Any = json.loads("[" * 500 + "]" * 500)
ODD: list[Any] = [None, [], {}, [None], "x", "", 5, True, 1e999, [[]], {"a": None}, NESTED]


def parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part of a JSON value; of a list, of its first member only."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from parts(value[key], (*path, key))
    elif isinstance(value, list) and value:
        yield from parts(value[0], (*path, 0))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    changed = copy.deepcopy(value)
    parent = changed
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = by
    return changed


def readable(path: Path, content: str) -> bool:
    """Return whether a file can be read; anything but a DataError that names it is a failure."""
    path.write_text(content)
    try:
        read_predictions(path)
    except DataError as error:
        assert path.name in str(error) and len(str(error)) < 600
        return False
    return True


def chat_log() -> Any:
    """An Inspect log whose only reply stands in the parts of a message."""
    log = json.loads((FILES / "inspect_original.json").read_text())
    said = {"role": "assistant", "content": [{"type": "text", "text": "A"}]}
    asked = [{"role": "user", "content": [{"type": "text", "text": "Which?"}]}]
    sample = {
        "id": 1,
        "epoch": 1,
        "input": asked,
        "choices": ["a", "b"],
        "target": ["A"],
        "output": {"choices": [{"message": said}], "error": None},
        "scores": {"choice": {"value": "C"}},
        "error": {"message": ""},
    }
    return log | {"samples": [sample], "eval": {"model": "m", "task": "t"}}


def test_an_inspect_log_with_any_part_replaced_is_read_or_refused(tmp_path: Path) -> None:
    log = chat_log()
    tried = [replaced(log, path, odd) for path in parts(log) for odd in ODD]
    outcomes = [readable(tmp_path / "log.json", json.dumps(log)) for log in tried]
    assert len(outcomes) > 500 and 0 < sum(outcomes) < len(outcomes)


def test_a_sample_of_lmms_eval_with_any_part_replaced_is_read_or_refused(tmp_path: Path) -> None:
    (first, *_) = (FILES / "lmms_samples_shapes_original.jsonl").read_text().splitlines()
    sample = json.loads(first)
    tried = [replaced(sample, path, odd) for path in parts(sample) for odd in ODD]
    outcomes = [readable(tmp_path / "x.jsonl", json.dumps(row) + "\n") for row in tried]
    assert len(outcomes) > 90 and 0 < sum(outcomes) < len(outcomes)


@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (DEEP, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        (f'{{"index": {"9" * 5_000}, "prediction": "A"}}', "thousands of digits"),
    ],
)
def test_deep_json_and_long_integers_are_refused(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=f"{name}, line 1: .*{message}"):
        read_predictions(tmp_path / name)


@pytest.mark.parametrize("sample", [None, 5, "x", []])
def test_a_sample_that_is_no_object_is_named(tmp_path: Path, sample: object) -> None:
    log = chat_log()
    log["samples"].append(sample)
    with pytest.raises(DataError, match=r"log.json, sample 2: \w+, not an object"):
        inspect_predictions(tmp_path / "log.json", log)


@pytest.mark.parametrize("broken", ["xl/worksheets/sheet1.xml", "xl/workbook.xml", "missing sheet"])
@pytest.mark.parametrize("content", ["<row", "<a>&nope;</a>", "", "<sheetData><row r='x'/>"])
def test_a_workbook_with_a_broken_part_is_refused(
    tmp_path: Path, broken: str, content: str
) -> None:
    whole, _ = both(tmp_path, ".xlsx")
    path = tmp_path / "broken.xlsx"
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            if broken == "missing sheet" and "sheet1" in name:
                continue
            target.writestr(name, content if name == broken else source.read(name))
    with pytest.raises(DataError, match=r"broken\.xlsx: (not an|.*no sheet|.*no rows)"):
        read_predictions(path)


@pytest.mark.parametrize("empty", ["original", "perturbed"])
def test_the_file_without_replies_is_the_one_that_is_named(tmp_path: Path, empty: str) -> None:
    def side(name: str) -> list[Row]:
        kept = ("index", "question", "prediction")
        table = [{key: row[key] for key in kept} for row in rows(name)]
        return [row | {"prediction": ""} if name == empty else row for row in table]

    names = ("original", "perturbed")
    paths = [plain_csv(tmp_path / f"{name}.csv", side(name)) for name in names]
    with pytest.raises(DataError, match=rf"^{empty}.csv, line 2: there is no reply, nor .* 12"):
        gap_of_predictions(paths[0], paths[1])


@pytest.mark.parametrize("at", range(5, 1500, 100))
def test_a_parquet_file_with_an_altered_byte_is_read_or_refused(tmp_path: Path, at: int) -> None:
    path = tmp_path / "x.parquet"
    pd.DataFrame(rows("original")).to_parquet(path)
    data = path.read_bytes()
    path.write_bytes(data[:-at] + bytes([data[-at] ^ 255]) + data[len(data) - at + 1 :])
    try:
        read_predictions(path)
    except DataError as error:
        assert "x.parquet" in str(error) and "\n" not in str(error)
