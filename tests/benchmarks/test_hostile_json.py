"""JSON nested too deeply and integers of thousands of digits: refused with the line, everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from flipbench.benchmarks import JsonlSpec, load_benchmark
from flipbench.benchmarks.tables import parse_json
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.evaluate.reasoning.cases import read_cases
from flipbench.evaluate.reasoning.replies import _object
from flipbench.export.recipe import _rows
from flipbench.filters.audit.direct_reveal import read_reveal
from flipbench.generate.flip import read_new_answers

DEEP = ['{"a":' * 50_000, "[" * 50_000, f'{{"a": {"9" * 5_000}}}', f"[{'9' * 5_000}]"]
READERS: list[Callable[[Path], Any]] = [
    read_cases,
    lambda path: list(_rows(path)),
    lambda path: read_new_answers(path, {"a"}),
]


@pytest.mark.parametrize("text", DEEP)
@pytest.mark.parametrize("read", READERS)
def test_files_of_lines_are_refused(tmp_path: Path, read: Callable[[Path], Any], text: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(DataError, match=r"x.jsonl(, line |:)1: .*(nested too|thousands of digits)"):
        read(path)


@pytest.mark.parametrize("text", DEEP)
def test_a_row_of_a_benchmark_is_refused_and_the_others_read(tmp_path: Path, text: str) -> None:
    row = {"images": [], "question": "Which?", "answer": "red"}
    extra = row | {"extra": text}
    lines = [json.dumps(row), text, json.dumps(extra), json.dumps(row)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    benchmark = load_benchmark(JsonlSpec(path=tmp_path / "x.jsonl"), ImageStore(tmp_path / "s"))
    assert len(benchmark.items) == 2
    reasons = [problem.what for problem in benchmark.refused]
    assert len(reasons) == 2 and all("nested" in r or "digits" in r for r in reasons)


@pytest.mark.parametrize("text", DEEP)
def test_a_model_s_reply_is_no_verdict(text: str) -> None:
    assert _object(text + "}") is None
    with pytest.raises(DataError, match="not the requested JSON"):
        read_reveal(text, cast(Any, None))


def test_other_errors_name_their_line() -> None:
    with pytest.raises(json.JSONDecodeError, match="line 2 column 1"):
        parse_json('{"a":\n}')
    assert parse_json(b'{"a": 1}') == {"a": 1}


def test_a_long_key_of_a_row_is_cut_in_the_message(tmp_path: Path) -> None:
    row = {"images": [], "question": "Which?", "answer": "red"}
    lines = [json.dumps(row), json.dumps(row | {"[" * 100_000: 1})]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    benchmark = load_benchmark(JsonlSpec(path=tmp_path / "x.jsonl"), ImageStore(tmp_path / "s"))
    (problem,) = benchmark.refused
    assert "unknown key" in problem.what and len(problem.what) < 300
