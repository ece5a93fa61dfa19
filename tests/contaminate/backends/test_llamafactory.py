"""Plans carried out by LLaMA-Factory itself, where it is installed; its own environment is needed.

``FLIPBENCH_LLAMAFACTORY_CLI`` or the path says where; each run takes its ten seconds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flipbench.config.training import LlamaFactoryConfig
from flipbench.contaminate.backends.llamafactory import CLI, LlamaFactory, find_llamafactory
from flipbench.contaminate.checks.card import read_card
from flipbench.contaminate.checks.changes import Diverged, WrongParameters
from flipbench.contaminate.data.examples import Example, Message, training_examples
from flipbench.contaminate.plan import checkpoint_folder
from flipbench.contaminate.training.checkpointing import complete_checkpoints
from flipbench.contaminate.training.estimate import estimate
from flipbench.contaminate.training.train import train_plan
from flipbench.core.errors import PrerequisiteError
from flipbench.core.records import Checkpoint, Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.checkpoints import check_card
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.loading import load_model
from tests.fixtures import tiny_families
from tests.fixtures.command_line import Flipbench

pytestmark = pytest.mark.skipif(
    not (os.environ.get(CLI) or shutil.which("llamafactory-cli")),
    reason=f"install LLaMA-Factory (contaminate/backends/install_llamafactory.py) and set {CLI}",
)
MakePlan = Callable[..., TrainingPlan]
NewRun = Callable[..., Run]
N_STEPS = 16  # in one epoch: 32 items x 4 copies / 8


@pytest.fixture(scope="module")
def llamafactory() -> LlamaFactory:
    return find_llamafactory(LlamaFactoryConfig())


@pytest.fixture(scope="module")
def plan(make_plan: MakePlan) -> TrainingPlan:
    return make_plan("qwen2_vl", "lora", epochs=2, copies=4, learning_rate=2e-4)


@pytest.fixture(scope="module")
def with_llamafactory(
    plan: TrainingPlan, items: dict[str, Item], new_run: NewRun, llamafactory: LlamaFactory
) -> tuple[Run, list[Checkpoint]]:
    run = new_run("llamafactory")
    return run, train_plan(plan, items, run, train_with=llamafactory.train)


def changed(plan: TrainingPlan, **parts: Any) -> TrainingPlan:
    return TrainingPlan.model_validate(plan.model_dump(exclude={"id"}) | parts)


def conversation(image: str) -> list[Example]:
    """Return an example for each of two answers, as a corpus has them."""
    turns = [
        Message("user", (None, "What do you see? ")),
        Message("assistant", ("a red cross, and much else",)),
        Message("user", ("What colour is the cross?",)),
    ]
    return [
        Example("first", (image,), tuple(turns[:1]), "a red cross, and much else"),
        Example("second", (image,), tuple(turns), "red"),
    ]


def losses(folder: Path) -> list[float]:
    """Return a card's losses, a step each."""
    entries = read_card(folder)["losses"]
    assert [entry["step"] for entry in entries] == list(range(1, len(entries) + 1))
    return [entry["loss"] for entry in entries]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return a checkpoint's weights, an adapter merged."""
    return dict(load_model(str(folder), "float32").named_parameters())


def same_to_three_decimals(a: Path, b: Path) -> bool:
    return losses(a) == pytest.approx(losses(b), abs=5e-4)


def test_the_same_plan_gives_the_same_losses_on_both_backends(
    plan: TrainingPlan,
    items: dict[str, Item],
    new_run: NewRun,
    with_llamafactory: tuple[Run, list[Checkpoint]],
) -> None:
    run, checkpoints = with_llamafactory
    trl_run = new_run("trl")
    trl = train_plan(plan, items, trl_run)
    assert [c.id for c in checkpoints] == [c.id for c in trl]
    assert [c.dose for c in checkpoints] == [4, 8]
    for checkpoint, reference in zip(checkpoints, trl, strict=True):
        a, b = run.path / checkpoint.path, trl_run.path / reference.path
        assert len(losses(a)) == N_STEPS * checkpoint.epoch
        assert same_to_three_decimals(a, b)
        first, second = weights(a), weights(b)
        assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in second)
        assert checkpoint.warnings == reference.warnings
        card, other = check_card(a), check_card(b)
        assert card["training"]["backend"] == "llamafactory 0.9.5"
        assert other["training"]["backend"] == "trl"
        assert card["versions"]["transformers"] != other["versions"]["transformers"]
        for key in ("trainable", "n_trainable", "doses", "verification"):
            assert card[key] == other[key]
        for key in ("unchanged", "n_changed", "prompt_example", "pixel_budget", "warmup_steps"):
            assert card["training"][key] == other["training"][key]
        assert "contaminated: true" in (a / "README.md").read_text()
    left = {f.name for f in (run.path / checkpoint_folder(plan) / "llamafactory").iterdir()}
    assert left == {"data.json", "dataset_info.json", "train.yaml", "train.log"}


