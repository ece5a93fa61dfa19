"""From a file's name to one mapping: where files are found, overrides, and renamed keys."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from flipbench.benchmarks import TsvSpec
from flipbench.config import loading
from flipbench.config.experiment import load_config
from flipbench.config.loading import PACKAGE, find_config, read_mapping, rename_keys
from flipbench.core.errors import ConfigError

OLD = Path(__file__).parents[1] / "fixtures" / "old_configs.yaml"
RENAMED = {
    "asking": "evaluate.prompt",
    "models.*.url": "models.*.api.base_url",
    "filter.judges.*.blind": "filter.judges.*.hide_answer",
}


def old_configs() -> dict[str, str]:
    """Return the configurations of an earlier version, by their path in its repository."""
    return dict(yaml.safe_load(OLD.read_text()))


OURS = [path for path in old_configs() if "/accelerate/" not in path]


@pytest.mark.parametrize("path", OURS)
def test_configurations_written_before_still_load(path: str, tmp_path: Path) -> None:
    for name, text in old_configs().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    data = read_mapping(tmp_path / path)
    rest = {"run": "runs/x", "benchmark": "{format: shapes}"}  # of a file that others extend
    config = load_config(tmp_path / path, [f"{k}={v}" for k, v in rest.items() if k not in data])
    (tmp_path / "again.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "again.yaml") == config


def test_shipped_configurations_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = load_config("configs/shapes.yaml", ["seed=4"])
    assert shipped.seed == 4 and shipped.contaminate.strategies
    (tmp_path / "mine.yaml").write_text("extends: configs/shapes.yaml\ntitle: mine\n")
    assert load_config("mine.yaml").models == shipped.models
    (tmp_path / "copy").mkdir()
    text = (PACKAGE / "configs" / "shapes.yaml").read_text()
    (tmp_path / "copy" / "shapes.yaml").write_text(text)
    assert load_config("copy/shapes.yaml").models == shipped.models


def test_a_file_of_ones_own_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "configs" / "shapes.yaml"
    own.parent.mkdir()
    own.write_text("run: mine\nbenchmark: {format: shapes}\n")
    assert load_config("configs/shapes.yaml").run == Path("mine")
    assert find_config("configs/generate/tiny.yaml") == PACKAGE / "configs/generate/tiny.yaml"
    for other in ("tiny.yaml", "config/experiment.py", "x/configs/shapes.yaml"):
        assert find_config(other) == Path(other), "only configurations are looked for"


def test_a_misspelt_shipped_configuration_names_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="did you mean 'any-tsv.yaml'?"):
        load_config("configs/generate/any-tvs.yaml")


@pytest.mark.parametrize("path_first", [True, False])
def test_another_format_replaces_the_keys_of_the_files_benchmark(path_first: bool) -> None:
    changes = ["benchmark.format=vlmeval", "benchmark.path=b.tsv"]
    config = load_config("configs/generate/tiny.yaml", changes[:: -1 if path_first else 1])
    assert config.benchmark == TsvSpec(path=Path("b.tsv"))


def test_the_same_format_and_a_controls_kind_keep_their_neighbours() -> None:
    same = read_mapping(PACKAGE / "shapes" / "demo.yaml", ["benchmark.format=shapes"])
    assert same["benchmark"] == {"format": "shapes", "n_items": 320}
    reference = find_config("configs/generate/reference.yaml")
    edited = read_mapping(reference, ["generate.editor.control.kind=depth"])
    assert edited["generate"]["editor"]["control"] == {"kind": "depth", "low": 100, "high": 200}
    other = read_mapping(
        reference, ["generate.editor.pipeline=p", "generate.editor.kind=diffusers"]
    )
    assert other["generate"]["editor"] == {"kind": "diffusers", "pipeline": "p"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"asking": {"ask": "choose"}}, {"evaluate": {"prompt": {"ask": "choose"}}}),
        (
            {"asking": 1, "evaluate": {"batch_size": 2}},
            {"evaluate": {"batch_size": 2, "prompt": 1}},
        ),
        (
            {"models": {"a": {"url": "x", "path": "p"}, "b": {"path": "q"}, "c": None}},
            {
                "models": {
                    "a": {"path": "p", "api": {"base_url": "x"}},
                    "b": {"path": "q"},
                    "c": None,
                }
            },
        ),
        (
            {"filter": {"judges": ["shapes", {"blind": True}]}},
            {"filter": {"judges": ["shapes", {"hide_answer": True}]}},
        ),
        ({"seed": 1, "filter": {"judges": "shapes"}}, {"seed": 1, "filter": {"judges": "shapes"}}),
        ({"models": [1]}, {"models": [1]}),
    ],
)
def test_values_under_old_keys_move_to_the_new_ones(
    before: Any, after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "OLD_KEYS", RENAMED)
    rename_keys(before, "here")
    assert before == after


def test_old_keys_are_read_from_files_and_overrides_and_warned_of_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "OLD_KEYS", {"contaminate.rounds": "contaminate.epochs"})
    base, path = tmp_path / "base.yaml", tmp_path / "c.yaml"
    base.write_text("run: r\nbenchmark: {format: shapes}\ncontaminate: {rounds: 7, copies: 2}\n")
    path.write_text("extends: base.yaml\ncontaminate: {epochs: 5}\n")
    with caplog.at_level(logging.WARNING):
        assert load_config(base).contaminate.epochs == 7
    assert caplog.messages == [
        f"{base}: contaminate.rounds is now contaminate.epochs; the old name is still read"
    ]
    assert load_config(path).contaminate.epochs == 5, "the extending file wins under any name"
    for overrides, epochs in (
        (["contaminate.rounds=3"], 3),
        (["contaminate.rounds=3", "contaminate.epochs=4"], 4),
        (["contaminate.epochs=4", "contaminate.rounds=3"], 3),
    ):
        config = load_config(path, overrides)
        assert (config.contaminate.epochs, config.contaminate.copies) == (epochs, 2)


def test_a_key_that_is_in_no_table_is_refused_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("run: r\nbenchmark: {format: shapes}\ncontaminate: {rounds: 7}\n")
    with pytest.raises(ConfigError, match="contaminate.rounds: unknown key"):
        load_config(path)
