"""What a person mistypes, or someone plants, in YAML: one line, with file and line number."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flipbench.config.experiment import load_config
from flipbench.config.yaml_text import MAX_CHARACTERS, MAX_DEPTH, read_yaml
from flipbench.core.errors import ConfigError

BASE = "run: r\nbenchmark: {format: shapes, n_items: 4}\n"
LAUGHS = "".join(
    f"{letter}: &{letter} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, letter in zip("abcdefghi", "bcdefghij", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{n}: &m{n} {{p: *{old}, q: *{old}, r: *{old}}}\n"
    for n, old in ((n, f"m{n - 1}" if n else "a") for n in range(30))
)


def refusal(text: str, folder: Path, *overrides: str) -> str:
    """Return the message that refuses a configuration, which must come within a second."""
    path = folder / "c.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    start = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert time.process_time() - start < 1
    message = str(caught.value)
    assert max(len(line) for line in message.splitlines()) < 500
    return message.replace(str(path), "c.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [x, x]\n" + LAUGHS, "c.yaml:8: not YAML (over 100,000 values, with its aliases"),
        (MERGES, "over 100,000 values"),
        ("a: &a [*a]\n", "c.yaml:3: not YAML (an alias to a part that contains it"),
        ("a: &a {b: {c: *a}}\n", "an alias to a part that contains it"),
        ("a: " + "[" * 20_000, f"c.yaml:3: not YAML (nested more than {MAX_DEPTH} deep"),
        ("a: " + "{a: " * 20_000, f"nested more than {MAX_DEPTH} deep"),
        ("a: " + "- " * 20_000, "c.yaml:3: not YAML"),
        ("".join(" " * n + "a:\n" for n in range(300)), f"nested more than {MAX_DEPTH} deep"),
        ("a: " + "b" * MAX_CHARACTERS, f"c.yaml: not YAML (over {MAX_CHARACTERS:,} characters"),
        ("title: \0", "c.yaml: not YAML (unacceptable character #x0000"),
        ('title: "a\\0b"', "c.yaml:3: not YAML (a text with a NUL character"),
        ("seed: 1\nseed: 2", "c.yaml:4: not YAML (the key 'seed' is there twice, first in line 3"),
        ("evaluate:\n  batch_size: 1\n  batch_size: 1", "c.yaml:5: not YAML (the key 'batch_size'"),
        ("seed: 010", "c.yaml:3: not YAML (010: its leading 0 makes it octal; leave out the 0"),
        ("seed: -0_7", "-0_7: its leading 0 makes it octal"),
        ("seed: 1:30", "1:30: it would be read in base 60"),
        ("title: 1:30.5", "c.yaml:3: not YAML (1:30.5: it would be read in base 60"),
        ("title: !!int ''", "c.yaml:3: not YAML"),
        ("title: !!float ''", "c.yaml:3: not YAML"),
        ("title: !!bool maybe", "c.yaml:3: not YAML (maybe: 'maybe'"),
        ("title: !!timestamp later", "c.yaml:3: not YAML"),
        ("seed: " + "9" * 5_000, "c.yaml:3: not YAML (999"),
        ("title: 2026-13-45", "c.yaml:3: not YAML (2026-13-45: month must be in 1..12"),
        ("a: !!python/object/apply:os.system [ls]", "c.yaml:3: not YAML"),
        ("a: b: c", "c.yaml:3: not YAML (mapping values are not allowed here"),
        ("? [a]\n: b", "c.yaml:3: not YAML"),
        ("\udcff", "c.yaml: cannot be read"),
        ("seed: true", "c.yaml:\n  seed: a number, not true"),
        ("contaminate: {epochs: yes}", "contaminate.epochs: a number, not true"),
        ("models: {m: {path: x, dose: false}}", "models.m.dose: a number, not false"),
        (
            "contaminate: {strategies: {a: {train: llm, learning_rate: .inf}}}",
            "contaminate.strategies.a.learning_rate: a number, not inf",
        ),
        (
            "generate: {editor: {kind: flux-controlnet, pipeline: p, controlnet: c,"
            " settings: {guidance: .nan}}}",
            "generate.editor.settings.guidance: a number, not nan",
        ),
        ("evaluate: {detectors: 3}", "evaluate.detectors"),
        ("title: [" + "x, " * 8_000 + "]", "title: Input should be a valid string (got ["),
        ("k" * 900 + ": 1", "...: unknown key"),
        ("1: 2", "1"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, message: str, tmp_path: Path) -> None:
    assert message in refusal(BASE + text, tmp_path)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=010", "'seed=010': the value is not YAML (010: its leading 0"),
        ("seed=true", "seed: a number, not true"),
        ("title=" + "[" * 20_000, "the value is not YAML (nested more than"),
        ('title="a\\0"', "the value is not YAML (a text with a NUL"),
        (".".join("a" * 5_000) + "=1", "a key has at most"),
        ("run.x=1", "run is 'r', which has no keys"),
        ("x" * 5_000, "overrides have the form key=value"),
    ],
)
def test_overrides_that_are_refused(override: str, message: str, tmp_path: Path) -> None:
    assert message in refusal(BASE, tmp_path, override)


@pytest.mark.parametrize("run", ['""', '"  "'])
def test_a_run_needs_a_name(run: str, tmp_path: Path) -> None:
    text = BASE.replace("run: r", f"run: {run}")
    assert "run: Value error, name the folder, e.g. runs/first" in refusal(text, tmp_path)


@pytest.mark.parametrize("name", ["a" * 5_000, "b\\0c"])
def test_a_file_to_extend_that_cannot_be(name: str, tmp_path: Path) -> None:
    assert refusal(f'extends: "{name}"\n' + BASE, tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: &x {b: 1}\nc: {<<: *x, b: 2}\n", {"a": {"b": 1}, "c": {"b": 2}}),
        ("a: &x [1]\nb: *x\nc: *x\n", {"a": [1], "b": [1], "c": [1]}),
        ("[0, -0, +5, 0x1f, 0b11, 1_000, 0.5, '010']", [0, 0, 5, 31, 3, 1000, 0.5, "010"]),
        ("{1: a, '1': b}", {1: "a", "1": "b"}),
    ],
)
def test_what_is_read(text: str, value: object) -> None:
    assert read_yaml(text, "x") == value


def test_a_name_that_is_not_close_is_not_suggested(tmp_path: Path) -> None:
    message = refusal(BASE + "evaluate: {perturbed: 1}\n", tmp_path)
    assert message.endswith("evaluate.perturbed: unknown key")


def test_booleans_stay_booleans(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(BASE + "models: {m: {path: x, trust_remote_code: true}}\n")
    assert load_config(tmp_path / "c.yaml").models["m"].trust_remote_code is True
