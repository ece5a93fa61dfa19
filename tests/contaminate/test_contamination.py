"""The stage as a configuration runs it: regimes, the table, a plan that diverges, a full disk."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trl

from flipbench.contaminate.card import read_card
from flipbench.contamination import (
    make_checkpoints,
    plan_contamination,
    plans_for,
    training_failures,
)
from flipbench.errors import PrerequisiteError
from flipbench.evaluation import subjects_of


def test_a_grid_of_data_and_seeds(opened: Any) -> None:
    data = {
        "verbatim": {},
        "half": {"fraction": 0.5, "target": "letter+text"},
        "paraphrased": {"rewrite": {"by": "shapes"}, "copies": 2},
    }
    experiment, benchmark = opened(data=data, seeds=[0, 1])
    plans = plans_for(experiment, benchmark)
    assert [plan.label for plan in plans] == [
        f"S{words}, seed {seed}" for words in ("", ", half", ", paraphrased") for seed in (0, 1)
    ]
    lines = plan_contamination(experiment, benchmark)
    assert lines[0].count("\n") == 6 and lines[1].startswith("to do: 6 of 6 plans, about")
    assert not (experiment.run.path / "checkpoints").exists()
    trained = make_checkpoints(experiment, benchmark)
    assert [plan for plan, _ in trained] == plans
    half = trained[2][0]
    assert len(half.item_ids) == len(half.held_out_ids) == 4
    assert {*half.item_ids, *half.held_out_ids} == {item.id for item in benchmark.originals}
    card = read_card(experiment.run.path / trained[2][1][0].path)
    assert card["verification"]["held_out"]["n"] == 4 and card["target"] == "letter+text"
    reworded = trained[4][0]
    asked = {item.id: item.question for item in benchmark.originals}
    assert set(reworded.wordings) == set(asked)
    assert all(words[0] != asked[i] for i, words in reworded.wordings.items())
    assert [c.dose for _, (c,) in trained] == [1, 1, 1, 1, 2, 2]
    names = [subject.model.name for subject in subjects_of(experiment, trained)]
    assert len(set(names)) == 7
    again = plan_contamination(experiment, benchmark)
    assert again[0].count("done") == 6 and again[1].startswith("to do: 0 of 6")
    assert make_checkpoints(experiment, benchmark) == trained


def test_a_washing_follows_its_contamination(opened: Any, tmp_path: Path) -> None:
    line = '{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}'
    (tmp_path / "clean.jsonl").write_text(f"{line}\n" * 4)
    wash = {"corpus": {"path": str(tmp_path / "clean.jsonl")}}
    experiment, benchmark = opened(data={"verbatim": {}, "washed": {"wash": wash}})
    trained = make_checkpoints(experiment, benchmark)
    assert [plan.label for plan, _ in trained] == ["S", "S, washed"]
    assert trained[1][0].after == trained[0][0].id


def test_a_plan_that_diverges_does_not_stop_the_others(
    opened: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wild = {"train": "llm", "learning_rate": 1e30, "batch_size": 4}
    calm = {"train": "lora", "learning_rate": 1e-3, "batch_size": 8}
    experiment, benchmark = opened(strategies={"wild": wild, "calm": calm}, epochs=2)
    with caplog.at_level(logging.ERROR):
        trained = make_checkpoints(experiment, benchmark)
    assert "tiny, wild: " in caplog.text and "lower the learning rate" in caplog.text
    assert len(trained[0][1]) < 2 and len(trained[1][1]) == 2
    (failure,) = training_failures(experiment, trained)
    assert (failure.record_id, failure.error) == (trained[0][0].id, "Diverged")


def test_a_full_disk_is_noticed_before_anything_is_trained(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    experiment, benchmark = opened()
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    monkeypatch.setattr(trl.SFTTrainer, "train", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(PrerequisiteError, match="1 kB are free there; train fewer plans"):
        make_checkpoints(experiment, benchmark)
    assert not (experiment.run.path / "checkpoints").exists()
