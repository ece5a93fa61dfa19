"""Typical mistakes: one message that names them and what to do, and no traceback."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.fixtures.command_line import Flipbench

LORA = "contaminate.strategies={A: {train: lora, learning_rate: 0.001}}"


MISTAKES = [
    ("generate folder", "folder: cannot be read (a folder; give the YAML file)"),
    ("generate a.png", "a.png: cannot be read (not text in UTF-8; give a YAML file)"),
    ("generate list.yaml", "must be a mapping of keys, not list"),
    ("generate c.yaml generate.editor.kind=fluxx", "unknown kind 'fluxx' (known: api, controlnet"),
    ("filter c.yaml --kept none.csv", "none.csv: no such file; fix the path"),
    ("contaminate c.yaml", "contaminate.strategies or models is empty"),
    ("contaminate c.yaml contaminate.epochs=0", "greater than or equal to 1 (got 0)"),
    ("export c.yaml a.png", "a.png: a file; name a folder"),
    ("rebuild folder", "folder: no recipe; name the folder that 'flipbench export"),
    ("show c.yaml out.xyz", "out.xyz: name a .png, .svg or .pdf file"),
    (
        "review c.yaml --agreement --reference nobody",
        "'nobody' has rated none of these",
    ),
    ("review folder", "run 'flipbench generate' first"),
    ("review runs/x --export folder", "folder: cannot be written (Is a directory); choose"),
    ("audit c.yaml audit.text_models=[m]", "no model 'm' under 'models'"),
    ("evaluate c.yaml", "nobody to ask: name a model, e.g. models.mine.path=FOLDER"),
    ("power --gap 5 --changed 20", "--gap 5: a fall is negative, e.g. -5"),
    ("power --gap -5 --changed 2", "a gap of -5 points needs 5 to 100 % of the items"),
    ("power --gap -5 --changed 200", "--changed 200"),
    ("gap p.csv folder", "folder: is a folder; give a file in it"),
    ("gap p.csv latin.csv", "latin.csv, line 2: not UTF-8"),
    ("gap p.csv q.csv --format xml", "xml"),
    ("reasoning cases.jsonl --judge judge.yaml --out o", "line 1: id, answer is missing"),
    ("validate p.csv --items q.csv", "p.csv: there is no column for the model"),
    ("doctor a.png", "give a checkpoint's, or CSV files of printed results"),
    ("doctor c.yaml", "claims: missing"),
    ("detect --model vllm --benchmark runs/x", "needs --model-args base_url=URL,model=NAME"),
    ("detect --model hf --benchmark runs/x", "needs --model-args pretrained=ID_OR_FOLDER"),
    ("detect --model shapes:llavaa --benchmark runs/x", "choose shapes:llava or shapes:qwen2"),
    ("detect --model shapes:llava --benchmark a.png", "a.png: not a paired benchmark"),
]
"""What is typed, and what the message says."""


@pytest.fixture
def files(flipbench: Flipbench, config: Path) -> None:
    """Make pairs, and write what people take for what a command needs."""
    flipbench("filter", config, "--limit", "2", "-q")
    folder = config.parent
    (folder / "folder").mkdir()
    Image.new("RGB", (64, 64)).save(folder / "a.png")
    (folder / "p.csv").write_text("id,prediction,answer\n1,A,A\n2,B,A\n")
    (folder / "q.csv").write_text("id,prediction,answer\n1,B,B\n2,A,B\n")
    (folder / "latin.csv").write_bytes(b"id,prediction,answer\n1,\xe9,A\n")
    (folder / "list.yaml").write_text("- a\n- b\n")
    (folder / "cases.jsonl").write_text('{"question": "q"}\n')
    (folder / "judge.yaml").write_text("chat: {model: gpt-4o}\n")


def test_a_mistake_is_one_message_with_a_remedy(flipbench: Flipbench, files: None) -> None:
    results = {typed: flipbench(*typed.split()) for typed, _ in MISTAKES}
    assert {typed: r.status for typed, r in results.items() if r.status != 2} == {}
    assert {t: results[t].err for t, said in MISTAKES if said not in results[t].err} == {}
    errors = [result.err for result in results.values()]
    assert all(err.startswith("flipbench: ") and err.count("\n") <= 4 for err in errors)


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_is_not_there_is_named(
    flipbench: Flipbench, config: Path, device: str
) -> None:
    assert flipbench("filter", config, "--limit", "2", "-q").status == 0
    asked = ["detect", "--model", "shapes:llava", "--benchmark", "runs/x", "--device", device]
    result = flipbench(*asked, "--out", "asked", "-q")
    assert result.status == 2
    assert f"flipbench: device {device}: not on this machine" in result.err


def test_a_folder_without_its_processor_is_named_before_training_and_asking(
    flipbench: Flipbench, config: Path, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    ignored = shutil.ignore_patterns("*processor_config.json", "tokenizer*")
    folder = Path(shutil.copytree(tiny_folders["llava"], tmp_path / "m", ignore=ignored))
    assert flipbench("filter", config, "--limit", "2", "-q").status == 0
    model = f"models.m={{path: {folder}}}"
    asked = ["detect", "--model", folder, "--benchmark", "runs/x", "--out", "asked", "-q"]
    for command in (["contaminate", config, model, LORA, "-q"], asked):
        result = flipbench(*command)
        assert result.status == 2
        assert f"{folder}: cannot load its processor" in result.err
        assert "needs its preprocessor_config.json and tokenizer" in result.err


def test_an_interrupt_while_the_program_loads_is_no_traceback() -> None:
    interrupted = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from flipbench.cli import main\n"
    )
    ended = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")
