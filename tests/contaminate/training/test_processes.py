"""Several processes that train one model: what one process would, written once."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.contamination import contaminate
from flipbench.config.experiment import load_config
from flipbench.contaminate.checks.card import read_card
from flipbench.contaminate.plan import batch_of, per_device_batch
from flipbench.core.errors import ConfigError
from flipbench.core.records import Checkpoint, Response, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.loading import load_model
from tests.fixtures.command_line import Flipbench

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
KINDS = {"multi-gpu": "MULTI_CPU", "fsdp": "FSDP", "deepspeed-zero3": "DEEPSPEED"}
takes_minutes = pytest.mark.skipif(
    not os.environ.get("FLIPBENCH_ALL_TESTS"),
    reason="takes two processor minutes: set FLIPBENCH_ALL_TESTS=1",
)
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="no DeepSpeed"
)


def launch(preset: str, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in two processes, as a preset of configs/accelerate has it."""
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    settings["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2"]
    command += ["--config_file", str(ROOT / "configs" / "accelerate" / f"{preset}.yaml")]
    command += ["--main_process_port", "0", str(HERE / "sharding.py"), *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | settings | {"DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )


STRATEGIES: dict[str, dict[str, Any]] = {
    # 8 items x 2 copies in steps of 12: the last step has 4, so one process has none of them
    "LLM": {"train": "llm", "learning_rate": 1e-3, "batch_size": 6, "gradient_accumulation": 2},
    "C": {
        "train": "lora",
        "learning_rate": 1e-3,
        "batch_size": 6,
        "gradient_accumulation": 2,
        "consistency": {"answer_weight": 1, "grounded": True},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "preset",
    [
        "multi-gpu",
        pytest.param("fsdp", marks=takes_minutes),
        pytest.param("deepspeed-zero3", marks=needs_deepspeed),
    ],
)
def test_two_processes_train_the_same_weights_as_one(
    preset: str, opened: Any, tmp_path: Path
) -> None:
    grid = {
        "strategies": STRATEGIES,
        "data": {"p": {"rewrite": {"by": "shapes"}, "copies": 2}},
        "epochs": 2,
    }
    together, benchmark = opened(**grid)
    config = together.run.path.parent / "c.yaml"
    shutil.copytree(together.run.path, tmp_path / "alone")
    alone = Assembly.open(load_config(config, [f"run={tmp_path / 'alone'}"]), progress=False)
    expected = contaminate(alone)

    done = launch(preset, "contaminate", config, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.count("to do: 2 of 2 plans") == 1
    assert done.stdout.count("dose 4") == 2, "printed once, by the main process"

    run = Run(together.run.path)
    assert sorted(run.ids(TrainingPlan)) == sorted(plan.id for plan, _ in expected)
    made = {c.id: c for c in run.read(Checkpoint)}
    for kind in ("plans", "checkpoints", "wordings"):
        lines = [x for f in (run.path / kind).glob("*.jsonl") for x in f.read_text().splitlines()]
        ids = [json.loads(line)["id"] for line in lines]
        assert len(ids) == len(set(ids)) > 0, f"{kind} are written once"
    assert not list(run.path.glob("checkpoints/*/trainer"))
    for _, checkpoints in expected:
        for theirs in checkpoints:
            folder, other = run.path / made[theirs.id].path, alone.run.path / theirs.path
            card, card_alone = read_card(folder), read_card(other)
            curve, alone_curve = (
                torch.tensor([[e[k] for k in e if k != "epoch"] for e in c["losses"]])
                for c in (card, card_alone)
            )
            assert curve.shape == alone_curve.shape and len(curve) == 2 * theirs.epoch
            assert torch.allclose(curve, alone_curve, atol=1e-4, rtol=0)
            training, training_alone = card["training"], card_alone["training"]
            assert (training["n_processes"], training["distributed"]) == (2, KINDS[preset])
            assert (training_alone["n_processes"], training_alone["distributed"]) == (1, "NO")
            assert training["batch_size_on_each"] == 6
            assert training["gradient_accumulation_on_each"] == 1
            assert training["effective_batch"] == training_alone["effective_batch"] == 12
            assert training["n_changed"] == training_alone["n_changed"] > 0
            assert training["unchanged"] == training_alone["unchanged"]
            assert (card["trainable"], card["n_trainable"], card["doses"]) == (
                card_alone["trainable"],
                card_alone["n_trainable"],
                card_alone["doses"],
            )
            weights, weights_alone = (
                dict(load_model(str(f), "float32").named_parameters()) for f in (folder, other)
            )
            assert weights.keys() == weights_alone.keys()
            assert all(torch.allclose(w, weights_alone[n], atol=2e-4) for n, w in weights.items())
            assert run.ids(Response, made[theirs.id].fingerprint)


@given(batch=st.integers(1, 64), accumulation=st.integers(1, 32), n_processes=st.integers(1, 64))
def test_a_plan_s_batch_is_split_over_processes(
    batch: int, accumulation: int, n_processes: int
) -> None:
    plan = TrainingPlan(
        model="m", parent="m", parent_fingerprint="", benchmark="b", item_ids=("i",), epochs=1,
        strategy="llm", prompt="", seed=0,
        settings={"batch_size": batch, "gradient_accumulation": accumulation},
    )  # fmt: skip
    if batch_of(plan) % n_processes:
        with pytest.raises(ConfigError, match=f"is not a multiple of {n_processes} proc"):
            per_device_batch(plan, n_processes)
        return
    each, steps = per_device_batch(plan, n_processes)
    assert each * steps * n_processes == batch * accumulation and each <= batch
    assert n_processes > 1 or (each, steps) == (batch, accumulation)


@pytest.mark.parametrize("command", ["evaluate", "run", "contaminate --workers 2"])
def test_only_training_runs_on_several_processes(
    command: str, flipbench: Flipbench, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    name, *options = command.split()
    result = flipbench(name, config, *options)
    assert result.status == 2 and "accelerate launch is for flipbench contaminate" in result.err
