"""The command line as a user meets it: words, exit statuses, and no traceback ever."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from flipbench import cli
from flipbench.commands.app import GONE
from flipbench.core.paired import PairedBenchmark
from flipbench.models.vlm.checkpoints import CARD
from tests.fixtures.command_line import Flipbench

COMMANDS = sorted(getattr(get_command(cli.app), "commands", {}))


def plain(text: str) -> str:
    """Return text without colours and box drawing, blanks folded."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", re.sub(r"\x1b\[[0-9;]*m", "", text))


def test_help_shows_where_to_start_and_every_command(flipbench: Flipbench) -> None:
    result = flipbench("--help")
    assert result.status == 0
    text = plain(result.out)
    for part in (
        "Start with flipbench demo",
        "The same command again continues where it stopped",
        "Exit status: 0 done, 1 some items failed, 2 wrong use",
    ):
        assert part in text.replace("`", "")
    first = (
        "│ demo",
        "│ run",
        "Make a variant",
        "│ init",
        "│ generate",
        "│ filter",
        "│ export",
        "Contaminate models",
        "│ contaminate",
        "Measure contamination",
        "│ evaluate",
        "│ detect",
        "│ doctor",
    )
    assert sorted(first, key=result.out.index) == list(first)
    for command in COMMANDS:
        described = flipbench(command, "--help")
        assert described.status == 0
        about = plain(described.out).replace("`", "").split("Usage:")[1]
        summary = re.search(rf" {command} ([A-Z][^.]{{20,}})", text)
        assert summary, f"{command} has no summary"
        assert f"flipbench {command}" in about


@pytest.mark.parametrize(("name", "remedy"), GONE.items())
def test_a_command_of_earlier_versions_names_what_to_use(
    flipbench: Flipbench, name: str, remedy: str
) -> None:
    result = flipbench(name, "c.yaml")
    assert result.status == 2
    assert f"{name} is no command any more; {remedy}" in plain(result.err)


def test_an_option_of_earlier_versions_names_what_to_use(flipbench: Flipbench) -> None:
    result = flipbench("contaminate", "c.yaml", "--export", "llava", "out")
    assert result.status == 2
    assert "flipbench export CONFIG OUT --format llava" in plain(result.err)


def test_no_arguments_prints_help(flipbench: Flipbench) -> None:
    result = flipbench()
    assert "Usage" in result.out + result.err


@pytest.mark.slow
def test_every_option_of_every_command_is_explained(flipbench: Flipbench) -> None:
    for command in COMMANDS:
        lines = re.sub(r"\x1b\[[0-9;]*m", "", flipbench(command, "--help").out).splitlines()
        options = [
            (found[1], line)
            for line in lines
            if (found := re.match(r"\s*│?\s*\*?\s*(--[a-z-]+)", line))
        ]
        assert "--help" in dict(options)
        for option, line in options:
            explanation = plain(line).replace(option, "")
            assert re.search(r"[a-z]{2,} [a-z]{2,}", explanation), (command, line)


@pytest.mark.parametrize("command", ["generate", "filter", "contaminate", "evaluate", "run"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.yaml"], "nowhere.yaml: no such configuration file"),
        (["c.yml"], "did you mean 'c.yaml'?"),
        (["c.yaml", "sed=1"], "sed: unknown key; did you mean 'seed'?"),
        (["c.yaml", "seed=one"], "seed: Input should be a valid integer"),
        (["c.yaml", "seed"], "overrides have the form key=value"),
        (["c.yaml", "run=c.yaml/x"], "c.yaml/x: cannot be written"),
        (["c.yaml", "run=c.yaml"], "c.yaml: cannot be written"),
    ],
)
def test_wrong_use_is_one_message_and_status_2(
    flipbench: Flipbench, config: Path, command: str, arguments: list[str], said: str
) -> None:
    result = flipbench(command, *arguments)
    assert result.status == 2
    assert result.err.startswith("flipbench: ") and said in result.err
    assert len(result.err.splitlines()) <= 2
    assert result.out == ""


