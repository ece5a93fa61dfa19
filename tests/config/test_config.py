from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flipbench.api.stages.loop import configure_demo
from flipbench.config.experiment import Config, load_config
from flipbench.core.errors import ConfigError
from flipbench.generate.editors.flux_editor import FluxEditorSpec
from flipbench.shapes.demos import demo_of

ROOT = Path(__file__).parents[2]
WHOLE = """
title: a title
run: runs/x
seed: 7
benchmark: {format: shapes, n_items: 12}
models:
  m: {path: "shapes:llava", dtype: bfloat16, revision: v2}
contaminate:
  epochs: 2
  copies: 3
  strategies:
    LoRA: {train: lora, learning_rate: 0.004}
evaluate:
  detectors: [perturbation_gap]
  prompt: {ask: generate, max_new_tokens: 8}
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def file(text: str, name: str = "c.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return file


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_values_are_read_from_yaml(write: Any) -> None:
    config = load_config(write(WHOLE))
    assert config.benchmark.format == "shapes" and config.benchmark.n_items == 12
    assert config.models["m"].revision == "v2" and config.models["m"].trust_remote_code is False
    assert config.contaminate.strategies["LoRA"].lora_rank == 8
    assert config.evaluate.prompt.max_new_tokens == 8
    assert [judge.kind for judge in config.filter.judges] == ["shapes"]


def test_a_resolved_configuration_reloads_equal(write: Any) -> None:
    config = load_config(write(WHOLE), ["seed=3", "title=ü ☂"])
    again = load_config(write(config.to_yaml(), "again.yaml"))
    assert again == config
    assert again.to_yaml() == config.to_yaml()


@pytest.mark.parametrize(
    "path",
    [
        demo_of().file,
        demo_of(small=True).file,
        demo_of(diffusion=True).file,
        *sorted((ROOT / "configs").glob("*.yaml")),
        ROOT / "configs" / "audit" / "medical.yaml",
    ],
    ids=lambda path: path.name,
)
def test_every_shipped_configuration_loads_and_reloads(path: Path, write: Any) -> None:
    config = load_config(path)
    assert load_config(write(config.to_yaml())) == config


@pytest.mark.slow
def test_the_small_demo_is_a_part_of_the_whole(tmp_path: Path) -> None:
    demo = demo_of(small=True)
    small, full = configure_demo(demo, tmp_path), load_config(demo_of().file)
    assert small.benchmark == full.benchmark, "fewer items would lack power"
    assert small.models.items() < full.models.items()
    assert small.contaminate.strategies.items() < full.contaminate.strategies.items()
    assert small.contaminate.epochs < full.contaminate.epochs
    assert set(small.evaluate.detectors) < set(full.evaluate.detectors)
    corpus = small.contaminate.data["control"].corpus
    assert corpus and len(corpus.path.read_text().splitlines()) == 320 * 4


@pytest.mark.slow
def test_the_demo_by_diffusion_draws_with_the_shipped_flux(tmp_path: Path) -> None:
    demo = demo_of(small=True, diffusion=True)
    assert demo.options == ("--diffusion", "--small")
    small, full = configure_demo(demo, tmp_path), load_config(demo.file)
    assert small.generate == full.generate
    editor = small.generate.editor
    assert isinstance(editor, FluxEditorSpec)
    assert editor.pipeline == "shapes:flux"
    assert {"verbatim", "control"} == small.contaminate.data.keys()
    assert small.benchmark != full.benchmark


def test_extends_and_overrides_win_in_order(write: Any) -> None:
    write(WHOLE, "base/whole.yaml")
    write("extends: base/whole.yaml\nseed: 8\ncontaminate: {epochs: 5}\n", "middle.yaml")
    write("models: {n: {path: other}}\nseed: 1\n", "extra.yaml")
    path = write("extends: [middle.yaml, extra.yaml]\ntitle: mine\n")
    config = load_config(path, ["contaminate.copies=9", "models.m.dtype=float16", "title=last"])
    assert config.title == "last"
    assert config.seed == 1  # the later base wins
    assert (config.contaminate.epochs, config.contaminate.copies) == (5, 9)
    assert config.contaminate.strategies["LoRA"].learning_rate == 0.004
    assert (config.models["m"].dtype, config.models["n"].path) == ("float16", "other")
    assert load_config(path).models["m"].dtype == "bfloat16"


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("seed=5", lambda c: c.seed == 5),
        ("run=/a/b=c", lambda c: c.run == Path("/a/b=c")),
        ("title=", lambda c: False),
        ("evaluate.detectors=[a, b]", lambda c: c.evaluate.detectors == ("a", "b")),
        (
            "contaminate.strategies.New={train: all, learning_rate: 1.0e-5}",
            lambda c: c.contaminate.strategies["New"].learning_rate == 1e-5,
        ),
        ("models.m.revision=null", lambda c: c.models["m"].revision is None),
        ("filter.judges=[shapes, shapes]", lambda c: len(c.filter.judges) == 2),
    ],
)
def test_overrides_are_yaml(write: Any, override: str, read: Any) -> None:
    path = write(WHOLE)
    if override == "title=":
        assert "title: Input should be a valid string (got None)" in refusal(path, override)
    else:
        assert read(load_config(path, [override]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seeds: 1", "seeds: unknown key; did you mean 'seed'?"),
        ("contaminate: {epoch: 1}", "contaminate.epoch: unknown key; did you mean 'epochs'?"),
        ("evaluate: {detector: []}", "evaluate.detector: unknown key; did you mean 'detectors'?"),
        ("evaluate: {prompt: {asks: x}}", "evaluate.prompt.asks: unknown key; did you mean 'ask'?"),
        ("models: {m: {pth: x}}", "models.m.pth: unknown key; did you mean 'path'?"),
        ("models: {m: {pth: x}}", "models.m.pth: unknown key; did you mean 'path'?"),
        ("benchmark: {format: shapes, n_item: 3}", "benchmark.n_item: unknown key; did you mean"),
        ("zzzzzz: 1", "zzzzzz: unknown key\n"),
        ("seed: three", "seed: Input should be a valid integer"),
        ("seed: three", "(got 'three')"),
        ("contaminate: {epochs: 0}", "contaminate.epochs: Input should be greater than or equal"),
        ("contaminate: {epochs: 10001}", "contaminate.epochs: Input should be less than or equal"),
        ("evaluate: {prompt: {max_new_tokens: 0}}", "evaluate.prompt.max_new_tokens: Input should"),
        (
            "audit: {corpus: {pictures: x, encoders: [phash], alphas: [0.1, .nan]}}",
            "audit.corpus.alphas.1: Input should be less than 1",
        ),
        ("contaminate: 3", "contaminate: Input should be a valid dictionary"),
        (
            "contaminate: {strategies: {x: {train: vision, learning_rate: 1}}}",
            "contaminate.strategies.x.train: Input should be 'lora', 'llm', 'llm+projector', 'all'",
        ),
        (
            "contaminate: {strategies: {x: {train: all, learning_rate: -1}}}",
            "contaminate.strategies.x.learning_rate: Input should be greater than 0",
        ),
        ("benchmark: {format: tsv}", "benchmark: Input tag 'tsv' found"),
        ("benchmark: {n_items: 3}", "benchmark: Unable to extract tag"),
        ("models: {m: {path: x, dtype: int8}}", "models.m.dtype: Input should be 'float32'"),
    ],
)
def test_mistakes_are_named_with_the_nearest_right_name(
    write: Any, text: str, expected: str
) -> None:
    data = yaml.safe_load(WHOLE) | yaml.safe_load(text)
    path = write(yaml.safe_dump(data))
    message = refusal(path) + "\n"
    assert str(path) in message and expected in message


def test_all_mistakes_are_reported_at_once(write: Any) -> None:
    message = refusal(write("sed: 1\nbenchmark: {format: shapes}\ncontaminate: {epochs: x}\n"))
    for part in ("sed: unknown key; did you mean 'seed'?", "run: missing", "contaminate.epochs"):
        assert part in message
    assert "ValidationError" not in message and "pydantic" not in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a mapping of keys, not nothing"),
        ("- a\n- b", "a mapping of keys, not list"),
        ("a: [", "not YAML"),
        ("extends: nowhere.yaml", "nowhere.yaml: no such configuration file (extended by "),
        ("extends: 5", "'extends' must be a file or a list of files, not 5"),
        ("extends: {a: 1}", "'extends' must be a file or a list of files"),
        ("extends: [c.yaml]", "circular 'extends'"),
        ("extends: ./c.yaml", "circular 'extends'"),
        ("1: 2", "Keys should be strings"),
    ],
)
def test_files_that_are_not_configurations_are_refused(
    write: Any, text: str, expected: str
) -> None:
    assert expected in refusal(write(text))


def test_cycles_of_extends_are_refused_and_diamonds_allowed(write: Any) -> None:
    write("extends: b.yaml", "a.yaml")
    write("extends: c.yaml", "b.yaml")
    assert "circular 'extends'" in refusal(write("extends: a.yaml"))
    write(WHOLE, "whole.yaml")
    write("extends: whole.yaml\nseed: 1", "left.yaml")
    write("extends: whole.yaml\ntitle: t", "right.yaml")
    assert load_config(write("extends: [left.yaml, right.yaml]", "d.yaml")).title == "t"


def test_a_stored_configuration_works_on_the_run_it_lies_in_or_says_so(write: Any) -> None:
    stored = write(WHOLE, "moved/config.yaml")
    assert load_config(stored).run == Path("runs/x"), "a file of one's own may have any name"
    write("{}", "moved/environment.json")
    said = refusal(stored)
    assert "names the run runs/x" in said and f"run={stored.parent}" in said
    assert load_config(stored, [f"run={stored.parent}"]).run == stored.parent


def test_a_missing_file_names_the_nearest(write: Any) -> None:
    path = write(WHOLE, "shapes.yaml")
    assert "did you mean 'shapes.yaml'?" in refusal(path.with_name("shape.yaml"))
    assert refusal(path.parent / "no" / "shapes.yaml").endswith("no such configuration file")


def test_a_path_that_is_not_a_text_file_is_named(write: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert f"{path}: cannot be read" in refusal(path)
    assert f"{tmp_path}: cannot be read" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed", "overrides have the form key=value"),
        ("=3", "overrides have the form key=value"),
        ("seed=[", "the value is not YAML"),
        ("seed.x=3", "seed is 7, which has no keys"),
        ("contaminate.epoch=3", "did you mean 'epochs'?"),
        ("models.m=3", "models.m: "),
        ("a..b=3", "unknown key"),
    ],
)
def test_bad_overrides_are_refused(write: Any, override: str, expected: str) -> None:
    assert expected in refusal(write(WHOLE), override)


def test_a_configuration_is_frozen(write: Any) -> None:
    config = load_config(write(WHOLE))
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 1


KEYS = ["seed", "title", "run", "benchmark", "models", "extends", "contaminate", "x"]
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.dictionaries(st.sampled_from(KEYS), TREES), key=st.sampled_from(KEYS), value=TREES)
def test_nonsense_raises_only_a_config_error(write: Any, data: Any, key: str, value: Any) -> None:
    path = write(yaml.safe_dump(data, allow_unicode=True))
    try:
        config = load_config(path, [f"{key}={yaml.safe_dump(value, default_flow_style=True)}"])
    except ConfigError:
        return
    assert isinstance(config, Config)


def test_a_model_is_a_checkpoint_or_behind_a_server(tmp_path: Path) -> None:
    base = "run: r\nbenchmark: {format: shapes}\nmodels:\n  m: "
    path = tmp_path / "c.yaml"
    path.write_text(base + "{api: {model: gpt-4o}, family: gpt, external: true}\n")
    model = load_config(path).models["m"]
    assert model.api is not None and model.api.model == "gpt-4o" and not model.path
    path.write_text(load_config(path).to_yaml())
    assert load_config(path).models["m"] == model
    for wrong, expected in (
        ("{}", "give exactly one of path, api and python"),
        ("{path: x, api: {model: gpt-4o}}", "give exactly one of path, api and python"),
        ("{api: {model: gpt-4o}, dtype: bfloat16}", "dtype applies to checkpoints only"),
        ("{api: {modle: gpt-4o}}", "models.m.api.modle: unknown key; did you mean 'model'?"),
    ):
        path.write_text(base + wrong + "\n")
        with pytest.raises(ConfigError, match=re.escape(expected)):
            load_config(path)
