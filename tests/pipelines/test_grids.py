"""Grids from a configuration to the report: clean, contaminated, external and unknown models."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.evaluation import evaluate
from flipbench.api.stages.grid import training_notes
from flipbench.config.experiment import Config, load_config
from flipbench.config.served_model import VLLMConfig
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Checkpoint, Item, Response, TrainingPlan
from flipbench.models.serving.managed import ManagedVLM, served_fingerprint
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.markdown_tables import table
from tests.fixtures.report_data import make_benchmark

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, tiny_folders: dict[str, Path]) -> Path:
    """Return the run of a clean, a contaminated, an external and an unknown model.

    The pairs are those on which the external model falls, so a rule that follows its
    numbers flags it.
    """
    folder = tmp_path_factory.mktemp("mixed")
    every = make_benchmark(folder / "r", 60)
    outsider = HuggingFaceVLM("shapes:qwen2_vl")
    sides = [right(outsider, items, every) for items in (every.originals, every.perturbed)]
    falls = [
        p
        for p, original, perturbed in zip(every.pairs, *sides, strict=True)
        if original and not perturbed
    ]
    assert len(falls) >= 6
    replace(every, pairs=tuple(falls)).save(folder / "r" / "benchmark")
    settings = {
        "run": str(folder / "r"),
        "benchmark": {"format": "shapes"},
        "models": {
            "base": {"path": str(tiny_folders["qwen2_vl"]), "family": "f"},
            "dosed": {"path": str(tiny_folders["llava"]), "family": "f", "dose": 3},
            "outsider": {"path": "shapes:qwen2_vl", "external": True},
            "stranger": {"path": "shapes:llava", "dose": None},
        },
        "evaluate": {"detectors": ["perturbation_gap", "choice_confusion"]},
    }
    config = load_config_of(folder, settings)
    assembly = Assembly.open(config, progress=False)
    evaluate(assembly, assembly.pairs)
    return folder


def load_config_of(folder: Path, settings: dict[str, Any]) -> Config:
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(settings))
    return load_config(path)


def right(vlm: HuggingFaceVLM, items: list[Item], benchmark: PairedBenchmark) -> list[bool]:
    replies = vlm.ask([PromptSettings().probe(item, "") for item in items], benchmark.images)
    return [
        isinstance(reply, Response) and reply.choice == item.answer
        for reply, item in zip(replies, items, strict=True)
    ]


def test_a_rule_that_fires_on_an_external_model_is_not_trusted(mixed: Path) -> None:
    report = mixed / "r" / "report"
    assert table(report / "gap.md", "outsider")["McNemar test"].startswith("false alarm suspected")
    assert table(report / "gap.md", "outsider")["McNemar test"].endswith("(contaminated)")
    for name in ("dosed", "stranger"):
        assert table(report / "gap.md", name)["McNemar test"].startswith("false alarm suspected")
    validation = (report / "validation.md").read_text()
    assert (
        "false alarm suspected (1/1 flagged: outsider; by chance 5 % at level 0.05)" in validation
    )
    page = (report / "index.html").read_text()
    assert "false alarm suspected" in page
    drawn = [path.read_text() for path in report.glob("detectors_by_models*.svg")]
    assert drawn and all("‡" in text for text in drawn)


def test_a_model_of_unknown_history_is_shown_but_not_counted(mixed: Path) -> None:
    report = mixed / "r" / "report"
    row = table(report / "gap.md", "stranger")
    assert row["Dose"] == "unknown" and "✓" not in "".join(row.values())
    head = (report / "gap.md").read_text().split("| Model")[0]
    assert "of 1 contaminated model" in head and "of 2 clean" in head
    assert "of 1 models of unknown history contaminated" in head
    with (report / "validation.csv").open(newline="", encoding="utf-8") as file:
        rows = {(r["detector"], r["rule"], r["quantity"]): r for r in csv.DictReader(file)}
    power = rows["perturbation_gap", "mcnemar", "power"]
    assert (power["n"], power["n_lineages"]) == ("1", "1")
    assert rows["perturbation_gap", "mcnemar", "false_alarms_untouched"]["n"] == "2"
    assert "stranger" not in (report / "requirements.md").read_text()


def test_power_and_trend_by_dose_are_in_the_report(mixed: Path) -> None:
    report = mixed / "r" / "report"
    with (report / "validation.csv").open(newline="", encoding="utf-8") as file:
        rows = {(r["detector"], r["rule"], r["quantity"]): r for r in csv.DictReader(file)}
    scores = [json.loads(line) for line in (report / "scores.jsonl").read_text().splitlines()]
    rule = ("choice_confusion", "mcnemar")
    gaps = {s["model"]: s for s in scores if (s["detector"], s["rule"]) == rule}
    fell = gaps["dosed"]["statistic"] < gaps["base"]["statistic"]
    steps = rows["choice_confusion", "mcnemar", "steps_in_order"]
    assert (steps["k"], steps["n"]) == (str(int(fell)), "1")
    flagged = gaps["dosed"]["verdict"] == "contaminated"
    at_three = rows["choice_confusion", "mcnemar", "power_at_dose_3"]
    assert (at_three["k"], at_three["n"]) == (str(int(flagged)), "1")
    page = (report / "index.html").read_text()
    for part in ("Power against the dose", "Steps in order", "Rank correlation"):
        assert part in page
    assert list(report.glob("power_by_dose*.svg")) and list(report.glob("gap_by_dose*.svg"))


@pytest.mark.parametrize(
    ("parent", "control", "doses"),
    [(0, False, [2, 4]), (3, False, [5, 7]), (None, False, [2, 4]), (0, True, [0, 0]),
     (3, True, [3, 3]), (None, True, [None, None])],
)  # fmt: skip
def test_a_checkpoint_s_dose_adds_to_its_parent_s(
    parent: int | None,
    control: bool,
    doses: list[int | None],
    tmp_path: Path,
    tiny_folders: dict[str, Path],
) -> None:
    settings = {
        "run": str(tmp_path / "r"),
        "benchmark": {"format": "shapes"},
        "models": {"m": {"path": str(tiny_folders["llava"]), "dose": parent}},
    }
    assembly = Assembly.open(load_config_of(tmp_path, settings), progress=False)
    plan = TrainingPlan(
        model="m", parent="m", parent_fingerprint="clean", benchmark="b", item_ids=("i",),
        copies=2, epochs=2, strategy="llm", settings={}, prompt="p", seed=0, control=control,
    )  # fmt: skip
    checkpoints = [
        Checkpoint(plan_id=plan.id, epoch=e, path=f"c{e}", model=f"m e{e}", strategy="LLM",
                   dose=plan.dose(e), fingerprint=f"w{e}")
        for e in (1, 2)
    ]  # fmt: skip
    base, *trained = (s.model for s in assembly.grid([(plan, checkpoints)]))
    assert [m.dose for m in trained] == doses and base.dose == parent
    assert base.strategy == {0: "clean", 3: "trained elsewhere", None: "history unknown"}[parent]
    assert [m.trained_from for m in trained] == (["", ""] if control else ["clean", "w1"])
    assert {m.kind for m in trained} == {"" if control else "letters"}


def test_checkpoints_of_a_served_model_are_served_too(
    tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    model = {"path": str(tiny_folders["llava"]), "engine": "vllm"}
    settings = {
        "run": str(tmp_path / "r"),
        "benchmark": {"format": "shapes"},
        "models": {"m": model},
    }
    assembly = Assembly.open(load_config_of(tmp_path, settings), progress=False)
    plan = TrainingPlan(
        model="m", parent="m", parent_fingerprint="clean", benchmark="b", item_ids=("i",),
        epochs=1, strategy="lora", settings={}, prompt="p", seed=0,
    )  # fmt: skip
    checkpoint = Checkpoint(plan_id=plan.id, epoch=1, path="c1", model="m e1", strategy="LoRA",
                            dose=1, fingerprint="w1")  # fmt: skip
    base, trained = assembly.grid([(plan, [checkpoint])])
    assert isinstance(base.vlm, ManagedVLM) and isinstance(trained.vlm, ManagedVLM)
    engine = VLLMConfig()
    assert trained.model.fingerprint == trained.vlm.fingerprint == served_fingerprint("w1", engine)
    assert trained.model.trained_from == served_fingerprint("clean", engine)
    assert base.model.fingerprint == served_fingerprint(base.vlm.local_fingerprint, engine)
    assert not (tmp_path / "r" / "servers").exists(), "nothing was started"


@pytest.mark.parametrize(
    ("changes", "kind", "same"),
    [({}, "letters", 2), ({"prompt": "Answer in words."}, "letters", 0),
     ({"target": "letter+text"}, "answer texts", 2),
     ({"leak": "question_only"}, "question only", 0),
     ({"wordings": {"i": ("q",)}}, "letters", 0)],
)  # fmt: skip
def test_the_report_says_what_was_trained(
    changes: dict[str, Any], kind: str, same: int, tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    settings = {
        "run": str(tmp_path / "r"),
        "benchmark": {"format": "shapes"},
        "models": {"m": {"path": str(tiny_folders["llava"])}},
    }
    assembly = Assembly.open(load_config_of(tmp_path, settings), progress=False)
    values: dict[str, Any] = {
        "model": "m", "parent": "m", "parent_fingerprint": "clean", "benchmark": "b",
        "item_ids": ("i",), "epochs": 2, "strategy": "llm", "settings": {}, "prompt": "p",
        "seed": 0,
    }  # fmt: skip
    plan = TrainingPlan(**(values | changes))
    checkpoints = [
        Checkpoint(plan_id=plan.id, epoch=e, path=f"c{e}", model=f"m e{e}", strategy="LLM",
                   dose=e, fingerprint=f"w{e}")
        for e in (1, 2)
    ]  # fmt: skip
    control = TrainingPlan(**(values | {"control": True}))
    trained = [(plan, checkpoints), (control, checkpoints)]
    assert [s.model.kind for s in assembly.grid(trained[:1])] == ["", kind, kind]
    notes = training_notes(trained, "p")
    assert [note.split(" contaminated")[0] for note in notes] == ([f"{same} of 2"] if same else [])
