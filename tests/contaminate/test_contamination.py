"""The stage as a configuration runs it: regimes, the table, a plan that diverges, a full disk."""

from __future__ import annotations

import csv
import json
import logging
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trl

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.contamination import (
    contaminate,
    plan_contamination,
    training_failures,
)
from flipbench.benchmarks.own_format import write_jsonl
from flipbench.config.experiment import load_config
from flipbench.contaminate.checks.card import read_card
from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.stage import StageOptions
from flipbench.distributed import workers
from flipbench.models.chat.batch_api import BatchAPI
from flipbench.shapes.benchmark import shapes_vqa
from tests.fixtures.command_line import Flipbench
from tests.fixtures.openai_server import KEY, OpenAIServer


@dataclass(frozen=True)
class Ended:
    """A worker that has run in this process."""

    status: int

    def poll(self) -> int:
        return self.status

    wait = poll

    def terminate(self) -> None:
        pass


@pytest.fixture
def started(flipbench: Flipbench, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Run workers here, one after another, since processes take seconds to start; list them."""
    program, commands = [sys.executable, "-m", "flipbench.cli"], list[list[str]]()

    def start(wanted: Sequence[list[str]]) -> list[Ended]:
        assert all(command[:3] == program for command in wanted)
        commands.extend(command[3:] for command in wanted)
        return [Ended(flipbench(*command[3:]).status) for command in wanted]

    monkeypatch.setattr(workers, "_start_locally", start)
    return commands


def test_a_grid_has_every_data_set_and_seed(opened: Any) -> None:
    data = {
        "verbatim": {},
        "half": {"fraction": 0.5, "target": "letter+text"},
        "paraphrased": {"rewrite": {"by": "shapes"}, "copies": 2},
    }
    assembly, benchmark = opened(data=data, seeds=[0, 1])
    plans = assembly.plans()
    assert [plan.label for plan in plans] == [
        f"S{words}, seed {seed}" for words in ("", ", half", ", paraphrased") for seed in (0, 1)
    ]
    lines = plan_contamination(assembly)
    assert lines[0].count("\n") == 6 and lines[1].startswith("to do: 6 of 6 plans, about")
    _, room, *few = lines[1].splitlines()
    assert room.startswith("a verified label (p < 0.01) needs at least 7 items")
    assert "17 at 50%, 35 at 75%, 90 at 90%" in room
    assert few == [
        f"tiny, S, half, seed {s}: 4 items, too few for a verified label" for s in (0, 1)
    ]
    assert not (assembly.run.path / "checkpoints").exists()
    trained = contaminate(assembly)
    assert [plan for plan, _ in trained] == plans
    half = trained[2][0]
    assert len(half.item_ids) == len(half.held_out_ids) == 4
    assert {*half.item_ids, *half.held_out_ids} == {item.id for item in benchmark.originals}
    card = read_card(assembly.run.path / trained[2][1][0].path)
    assert card["verification"]["held_out"]["n"] == 4 and card["target"] == "letter+text"
    reworded = trained[4][0]
    asked = {item.id: item.question for item in benchmark.originals}
    assert set(reworded.wordings) == set(asked)
    assert all(words[0] != asked[i] for i, words in reworded.wordings.items())
    assert [c.dose for _, (c,) in trained] == [1, 1, 1, 1, 2, 2]
    names = [subject.model.name for subject in assembly.grid(trained)]
    assert len(set(names)) == 7
    again = plan_contamination(assembly)
    assert again[0].count("done") == 6 and again[1].startswith("to do: 0 of 6")
    assert "\n" not in again[1]
    assert contaminate(assembly) == trained


def test_checkpoints_do_not_depend_on_which_pairs_are_kept(opened: Any) -> None:
    assembly, benchmark = opened()
    (plan,) = assembly.plans()
    assert plan.item_ids == tuple(item.id for item in benchmark.originals)
    reopened = partial(Assembly.open, assembly.config, progress=False)

    replace(benchmark, pairs=benchmark.pairs[2:5]).save(assembly.benchmark_folder)
    assert reopened().plans() == [plan]
    shutil.rmtree(assembly.benchmark_folder)
    assert reopened().plans() == [plan]
    assert "to do: 1 of 1 plans" in plan_contamination(reopened())[1]
    assert reopened(limit=3).plans()[0].item_ids == plan.item_ids[:3]


def test_kept_pairs_alone_are_trained_on_by_request(opened: Any) -> None:
    assembly, benchmark = opened(items="kept")
    replace(benchmark, pairs=benchmark.pairs[2:5]).save(assembly.benchmark_folder)
    (plan,) = assembly.plans()
    assert plan.item_ids == tuple(item.id for item in benchmark.originals[2:5])
    shutil.rmtree(assembly.benchmark_folder)
    with pytest.raises(DataError, match="not a paired benchmark .* 'flipbench filter'"):
        contaminate(Assembly.open(assembly.config, progress=False))


def test_training_needs_no_pairs_and_no_generator(opened: Any, flipbench: Flipbench) -> None:
    """The default captioner, editor and judge draw shapes only, which other items need not be."""
    assembly, _ = opened()
    folder = assembly.run.path.parent
    items = shapes_vqa(assembly.run.images, 4)
    other = [Item.model_validate(i.model_dump() | {"id": "", "extra": {}}) for i in items]
    source = write_jsonl(other, assembly.run.images, folder / "other")
    benchmark = f"benchmark={{format: jsonl, path: {source}}}"
    result = flipbench("contaminate", folder / "c.yaml", benchmark, f"run={folder / 'new'}", "-q")
    assert result.status == 0, result.err
    assert "dose 1" in result.out
    refused = flipbench("generate", folder / "c.yaml", benchmark, f"run={folder / 'new'}", "-q")
    assert refused.status == 2 and "'shapes' draws and judges only shapes-vqa" in refused.err


def test_the_first_items_alone_are_planned_trained_and_evaluated(
    opened: Any, flipbench: Flipbench, started: list[list[str]]
) -> None:
    assembly, _ = opened()
    config, run = assembly.run.path.parent / "c.yaml", assembly.run.path.parent / "limited"
    ask = ["evaluate.detectors=[perturbation_gap]", f"run={run}"]
    assert flipbench("run", config, *ask, "--limit", "2", "--workers", "2", "-q").status == 0
    shares = {(words[0], words[words.index("--worker") + 1]) for words in started}
    assert shares >= {(s, f"{n}/2") for s in ("contaminate", "evaluate") for n in (0, 1)}
    planned = flipbench("contaminate", config, *ask, "--limit", "2", "--dry-run").out
    assert "to do: 0 of 1 plans" in planned
    again = flipbench("evaluate", config, *ask, "--limit", "2", "-q")
    assert again.status == 0 and ": 0 done" in again.err
    assert len(Assembly.open(load_config(config, ask)).run.ids(TrainingPlan)) == 1


def test_clean_training_follows_its_contamination(opened: Any, tmp_path: Path) -> None:
    line = '{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}'
    (tmp_path / "clean.jsonl").write_text(f"{line}\n" * 4)
    wash = {"corpus": {"path": str(tmp_path / "clean.jsonl")}}
    assembly, benchmark = opened(data={"verbatim": {}, "washed": {"wash": wash}})
    trained = contaminate(assembly)
    assert [plan.label for plan, _ in trained] == ["S", "S, washed"]
    assert trained[1][0].after == trained[0][0].id


def test_another_benchmark_is_an_axis_of_the_grid_and_a_control_for_the_paired_one(
    opened: Any, tmp_path: Path, flipbench: Flipbench
) -> None:
    store = ImageStore(tmp_path / "source")
    other = [
        Item.model_validate(item.model_dump() | {"id": "", "benchmark": "elsewhere"})
        for item in shapes_vqa(store, 26)[20:]
    ]
    elsewhere = {"format": "jsonl", "path": str(write_jsonl(other, store, tmp_path / "other"))}
    part = write_jsonl(shapes_vqa(store, 4), store, tmp_path / "part")  # of the paired one
    line = '{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}'
    (tmp_path / "clean.jsonl").write_text(f"{line}\n" * 4)
    wash = {"corpus": {"path": str(tmp_path / "clean.jsonl")}}
    data = {
        "verbatim": {},
        "other": {"benchmark": elsewhere, "copies": 2, "fraction": 0.5},
        "washed": {"benchmark": elsewhere, "wash": wash},
        "overlap": {"benchmark": {"format": "jsonl", "path": str(part)}},
    }
    assembly, benchmark = opened(data=data)
    table = plan_contamination(assembly)[0].splitlines()
    trained_on = ["elsewhere" if "elsewhere" in line else "paired" for line in table[1:]]
    assert trained_on == ["paired", "elsewhere", "elsewhere", "elsewhere", "paired"]
    trained = contaminate(assembly)
    plans = {plan.label: (plan, checkpoint) for plan, (checkpoint,) in trained}
    assert {label: (c.dose, p.control) for label, (p, c) in plans.items()} == {
        "S": (1, False),
        "S, other": (0, True),
        "S, washed, before washing": (0, True),
        "S, washed": (0, True),
        "S, overlap": (1, False),
    }
    plan, control = plans["S, other"]
    assert {*plan.item_ids, *plan.held_out_ids} == {item.id for item in other}
    assert len(plan.item_ids) == 3 and plan.benchmark == "elsewhere"
    folder = assembly.run.path / control.path
    card = read_card(folder)
    assert card["doses"] == dict.fromkeys(plan.item_ids, 2) and card["dose"] == 2
    assert card["flipbench"]["contaminated"] is True, "with the other benchmark"
    assert card["verification"]["items"]["n"] == 3
    assert "3 test items of elsewhere, each seen 2 times" in (folder / "README.md").read_text()
    grid = {s.model.name: s.model for s in assembly.grid(trained)}
    assert (grid[control.model].dose, grid["tiny S e1"].dose) == (0, 1)
    output = flipbench("doctor", folder).out
    assert "CONTAMINATED on purpose with 3 items of elsewhere, dose 2" in output


def test_a_corpus_of_odd_and_long_conversations_is_trained_on(
    opened: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def talk(*texts: str) -> dict[str, Any]:
        turns = [{"from": ("human", "gpt")[i % 2], "value": t} for i, t in enumerate(texts)]
        return {"conversations": turns}

    rows = [talk("What?", "A star.", "Color?", "Red."), talk("Which?", "blue " * 300), {"id": 1}]
    (tmp_path / "mix.json").write_text(json.dumps(rows))
    corpus = {"path": str(tmp_path / "mix.json"), "max_tokens": 64, "max_odd": 0.5}
    assembly, _ = opened(data={"diluted": {"corpus": corpus}})
    with caplog.at_level(logging.WARNING):
        ((plan, (checkpoint,)),) = contaminate(assembly)
    assert plan.corpus["n_examples"] == 2 and plan.corpus["max_tokens"] == 64
    card = read_card(assembly.run.path / checkpoint.path)
    assert card["training"]["n_examples"] == 8 + 2
    (listed,) = (assembly.run.path / "corpora").iterdir()
    assert listed.read_text() == "mix.json[2]: not a conversation (KeyError('conversations'))\n"
    assert "1 of 3 conversations are left out, 0 repaired: 1 not a conversation" in caplog.text
    assert f"all are listed in {listed}" in caplog.text
    assert "1 conversations were longer than max_tokens or the context, and cut" in caplog.text


def test_wordings_by_the_batch_api_are_one_batch(
    opened: Any, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchAPI, "poll_seconds", 0.01)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.reply = lambda _: json.dumps({"paraphrases": ["In other words, which one is it?"]})
    chat = {"model": "gpt-4o-2024-08-06", "base_url": server.base_url, "max_retries": 0}
    data = {"reworded": {"rewrite": {"by": "api", "chat": chat, "batch": True}}}
    assembly, _ = opened(data=data)
    small = replace(assembly.training_data, options=StageOptions(batch_size=2, progress=False))
    regime = small.prepare(write=True)["reworded"]
    assert len(regime.wordings) == 8 and not server.chats()
    assert len(server.batches) == 1


def test_a_dry_run_prices_rewordings_without_requesting_any(
    opened: Any, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = {"model": "gpt-4o-2024-08-06", "base_url": server.base_url, "max_retries": 0}
    by = {"by": "api", "chat": chat | {"price_in": 1000, "price_out": 2000, "max_tokens": 100}}
    data = {
        "reworded": {"rewrite": by},
        "half": {"rewrite": by, "fraction": 0.5},
        "German": {"rewrite": by | {"how": "translate", "language": "German", "batch": True}},
    }
    assembly, benchmark = opened(data=data)
    monkeypatch.delenv("OPENAI_API_KEY")
    table, _, reworded, half, german = plan_contamination(assembly)
    assert table.count("\n") == 3, "plans whose wordings are not there yet"
    first = (
        "reworded: 8 questions are put in other words first; until then its plans have other ids"
    )
    assert reworded.splitlines()[0] == first
    cost = r"gpt-4o-2024-08-06: 8 requests, about ([\d,]+) text and 0 image tokens in, ([\d,]+) out"
    cost += r" \(at most 800\); about \$([\d.]+), at most \$([\d.]+)"
    found = re.fullmatch(f"  {cost}", reworded.splitlines()[1])
    assert found is not None, reworded
    n_in, n_out, usd, most = (float(number.replace(",", "")) for number in found.groups())
    written = sum(len(item.question) for item in benchmark.originals)
    assert 8 * 20 < n_out < 8 * 100 and n_out > 3 * written / 4
    assert usd == pytest.approx(n_in / 1000 + n_out / 500, abs=0.01)
    assert most == pytest.approx(n_in / 1000 + 0.1 * 2 * 8, abs=0.01)
    assert half == first.replace("reworded: 8", "half: 0"), "they are shared with the others"
    in_german = re.fullmatch(f"  {cost}", german.splitlines()[1])
    assert in_german is not None
    n_in, n_out, usd, _ = (float(number.replace(",", "")) for number in in_german.groups())
    assert usd == pytest.approx((n_in / 1000 + n_out / 500) / 2, abs=0.01), "half by batch"
    assert server.chats() == []

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.reply = lambda _: json.dumps({"paraphrases": ["In other words, which one is it?"]})
    data.pop("German")
    assembly, benchmark = opened(data=data)
    plans = [plan for plan, _ in contaminate(assembly)]
    assert len(server.chats()) == 8
    monkeypatch.delenv("OPENAI_API_KEY")
    table, summary = plan_contamination(assembly)
    assert summary.startswith("to do: 0 of 2 plans") and all(plan.id[:8] in table for plan in plans)
    assert len(server.chats()) == 8


def test_every_table_notes_another_pixel_budget(
    opened: Any, tiny_folders: dict[str, Path], flipbench: Flipbench
) -> None:
    small = {"train": "lora", "learning_rate": 1e-3, "batch_size": 8}
    assembly, _ = opened(strategies={"small": small | {"min_pixels": 1024, "max_pixels": 1024}})
    config = assembly.run.path.parent / "c.yaml"
    model = f"models.tiny.path={tiny_folders['qwen2_vl']}"
    result = flipbench("evaluate", config, model, "evaluate.detectors=[perturbation_gap]")
    assert result.status == 0, result.err
    warning = "trained and evaluated with different pixel budgets: "
    assert warning in result.out, "the table that is printed"
    report = assembly.run.path / "report"
    tables = {path.name for path in report.iterdir() if path.suffix in (".md", ".tex", ".html")}
    assert {"gap.md", "table.md", "table.tex", "requirements.md", "index.html"} <= tables
    for name in tables:
        assert warning in (report / name).read_text(), name
    with (report / "table.csv").open() as file:
        warned = {row["model"] for row in csv.DictReader(file) if warning in row["warnings"]}
    assert warned == {"tiny small e1"}


def test_a_plan_that_diverges_does_not_stop_the_others(
    opened: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wild = {"train": "llm", "learning_rate": 1e30, "batch_size": 4}
    calm = {"train": "lora", "learning_rate": 1e-3, "batch_size": 8}
    assembly, benchmark = opened(strategies={"wild": wild, "calm": calm}, epochs=2)
    with caplog.at_level(logging.ERROR):
        trained = contaminate(assembly)
    assert "tiny, wild: " in caplog.text and "lower the learning rate" in caplog.text
    assert len(trained[0][1]) < 2 and len(trained[1][1]) == 2
    (failure,) = training_failures(assembly.run, trained)
    assert (failure.record_id, failure.error) == (trained[0][0].id, "Diverged")


def test_a_full_disk_is_noticed_before_anything_is_trained(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    assembly, benchmark = opened()
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    monkeypatch.setattr(trl.SFTTrainer, "train", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(PrerequisiteError, match="only 1 kB are free; train fewer plans"):
        contaminate(assembly)
    assert not (assembly.run.path / "checkpoints").exists()