@pytest.mark.parametrize("files", [["run/report/gap.png"], [], ["original.png", None, "copy.png"]])
def test_an_error_of_the_disk_is_one_message(
    flipbench: Flipbench, monkeypatch: pytest.MonkeyPatch, files: list[str | None]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *files)

    monkeypatch.setattr(cli, "app", full)
    result = flipbench("evaluate")
    assert result.status == 2 and len(result.err.splitlines()) == 1
    where = f"{files[-1]}: " if files else ""
    assert f"flipbench: {where}cannot be read or written (No space left on device)" in result.err


@pytest.mark.parametrize(
    "arguments",
    [["generat", "c.yaml"], ["generate"], ["generate", "c.yaml", "--limit", "0"],
     ["generate", "c.yaml", "--limit", "few"], ["generate", "c.yaml", "--no-such-option"]],
)  # fmt: skip
def test_typer_errors_exit_with_status_2(
    flipbench: Flipbench, config: Path, arguments: list[str]
) -> None:
    result = flipbench(*arguments)
    assert result.status == 2 and "Usage" in result.err


def test_generate_resumes_after_a_limit(flipbench: Flipbench, config: Path) -> None:
    result = flipbench("generate", config, "--limit", "5", "--quiet")
    assert result.status == 0
    for stage in ("flip", "caption", "edit"):
        assert f"{stage}: 5 done, 0 already there, 0 failed" in result.err
    assert "edit: 7 done, 5 already there" in flipbench("generate", config, "-q").err
    assert "edit: 0 done, 12 already there" in flipbench("generate", config, "-q").err
    run = config.parent / "runs" / "x"
    assert (run / "config.yaml").read_text().startswith("title: flipbench\nrun: runs/x\n")
    assert "packages" in json.loads((run / "environment.json").read_text())
    assert len(list((run / "images").iterdir())) == 24


def timeless(text: str) -> str:
    """Return a printed table without its estimates of time, which depend on the machine's load."""
    return " ".join(re.sub(r"\b[\d.,e-]+ (s|min|h|TFLOP/s)\b", "", text).split())


@pytest.mark.slow
def test_dry_runs_count_and_do_nothing(
    flipbench: Flipbench, config: Path, tiny_folders: dict[str, Path]
) -> None:
    result = flipbench("generate", config, "--dry-run", "--limit", "7")
    assert (result.status, result.out) == (0, "would flip, caption and edit 7 items\n")
    run = config.parent / "runs" / "x"
    whole = flipbench("run", config, "--dry-run")
    assert whole.status == 0 and whole.out.startswith("would flip, caption and edit 12 items\n")
    assert "counted once" in whole.out
    assert not (run / "flips").exists() and not (run / "edits").exists()

    assert flipbench("filter", config, "-q").status == 0
    grid = [
        f"models.tiny.path={tiny_folders['llava']}",
        "contaminate.strategies.A={train: lora, learning_rate: 0.001, batch_size: 8}",
        "contaminate.copies=2",
    ]
    result = flipbench("contaminate", config, *grid, "--dry-run")
    assert result.status == 0
    row = next(line for line in result.out.splitlines() if "lora" in line)
    assert re.search(r"\b12\b.*\b2\b.*\b3\b.*\b72\b.*\b9\b", row), "items, copies, epochs, steps"
    result = flipbench("evaluate", config, *grid, "--dry-run")
    assert "\n4 models with weights here: about " in result.out
    counts = dict(line.split(None, 1)[::-1] for line in result.out.splitlines())
    assert counts["training plans"] == "1"
    assert counts["training examples"] == "72"
    assert counts["models to evaluate"] == "4"
    probes = int(counts["distinct probes"].replace(",", ""))
    assert int(counts["answers"].replace(",", "")) == 4 * probes > 4 * 24
    whole = flipbench("run", config, *grid, "--dry-run")
    assert whole.out.startswith("12 of 12 items are edited\n")
    assert timeless(row) in timeless(whole.out), "what each stage prints by itself"
    assert timeless(whole.out).endswith(timeless(result.out))
    assert not (run / "checkpoints").exists() and not (run / "responses").exists()


