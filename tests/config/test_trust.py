"""Code that the user's own configuration names runs, and that of somebody else's does not."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flipbench import cli
from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.reasoning import read_judge
from flipbench.config.experiment import load_config
from flipbench.config.trust import artefact_of, settings_to_trust
from flipbench.core.errors import ConfigError, FlipbenchError
from flipbench.core.run import Run
from flipbench.export import FORMATS, write_recipe
from studies.population.settings import load_study
from tests.fixtures.command_line import Flipbench
from tests.fixtures.report_data import make_benchmark

ROOT = Path(__file__).parents[2]
POPEN = {"kind": "python", "target": "subprocess:Popen", "arguments": {"args": "touch EXECUTED"}}
CHAT = {"model": "m", "base_url": "https://evil.example/v1"}
PATHS = {"benchmark": {"format": "shapes", "n_items": 2}, "run": "runs/x"}

CODE: list[tuple[str, Any, list[str]]] = [
    ("generate.editor", POPEN, ["target", "arguments"]),
    ("generate.captioner", POPEN, ["target", "arguments"]),
    ("filter.judges", ["shapes", POPEN], ["1.target", "1.arguments"]),
    ("models.m.python", {"target": "os:system", "arguments": {"command": "x"}}, ["target"]),
    ("evaluate.detectors", ["perturbation_gap", "evil:Evil"], ["1"]),
    ("evaluate.parameters", {"evil:Evil": {"x": 1}}, ["evil:Evil"]),
    ("models.m", {"path": "p", "engine": {"kind": "vllm", "executable": "./x"}}, ["engine.exec"]),
    ("models.m", {"path": "p", "engine": {"kind": "vllm", "arguments": ["--x"]}}, ["engine.arg"]),
    ("models.m", {"path": "p", "trust_remote_code": True}, ["trust_remote_code"]),
    ("executor.slurm.setup", ["touch EXECUTED"], [""]),
    ("contaminate.llamafactory.cli", "./x", [""]),
    ("models.m.api", CHAT, ["base_url", "api_key_env"]),
    ("models.m.api", {"model": "m", "api_key_env": "AWS_SECRET"}, ["api_key_env"]),
    ("models.m.api", CHAT | {"api_key_env": None}, ["base_url"]),
    ("evaluate.judge.chat", CHAT, ["base_url", "api_key_env"]),
    ("evaluate.rewording", {"by": "api", "chat": CHAT}, ["chat.base_url"]),
    ("audit.reader", CHAT, ["base_url", "api_key_env"]),
    ("generate.captioner", {"kind": "api", "chat": CHAT}, ["chat.base_url"]),
    ("generate.editor", {"kind": "http", "url": "http://evil.example/", "model": "m"}, ["url"]),
    (
        "generate.captioner",
        {"kind": "local", "chat": {"model": {"path": "p", "trust_remote_code": True}}},
        ["chat.model.trust_remote_code"],
    ),
]
HARMLESS: list[tuple[str, Any]] = [
    ("models.m.api", {"model": "m", "base_url": "http://localhost:8000/v1", "api_key_env": None}),
    ("models.m.api", {"model": "m"}),
    ("models.m", {"path": "p", "engine": "vllm"}),
    ("evaluate.detectors", ["perturbation_gap"]),
]


def nested(key: str, value: Any) -> dict[str, Any]:
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def write(folder: Path, data: dict[str, Any], *, name: str = "config.yaml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(yaml.safe_dump(PATHS | {"run": str(folder)} | data))
    return folder / name


def write_foreign(folder: Path, data: dict[str, Any]) -> Path:
    path = write(folder, data)
    (folder / "environment.json").write_text("{}")
    return path


@pytest.mark.parametrize(("key", "value", "named"), CODE)
def test_what_came_with_a_run_needs_trust(
    key: str,
    value: Any,
    named: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The error and what is printed with trust name each key and value; other files are free."""
    path = write_foreign(tmp_path / "theirs", nested(key, value))
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert "--trust" in str(error.value)
    own = load_config(write(tmp_path / "own", nested(key, value)))
    for name in named:
        full = f"{key}.{name}".rstrip(".")
        line = next(line for line in str(error.value).splitlines() if f"  {full}" in line)
        ((_, given),) = [
            (at, x) for at, x in settings_to_trust(own) if ".".join(map(str, at)).startswith(full)
        ]
        assert json.dumps(given) in line
    assert load_config(path, trust=True).run == path.parent
    assert all(f"  {key}.{name}".rstrip(".") in caplog.text for name in named)
    assert load_config(path), "it is asked about once"


