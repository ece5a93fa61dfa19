"""``flipbench export CONFIG OUT --format llava``: a grid's data for other trainers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.command_line import Flipbench

STRATEGIES = {
    "LoRA": {"train": "lora", "learning_rate": 0.001, "batch_size": 8},
    "ALL": {"train": "all", "learning_rate": 0.001, "batch_size": 8},
}


@pytest.mark.parametrize(
    ("form", "files", "command"),
    [
        ("llava", {"llava.json", "images", "train.sh"}, "bash {}/train.sh"),
        (
            "llamafactory",
            {"data.json", "dataset_info.json", "images", "train.yaml"},
            "cd {} && llamafactory-cli train train.yaml",
        ),
    ],
)
def test_each_plan_has_a_folder_and_its_command_is_printed(
    form: str, files: set[str], command: str, opened: Any, flipbench: Flipbench, tmp_path: Path
) -> None:
    opened(
        strategies={"LoRA": STRATEGIES["LoRA"]},
        data={"twice": {"copies": 2}, "half": {"fraction": 0.5}},
    )
    result = flipbench("export", tmp_path / "c.yaml", "out", "--format", form)
    assert result.status == 0
    folders = sorted((tmp_path / "out").iterdir())
    data = [next(folder.glob("*a.json")) for folder in folders]
    assert sorted(len(json.loads(file.read_text())) for file in data) == [4, 16]
    for folder in folders:
        assert {file.name for file in folder.iterdir()} == files
        assert f"  {command.format(Path('out') / folder.name)}\n" in result.out
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_plan_that_cannot_be_exported_is_named_and_the_others_are_written(
    opened: Any, flipbench: Flipbench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(strategies=STRATEGIES)
    result = flipbench("export", tmp_path / "c.yaml", "out", "--format", "llava")
    assert result.status == 1
    assert (
        "not exported: tiny, ALL: LLaVA's official trainer never trains the vision tower"
        in caplog.text
    )
    (folder,) = (tmp_path / "out").iterdir()
    assert "tiny, LoRA: 8 examples in out/" in result.out and "lora" in folder.name


def test_an_unknown_export_format_is_refused(
    opened: Any, flipbench: Flipbench, tmp_path: Path
) -> None:
    opened()
    result = flipbench("export", tmp_path / "c.yaml", "out", "--format", "xml")
    assert result.status == 2
    assert "--format xml: no such format" in result.err and "llava, llamafactory" in result.err


def test_clean_retraining_is_not_exported_to_llamafactory(
    opened: Any, flipbench: Flipbench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = '{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}'
    (tmp_path / "clean.jsonl").write_text(f"{line}\n" * 4)
    wash = {"corpus": {"path": str(tmp_path / "clean.jsonl")}}
    opened(data={"washed": {"wash": wash}})
    result = flipbench("export", tmp_path / "c.yaml", "out", "--format", "llamafactory")
    assert result.status == 1 and "washes the checkpoint of another plan" in caplog.text
    (folder,) = (tmp_path / "out").iterdir()
    assert yaml.safe_load((folder / "train.yaml").read_text())["finetuning_type"] == "lora"


def test_llamafactory_s_own_limit_for_conversations_is_named(
    opened: Any, flipbench: Flipbench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turns = [{"from": "human", "value": "?"}, {"from": "gpt", "value": "!"}]
    (tmp_path / "mix.json").write_text(json.dumps([{"conversations": turns}] * 4))
    corpus = {"path": str(tmp_path / "mix.json"), "max_tokens": 64}
    opened(data={"diluted": {"corpus": corpus}}, strategies={"LoRA": STRATEGIES["LoRA"]})
    result = flipbench("export", tmp_path / "c.yaml", "out", "--format", "llamafactory")
    assert result.status == 0
    (folder,) = (tmp_path / "out").iterdir()
    limit = yaml.safe_load((folder / "train.yaml").read_text())["cutoff_len"]
    assert f"cuts conversations after {limit} tokens, not after max_tokens: 64" in caplog.text