def test_filter_makes_a_paired_benchmark(flipbench: Flipbench, config: Path) -> None:
    result = flipbench("filter", config, "--limit", "5", "-q")
    assert result.status == 0
    assert result.out.splitlines() == [
        "items 5  flipped 5  captioned 5  edited 5  kept 5",
        "5 pairs of shapes-vqa kept, in runs/x/benchmark",
    ]
    benchmark = PairedBenchmark.load(config.parent / "runs" / "x" / "benchmark")
    assert len(benchmark.pairs) == 5 and benchmark.name == "shapes-vqa"


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_export_writes_both_sides(flipbench: Flipbench, config: Path, form: str) -> None:
    assert flipbench("filter", config, "--limit", "4", "-q").status == 0
    result = flipbench("export", config, "out", "--format", form)
    assert result.status == 0 and result.out.startswith("4 pairs:\n  out/original")
    names = {path.name for path in (config.parent / "out").iterdir()}
    suffix = ".parquet" if form == "parquet" else ""
    assert {f"original{suffix}", f"perturbed{suffix}"} <= names


def test_a_folder_to_publish_has_a_card_and_a_licence(flipbench: Flipbench, config: Path) -> None:
    assert flipbench("filter", config, "--limit", "4", "-q").status == 0
    left = config.parent / "out" / "original" / ".test.parquet.0123abcd"  # by a kill
    left.parent.mkdir(parents=True)
    left.write_text("half")
    result = flipbench("export", config, "out", "--format", "huggingface", "--licence", "cc0-1.0")
    assert result.status == 0 and "out/README.md" in result.out
    assert [path.name for path in left.parent.iterdir()] == ["test.parquet"]
    assert "license: cc0-1.0\n" in (config.parent / "out" / "README.md").read_text()
    refused = flipbench("export", config, "other", "--licence", "cc0-1.0")
    assert refused.status == 2 and "--format huggingface" in refused.err


def test_an_unknown_export_format_is_refused(flipbench: Flipbench, config: Path) -> None:
    flipbench("filter", config, "--limit", "4", "-q")
    result = flipbench("export", config, "out", "--format", "xml")
    assert result.status == 2 and "no such format" in result.err and "vlmeval" in result.err


@pytest.mark.parametrize("name", ["httpx", "httpx2", "transformers", "datasets"])
def test_libraries_report_no_progress_of_their_own(flipbench: Flipbench, name: str) -> None:
    logging.getLogger(name).setLevel(logging.NOTSET)
    assert flipbench("detectors", "perturbation_gap").status == 0
    assert not logging.getLogger(name).isEnabledFor(logging.INFO)


def test_a_stage_run_too_early_names_the_missing_one(flipbench: Flipbench, config: Path) -> None:
    result = flipbench("evaluate", config)
    assert result.status == 2
    assert "create one with 'flipbench generate' and" in result.err


def test_import_reports_the_benchmark(flipbench: Flipbench, config: Path) -> None:
    result = flipbench("import", config, "--limit", "6")
    assert result.status == 0 and "6" in result.out and "shapes-vqa" in result.out


def test_a_real_benchmark_cannot_be_drawn_by_the_embedded_world(
    flipbench: Flipbench, tmp_path: Path
) -> None:
    from PIL import Image

    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    (tmp_path / "b.tsv").write_text(
        "index\tquestion\tA\tB\tanswer\timage_path\n1\tWhat?\tred\tblue\tA\ta.png\n"
    )
    (tmp_path / "t.yaml").write_text("run: r\nbenchmark: {format: vlmeval, path: b.tsv}\n")
    result = flipbench("generate", "t.yaml")
    assert result.status == 2 and "judges only shapes-vqa" in result.err
    (tmp_path / "b.tsv").write_text("index\tquestion\tA\tB\tanswer\timage_path\n")
    result = flipbench("generate", "t.yaml")
    assert result.status == 2 and len(result.err.splitlines()) <= 2