@pytest.mark.parametrize(("key", "value"), HARMLESS)
def test_built_in_parts_need_none(key: str, value: Any, tmp_path: Path) -> None:
    """Built-in kinds, a server on this machine without a key, OpenAI."""
    assert load_config(write_foreign(tmp_path / "theirs", nested(key, value)))


def test_a_run_made_here_is_the_users_own_and_a_copy_or_change_is_not(tmp_path: Path) -> None:
    """The note is outside of the run: by its place, and by what it may say."""
    mine = load_config(write(tmp_path, nested("generate.editor", POPEN)), [f"run={tmp_path}/r"])
    stored = Assembly.open(mine).run.path / "config.yaml"
    assert load_config(stored) == mine
    copy = Path(shutil.copytree(tmp_path / "r", tmp_path / "copy")) / "config.yaml"
    with pytest.raises(ConfigError, match="subprocess:Popen"):
        load_config(copy, [f"run={tmp_path}/copy"])
    stored.write_text(stored.read_text().replace("EXECUTED", "OTHER"))
    with pytest.raises(ConfigError, match="touch OTHER") as error:
        load_config(stored)
    assert "generate.editor" in str(error.value)


def test_what_the_user_sets_is_the_users(tmp_path: Path) -> None:
    """An override is trusted, or takes the place of what is not; other keys stay foreign."""
    theirs = write_foreign(tmp_path / "theirs", nested("generate.editor", POPEN))
    assert load_config(theirs, ["generate.editor=shapes"])
    own = ["generate.editor.target=my:Editor", "generate.editor.arguments={x: 1}"]
    assert load_config(theirs, own)
    with pytest.raises(ConfigError, match=r"\n  generate.editor.arguments"):
        load_config(theirs, own[:1])
    mine = write(tmp_path, {"extends": "theirs/config.yaml"}, name="mine.yaml")
    with pytest.raises(ConfigError, match=r"came with .*theirs, "):
        load_config(mine)
    with pytest.raises(ConfigError, match=r"came with .*theirs, "):
        load_config({"extends": str(theirs), "run": "x"})
    (tmp_path / "link.yaml").symlink_to(theirs)
    with pytest.raises(ConfigError, match="subprocess:Popen"):
        load_config(tmp_path / "link.yaml")
    assert load_config(load_config(theirs, trust=True).model_dump(mode="json"))


@pytest.mark.parametrize(
    "text",
    [
        "evaluate: {detectors: !!set {? 'evil:Evil'}}",
        "base: &x {kind: python, target: 'os:system'}\ngenerate: {editor: *x}",
        "generate: {editor: {<<: {target: 'os:system'}, kind: python}}",
    ],
)
def test_other_ways_to_write_it_do_not_help(text: str, tmp_path: Path) -> None:
    """Sets, aliases, merges: what counts is the validated value."""
    theirs = write_foreign(tmp_path / "theirs", {})
    theirs.write_text(theirs.read_text() + text.replace("base: ", "title: x\n#") + "\n")
    with pytest.raises(ConfigError):
        load_config(theirs)


def test_an_artefact_extends_nothing_outside_of_it(tmp_path: Path) -> None:
    """But files of its own, and those that are shipped."""
    write(tmp_path, {}, name="other.yaml")
    for base in ("../other.yaml", str(tmp_path / "other.yaml")):
        theirs = write_foreign(tmp_path / "theirs", {"extends": base})
        with pytest.raises(FlipbenchError, match="leads out of"):
            load_config(theirs)
    write(tmp_path / "theirs", {}, name="base.yaml")
    for base in ("configs/shapes.yaml", "base.yaml"):
        assert load_config(write_foreign(tmp_path / "theirs", {"extends": base}))


@pytest.mark.parametrize("form", [*FORMATS, "recipe", "huggingface", "run", "saved"])
def test_every_artefact_is_known_as_one(form: str, tmp_path: Path) -> None:
    """What the writers leave, at any depth; a folder with a user's own files is none."""
    benchmark, out = make_benchmark(tmp_path / "made", 2), tmp_path / "out"
    if form == "recipe":
        Assembly.open(load_config(PATHS | {"run": str(tmp_path / "r")}))
        out = write_recipe(benchmark, Run(tmp_path / "r"), out)[0].parent
    elif form == "huggingface":
        from flipbench.export import write_huggingface

        write_huggingface(benchmark, out, "cc-by-4.0")
    elif form == "run":
        Assembly.open(load_config(PATHS | {"run": str(out)}))
    elif form == "saved":
        benchmark.save(out)
    else:
        FORMATS[form](benchmark, out)
    inner = next(p for p in sorted(out.rglob("*")) if p.is_file()).parent
    assert artefact_of(inner / "configs" / "evil.yaml")
    (tmp_path / "project" / "captions").mkdir(parents=True)
    assert artefact_of(tmp_path / "project" / "my.yaml") is None