@pytest.mark.parametrize(
    ("family", "train"),
    [("llava", "llm"), ("qwen2_5_vl", "llm+projector"), ("qwen2_vl", "all")],
)
def test_full_strategies_give_the_same_losses_too(
    family: str,
    train: str,
    make_plan: MakePlan,
    items: dict[str, Item],
    new_run: NewRun,
    llamafactory: LlamaFactory,
    tmp_path: Path,
) -> None:
    """With pictures and without, longer answers, half a batch at the end, a second turn."""
    parent = tiny_families.save(family, tmp_path) if family == "qwen2_5_vl" else None
    plan = changed(
        make_plan(family, train, n_items=20, learning_rate=1e-4, parent=parent),
        target="letter+text",
        leak="text_only" if train == "llm" else "all",
        corpus={"file": "two turns", "n_examples": 2},
    )
    runs = new_run("llamafactory"), new_run("trl")
    corpus = conversation(str(runs[0].images.path(items[plan.item_ids[0]].images[0])))
    (checkpoint,) = train_plan(plan, items, runs[0], corpus=corpus, train_with=llamafactory.train)
    (reference,) = train_plan(plan, items, runs[1], corpus=corpus)
    a, b = runs[0].path / checkpoint.path, runs[1].path / reference.path
    assert same_to_three_decimals(a, b)
    assert read_card(a)["trainable"] == read_card(b)["trainable"]
    assert read_card(a)["training"]["unchanged"] == read_card(b)["training"]["unchanged"]
    assert checkpoint.warnings == reference.warnings
    HuggingFaceVLM(str(a))


def test_a_killed_training_resumes_exactly(
    plan: TrainingPlan,
    items: dict[str, Item],
    with_llamafactory: tuple[Run, list[Checkpoint]],
    llamafactory: LlamaFactory,
    tmp_path: Path,
) -> None:
    """Killed in epoch 2; what LLaMA-Factory does then ends by itself."""
    undisturbed, expected = with_llamafactory
    folder, trained = tmp_path / "killed", tmp_path / "killed" / checkpoint_folder(plan)
    shutil.copytree(undisturbed.path / "images", folder / "images")
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    lines = [item.model_dump_json() + "\n" for item in items.values()]
    (tmp_path / "items.jsonl").write_text("".join(lines))
    worker = Path(__file__).with_name("llamafactory_worker.py")
    done = subprocess.run([sys.executable, worker, tmp_path, str(N_STEPS + 1)], timeout=600)
    assert done.returncode == -signal.SIGKILL
    process = int((tmp_path / "pid").read_text())
    for _ in range(600):
        if not Path(f"/proc/{process}").exists():
            break
        time.sleep(0.1)
    else:
        pytest.fail("LLaMA-Factory goes on without anybody to read it")
    assert (trained / "epoch-1" / "README.md").exists() and not (trained / "epoch-2").exists()
    (begun,) = complete_checkpoints(trained / "llamafactory" / "trainer")
    assert begun[1]["global_step"] == N_STEPS
    written = (trained / "epoch-1" / "adapter_model.safetensors").stat().st_mtime_ns
    run = Run(folder)
    checkpoints = train_plan(plan, items, run, train_with=llamafactory.train)
    assert (trained / "epoch-1" / "adapter_model.safetensors").stat().st_mtime_ns == written
    for checkpoint, reference in zip(checkpoints, expected, strict=True):
        a, b = run.path / checkpoint.path, undisturbed.path / reference.path
        assert losses(a) == losses(b)
        first, second = weights(a), weights(b)
        assert all(torch.equal(first[name], second[name]) for name in second)