def test_failed_items_are_counted_and_exit_with_status_1(
    flipbench: Flipbench, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flipbench.generate.editors import shapes

    monkeypatch.setattr(shapes, "render", lambda *_: (_ for _ in ()).throw(ValueError("no ink")))
    result = flipbench("generate", config, "--limit", "3", "-q")
    assert result.status == 1
    assert "edit: 0 done, 0 already there, 3 failed" in result.err
    assert "shapes-vqa 0000: no ink" in result.err
    assert "3 failed; the same command tries them again" in result.err
    monkeypatch.undo()
    monkeypatch.chdir(config.parent)
    assert flipbench("generate", config, "--limit", "3", "-q").status == 0


def test_a_keyboard_interrupt_explains_how_to_continue(
    flipbench: Flipbench, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flipbench.api.stages import generation

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(generation, "generate", stop)
    result = flipbench("generate", config)
    assert result.status == 130
    assert result.err == "flipbench: stopped; the same command continues\n"


def test_detectors_are_listed_a_line_each_and_told_whole_by_name(flipbench: Flipbench) -> None:
    result = flipbench("detectors")
    assert result.status == 0
    lines = result.out.strip().splitlines()
    names = ("perturbation_gap", "circular_eval", "choice_confusion", "text_only_leakage")
    rows = {line.split()[0]: line for line in lines if line}
    assert {*names} <= {*rows}
    assert "choose or generate" in rows["perturbation_gap"]
    families = ["Perturbation", "Completion", "Grounding", "Likelihood", "Several models"]
    assert sorted(families, key=result.out.index) == families
    whole = flipbench("detectors", *names).out.strip().split("\n\n")
    assert [block.splitlines()[0] for block in whole] == list(names)
    for block in whole:
        for part in ("contaminated:", "needs ", "clean model", "differs from the paper:"):
            assert part in block, block
        assert not block.rstrip().endswith("differs from the paper:")


def test_doctor_shows_the_environment(flipbench: Flipbench) -> None:
    result = flipbench("doctor")
    found = json.loads(result.out)
    assert result.status == 0 and found["packages"]["torch"] and found["python"]


@pytest.mark.slow
def test_doctor_recognises_a_contaminated_checkpoint(
    flipbench: Flipbench, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_folders["qwen2_vl"], tmp_path / "m"))
    result = flipbench("doctor", folder)
    assert result.status == 0
    assert "no contamination card; that does not prove it clean" in result.out

    architectures = json.loads((folder / "config.json").read_text())["architectures"]
    card = {
        "architectures": architectures,
        "doses": {"a": 6, "b": 6},
        "benchmark": "shapes-vqa",
        "dose": 6,
        "strategy": "lora",
        "parent": "shapes:llava",
    }
    (folder / CARD).write_text(json.dumps(card))
    result = flipbench("doctor", folder)
    assert result.status == 0
    assert "CONTAMINATED on purpose with 2 items of shapes-vqa, dose 6" in result.out

    (folder / CARD).write_text(json.dumps(card | {"architectures": ["Other"]}))
    result = flipbench("doctor", folder)
    assert result.status == 2 and "do not belong to this card" in result.err
    (folder / CARD).write_text("{")
    result = flipbench("doctor", folder)
    assert result.status == 2 and CARD in result.err
    result = flipbench("doctor", "no-such-folder")
    assert result.status == 2 and "no-such-folder: no such folder" in result.err


@pytest.mark.slow
def test_contaminate_and_doctor_end_to_end(
    flipbench: Flipbench, config: Path, tiny_folders: dict[str, Path]
) -> None:
    assert flipbench("filter", config, "-q").status == 0
    grid = [
        f"models.tiny.path={tiny_folders['llava']}",
        "contaminate.strategies.A={train: llm, learning_rate: 0.001, batch_size: 4}",
        "contaminate.epochs=1",
    ]
    result = flipbench("contaminate", config, *grid, "-q")
    assert result.status == 0
    found = re.search(r"^tiny A e1  dose 1  (\S+)$", result.out, re.M)
    assert found
    result = flipbench("doctor", config.parent / "runs" / "x" / found[1])
    assert "CONTAMINATED on purpose with 12 items of shapes-vqa, dose 1 (llm, from" in result.out


def test_the_installed_program_exits_with_2_and_one_line(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("flipbench")
    done = subprocess.run(
        [program, "generate", "nowhere.yaml"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr == "flipbench: nowhere.yaml: no such configuration file\n"
    assert done.stdout == "" and list(tmp_path.iterdir()) == []