def test_studies_and_judges_follow_the_same_rule(tmp_path: Path) -> None:
    """A judge's file, and a study's."""
    judge = write_foreign(tmp_path / "theirs", {})
    judge.write_text(yaml.safe_dump({"chat": CHAT}))
    with pytest.raises(ConfigError, match="chat.base_url"):
        read_judge(judge)
    assert read_judge(judge, trust=True)
    judge.write_text(yaml.safe_dump({"run": "x", "evaluate": {"detectors": ["evil:Evil"]}}))
    with pytest.raises(ConfigError):
        load_study(judge)


def test_an_unwritable_state_folder_only_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error, and no trust."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    theirs = write_foreign(tmp_path / "theirs", nested("generate.editor", POPEN))
    assert load_config(theirs, trust=True)
    with pytest.raises(ConfigError):
        load_config(theirs)


SIGNATURES = {
    c.name or c.callback.__name__.rstrip("_"): inspect.signature(c.callback).parameters
    for c in cli.app.registered_commands
    if c.callback
}
WITH_CONFIG = [name for name, p in SIGNATURES.items() if "config" in p]
DRY = [name for name in WITH_CONFIG if "dry_run" in SIGNATURES[name]]
EVIL = "from pathlib import Path\nPath('EXECUTED').touch()\n"


@pytest.mark.parametrize("command", [*WITH_CONFIG, "rebuild", "detect"])
def test_every_command_refuses_and_executes_nothing(command: str, flipbench: Flipbench) -> None:
    """Exit status 2, whether it would run or only count."""
    path = write_foreign(
        Path("theirs"),
        nested("generate.editor", POPEN) | nested("evaluate.detectors", ["evil:Evil"]),
    )
    (path.parent / "expected.jsonl").write_text("")
    Path("evil.py").write_text(EVIL)
    arguments: list[str | Path] = [path.parent if command == "rebuild" else path]
    if command == "detect":
        arguments = ["--model", "shapes:llava", "--benchmark", path]
    arguments += ["out"] if command in ("export", "show") else []
    for more in ([], ["--dry-run"]) if "dry_run" in SIGNATURES[command] else ([],):
        result = flipbench(command, *arguments, *more)
        assert result.status == 2 and "subprocess:Popen" in result.err, result.err
        assert "evil:Evil" in result.err and not Path("EXECUTED").exists()


@pytest.mark.parametrize("command", DRY)
def test_a_dry_run_builds_no_plug_in(
    command: str,
    flipbench: Flipbench,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even the user's own, nor when a run has much already."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil_plug_in.py").write_text(EVIL)
    python = "{kind: python, target: 'evil_plug_in:Evil'}"
    plug_ins = [
        f"filter.judges=[shapes, {python}]",
        "evaluate.detectors=[perturbation_gap, 'evil_plug_in:Evil']",
        "evaluate.parameters={'evil_plug_in:Evil': {x: 1}, of_evil: {y: 2}}",
        "models={m: {path: 'shapes:llava'}, e: {python: {target: 'evil_plug_in:Evil'}}}",
        "audit.text_models=[m, e]",
        "audit.cohort.models=[m, e]",
    ]
    if command == "contaminate":
        plug_ins.append("contaminate.strategies={s: {train: lora, learning_rate: 1.0e-4}}")
    assert flipbench("filter", config, "-q").status == 0
    for more in ([], [f"generate.editor={python}", f"generate.captioner={python}"]):
        result = flipbench(command, config, *plug_ins, *more, "--dry-run")
        assert not Path("EXECUTED").exists() and "evil_plug_in" not in sys.modules
        assert result.status == 0, result.err


def test_python_m_does_not_search_the_current_folder(config: Path) -> None:
    """Its workers and jobs do not either; `python -m` puts that folder first."""
    (config.parent / "evil.py").write_text(EVIL)
    editor = "generate.editor={kind: python, target: 'evil:Evil'}"
    command = [sys.executable, "-m", "flipbench.cli", "generate", str(config), editor]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, paths)])}
    done = subprocess.run(
        command, cwd=config.parent, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 2 and "the current folder is not searched" in done.stderr
    assert not (config.parent / "EXECUTED").exists()