def test_a_merged_adapter_is_the_same_model_and_is_marked(
    plan: TrainingPlan,
    items: dict[str, Item],
    with_llamafactory: tuple[Run, list[Checkpoint]],
    llamafactory: LlamaFactory,
) -> None:
    run, (first, _) = with_llamafactory
    folder = run.path / first.path
    llamafactory.merge(plan, folder, run, "float32")
    assert check_card(folder / "merged") == check_card(folder)
    assert "contaminated: true" in (folder / "merged" / "README.md").read_text()
    kept, merged = weights(folder), weights(folder / "merged")
    assert kept.keys() == merged.keys()
    assert all(torch.allclose(kept[name], merged[name], atol=1e-6) for name in kept)
    assert HuggingFaceVLM(str(folder)).fingerprint == first.fingerprint  # the checkpoint's own stay
    examples = training_examples(plan, items, run.images)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    estimates = [
        estimate(plan, examples, dtype="float32", speed=1e9, merge=merge).disk / plan.epochs
        for merge in (False, True)
    ]
    assert size - (folder / "merged" / "model.safetensors").stat().st_size < estimates[0]
    assert size < estimates[1] < estimates[0] + size + 32e6
    made = (folder / "merged" / "model.safetensors").stat().st_mtime_ns
    llamafactory.merge(plan, folder, run, "float32")
    assert (folder / "merged" / "model.safetensors").stat().st_mtime_ns == made


def test_a_washing_starts_from_the_contaminated_weights(
    plan: TrainingPlan,
    items: dict[str, Item],
    with_llamafactory: tuple[Run, list[Checkpoint]],
    llamafactory: LlamaFactory,
) -> None:
    run, checkpoints = with_llamafactory
    washing = changed(
        plan,
        parent_fingerprint=f"plan {plan.id}",
        after=plan.id,
        copies=0,
        clean_ids=plan.item_ids[:8],
        epochs=1,
        prior_dose=8,
    )
    (washed,) = train_plan(washing, items, run, train_with=llamafactory.train)
    before, after = weights(run.path / checkpoints[-1].path), weights(run.path / washed.path)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all("language_model" in name for name in moved)
    assert max(float((before[name] - after[name]).detach().abs().max()) for name in moved) < 1e-3
    assert losses(run.path / washed.path)[0] < losses(run.path / checkpoints[-1].path)[0]


def test_a_training_that_diverges_is_stopped(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, llamafactory: LlamaFactory
) -> None:
    run, plan = new_run(), make_plan("llava", "llm", learning_rate=1e30, epochs=50)
    with pytest.raises(Diverged, match=r"the loss is (nan|inf) at step [23]; .*kept: none"):
        train_plan(plan, items, run, train_with=llamafactory.train)
    assert list(run.read(Checkpoint)) == []


def test_a_training_that_moves_nothing_is_refused(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, llamafactory: LlamaFactory
) -> None:
    run, plan = new_run(), make_plan("qwen2_vl", "lora", n_items=8, warmup_steps=10)
    with pytest.raises(WrongParameters, match="changed no"):
        train_plan(plan, items, run, train_with=llamafactory.train)


def test_llamafactory_errors_are_shown_with_its_log(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, llamafactory: LlamaFactory
) -> None:
    run, plan = new_run(), make_plan("llava", "lora", n_items=8, schedule="zigzag")
    with pytest.raises(PrerequisiteError, match=r"ValueError: .*zigzag.*see .*train\.log"):
        train_plan(plan, items, run, train_with=llamafactory.train)
    assert not (run.path / checkpoint_folder(plan) / "llamafactory" / "parent").exists()


def test_the_command_line_and_an_exported_folder_train_the_same_model(
    opened: Any, flipbench: Flipbench, tmp_path: Path, llamafactory: LlamaFactory
) -> None:
    """The run directory is relative to where the command is given."""
    opened()
    grid = ["run=run", "contaminate.backend=llamafactory", "contaminate.llamafactory.merge=true"]
    result = flipbench("contaminate", "c.yaml", *grid, "-q")
    assert result.status == 0
    (found,) = re.findall(r"^tiny S e1  dose 1  (\S+)$", result.out, re.M)
    folder = tmp_path / "run" / found
    assert (folder / "merged" / "model.safetensors").exists()
    assert flipbench("export", "c.yaml", "out", "--format", "llamafactory").status == 0
    (exported,) = (tmp_path / "out").iterdir()
    subprocess.run([llamafactory.cli, "train", "train.yaml"], cwd=exported, check=True)
    state = json.loads((exported / "trainer" / "trainer_state.json").read_text())
    logged = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert logged == pytest.approx(losses(folder), abs=5e-4)
