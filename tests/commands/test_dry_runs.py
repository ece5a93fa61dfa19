"""Commands that work long or ask models say beforehand what that would be."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import flipbench as fb
from flipbench import cli
from tests.fixtures.command_line import Flipbench

READS_ONE_FILE = {"import"}
SIGNATURES = {
    str(command.name): inspect.signature(command.callback).parameters
    for command in cli.app.registered_commands
    if command.callback
}


@pytest.mark.parametrize("command", SIGNATURES)
def test_whatever_shows_progress_has_a_dry_run(command: str) -> None:
    works_long = "progress" in SIGNATURES[command] and command not in READS_ONE_FILE
    assert works_long <= ("dry_run" in SIGNATURES[command])


def test_an_audit_counts_what_it_would_ask_and_embed(flipbench: Flipbench, config: Path) -> None:
    corpus = config.parent / "corpus"
    corpus.mkdir()
    (corpus / "a.png").write_bytes(b"not opened")
    asked = ["models.m={path: 'shapes:llava'}", "audit.text_models=[m]", "audit.n_runs=2"]
    embedded = [f"audit.corpus={{pictures: {{path: {corpus}}}, encoders: [siglip-b16, phash]}}"]
    result = flipbench("audit", config, *asked, *embedded, "--dry-run")
    assert result.status == 0, result.err
    assert "12 items, 8 checks" in result.out
    assert "asked without images: m: 24 questions" in result.out
    assert "1 model with weights here: about " in result.out
    assert "pictures of the corpus embedded by siglip-b16, phash; 0 vectors are th" in result.out
    assert "siglip-b16: time not known: " in result.out, "its weights are not here"
    timed = re.search(r"phash: (\S+) s a picture", result.out)
    assert timed and 1e-6 < float(timed[1]) < 1
    assert "(timed on 8 of the benchmark's pictures)" in result.out
    assert not (config.parent / "runs" / "x" / "audit").exists()


def test_a_rebuild_counts_what_it_would_draw(flipbench: Flipbench, config: Path) -> None:
    assert flipbench("filter", config, "-q").status == 0
    assert flipbench("export", config, "out", "--format", "recipe").status == 0
    (recipe,) = Path("out").iterdir()
    for where in ((), ("run=elsewhere",)):
        result = flipbench("rebuild", recipe, *where, "--dry-run")
        assert result.status == 0, result.err
        assert "would caption 0 and edit 12" in result.out
    assert not (recipe / "edits").exists() and not Path("elsewhere").exists()


def test_generate_counts_what_is_left(flipbench: Flipbench, config: Path) -> None:
    assert flipbench("generate", config, "-q", "--limit", "5").status == 0
    result = flipbench("generate", config, "--dry-run")
    assert result.out.startswith("5 of 12 items are edited\nwould caption 7 and edit 7\n")


@pytest.mark.parametrize("command", ["generate", "filter", "run"])
def test_an_editor_s_files_are_not_needed_for_a_first_plan(
    flipbench: Flipbench, config: Path, command: str
) -> None:
    config.write_text(
        "extends: configs/generate/reference.yaml\nrun: runs/new\n"
        "benchmark: {format: shapes, n_items: 3}\n"
    )
    result = flipbench(command, config, "--dry-run")
    assert result.status == 0, result.err
    assert result.out.startswith("would flip, caption and edit 3 items\ncaptions: gpt-4o")
    assert "verdicts: o3-2025-04-16: 3 requests" in result.out
    assert "35.2 GB of it weights (black-forest-labs/FLUX.1-dev" in result.out
    assert ("no training is configured" in result.out) == (command == "run")


@pytest.mark.parametrize("command", ["generate", "filter", "contaminate", "run", "audit"])
def test_the_stored_configuration_stays_that_of_the_results(
    flipbench: Flipbench, config: Path, command: str
) -> None:
    run = config.parent / "runs" / "x"
    assert flipbench("filter", config, "-q").status == 0
    stored = {path.name: path.read_text() for path in run.glob("*[nl]")}
    assert "seed: 0" in stored["config.yaml"]
    other = ["models.m={path: 'shapes:llava'}", "seed=7"]
    other.append("contaminate.strategies.a={train: llm, learning_rate: 0.001}")
    result = flipbench(command, config, *other, "--dry-run")
    assert result.status == 0, result.err
    fb.dry_run(fb.Experiment(config, {"seed": 7}).filter)
    assert {path.name: path.read_text() for path in run.glob("*[nl]")} == stored


@pytest.mark.parametrize("command", ["export", "show"])
def test_what_only_reads_a_run_leaves_its_configuration(
    flipbench: Flipbench, config: Path, command: str
) -> None:
    run = config.parent / "runs" / "x"
    assert flipbench("filter", config, "-q").status == 0
    stored = (run / "config.yaml").read_text()
    assert flipbench(command, config, "out.png", "seed=7").status == 0
    assert (run / "config.yaml").read_text() == stored and not (run / "config.1.yaml").exists()


@pytest.fixture
def found(flipbench: Flipbench, config: Path) -> Path:
    """A configuration of pairs that exist already."""
    assert flipbench("filter", config, "-q").status == 0
    assert flipbench("export", config, "out").status == 0
    path = config.with_name("found.yaml")
    path.write_text(
        "run: runs/found\nbenchmark:\n  format: pairs\n  name: found\n  parts:\n"
        "    - original: {format: jsonl, path: out/original/items.jsonl}\n"
        "      counterfactual: {format: jsonl, path: out/perturbed/items.jsonl}\n"
    )
    return path


@pytest.mark.parametrize("command", ["generate", "filter"])
def test_pairs_that_exist_are_not_written_by_a_dry_run(
    flipbench: Flipbench, found: Path, command: str
) -> None:
    result = flipbench(command, found, "--dry-run")
    assert result.status == 0 and "pairs exist already" in result.out
    assert not Path("runs/found/benchmark").exists()


def test_a_limit_holds_for_pairs_that_exist(flipbench: Flipbench, found: Path) -> None:
    assert flipbench("filter", found, "-q").status == 0
    opened = fb.Experiment(found, limit=5, progress=False).parts
    assert len(opened.originals) == 5 and len(opened.pairs.originals) == 12
