"""The folder for Inspect, and eval.yaml: run by inspect_ai with its mock model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inspect_ai
import pytest
import yaml
from huggingface_hub import DatasetCard
from inspect_ai.log import EvalLog
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from flipbench.core.paired import PairedBenchmark
from flipbench.evaluate.predictions.gap import gap_of_predictions
from flipbench.export.huggingface import write_huggingface
from flipbench.export.inspect_eval import write_inspect
from flipbench.export.pairs import export_name
from flipbench.prompting.parsing import parse_choice
from tests.export.test_lmms_eval import OPTIONS, REPLIES

pytestmark = pytest.mark.slow


def run(tasks: str, reply: Callable[[str], str], logs: Path) -> list[EvalLog]:
    """Run tasks with a model that replies to the item's prompt."""

    def output(messages: list[Any], *_: Any) -> ModelOutput:
        found = ModelOutput.from_content("mockllm/model", reply(messages[-1].text))
        found.usage = ModelUsage()  # otherwise the mock model counts, with tokens from the network
        return found

    model = get_model("mockllm/model", custom_outputs=output)
    found = inspect_ai.eval(tasks, model=model, log_dir=str(logs), display="none")
    assert [log.status for log in found] == ["success"] * len(found), [log.error for log in found]
    return found


def ask(task: Path, side: str, reply: Callable[[str], str], logs: Path) -> EvalLog:
    (log,) = run(f"{task}@{side}", reply, logs)
    return log


def accuracy(log: EvalLog) -> float:
    assert log.results is not None
    return float(log.results.scores[0].metrics["accuracy"].value)


def marks(log: EvalLog, benchmark: PairedBenchmark) -> list[Any]:
    """Return the marks in the order of the items."""
    values = {sample.id: sample.scores["right_answer"].value for sample in log.samples or ()}
    return [values[item.id] for item in benchmark.originals]


def pictures_of(sample: Any) -> int:
    return [part.type for part in sample.input[0].content].count("image")


def prompts(task: Path, side: str) -> list[str]:
    lines = (task.parent / f"{side}.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines]


def test_both_tasks_run_in_another_folder_and_gap_joins_their_logs(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    benchmark = make([("red", "blue"), ("cat", "dog"), None, ("one", "two")])
    task, *_ = write_inspect(benchmark, tmp_path / "here")
    task = Path(shutil.move(task.parent, tmp_path / "there")) / task.name
    asked = prompts(task, "original")
    assert asked == prompts(task, "perturbed")
    memorised = dict(zip(asked, ("A", "(A)", "red", "B"), strict=True))
    original = ask(task, "original", memorised.__getitem__, tmp_path / "logs")
    perturbed = ask(task, "perturbed", memorised.__getitem__, tmp_path / "logs")
    assert marks(original, benchmark) == ["C", "C", "C", "I"]
    assert marks(perturbed, benchmark) == ["I", "I", "I", "C"]
    assert accuracy(original) == 0.75
    assert original.eval.task == export_name(benchmark, "original")
    assert all(pictures_of(sample) == 1 for sample in perturbed.samples or ())
    table = gap_of_predictions(Path(original.location), Path(perturbed.location))
    counts = table.scores[0].paired
    assert counts is not None and (counts.n11, counts.b, counts.c) == (0, 2, 1), "of 3 with options"
    assert any("share 1 images or groups" in text for text in table.scores[0].warnings)


def test_replies_are_read_by_our_own_parser(
    make: Callable[..., PairedBenchmark], tmp_path: Path
) -> None:
    benchmark = make([OPTIONS] * len(REPLIES))
    task, *_ = write_inspect(benchmark, tmp_path)
    queue = iter(REPLIES)
    log = ask(task, "perturbed", lambda _: next(queue), tmp_path / "logs")
    samples = log.samples or []
    assert sorted(sample.output.completion for sample in samples) == sorted(REPLIES)
    for sample in samples:
        choice = parse_choice(sample.output.completion, OPTIONS)
        assert sample.scores["right_answer"].value == ("C" if choice == 1 else "I")


def test_eval_yaml_runs_as_inspect_reads_it_from_the_hub(
    make: Callable[..., PairedBenchmark], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = make([("red", "blue"), ("cat", "dog")], licence="CC-BY-4.0")
    folder = tmp_path / "org" / "bench"
    write_huggingface(benchmark, folder, leaderboard=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda **_: str(folder / "eval.yaml"))

    logs = run("hf/org/bench", lambda _: "ANSWER: A", tmp_path / "logs")
    assert [accuracy(log) for log in logs] == [1.0, 0.0]
    assert {pictures_of(sample) for log in logs for sample in log.samples or ()} == {1}
    assert len(DatasetCard.load(folder / "README.md").data.configs) == 4
    tasks = yaml.safe_load((folder / "eval.yaml").read_text())["tasks"]
    assert [task["config"] for task in tasks] == ["eval-original", "eval-perturbed"]
