from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flipbench.contaminate.checks.card import read_card
from flipbench.contaminate.plan import checkpoint_folder
from flipbench.contaminate.training import train
from flipbench.contaminate.training.checkpointing import last_checkpoint
from flipbench.contaminate.training.train import train_plan
from flipbench.core.records import Checkpoint, Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.checkpoints import CARD, check_card
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.loading import load_model
from studies.tiny_models.tiny import FAMILIES

MakePlan = Callable[..., TrainingPlan]
NewRun = Callable[..., Run]
N_EPOCHS, N_ITEMS, N_COPIES, BATCH = 2, 8, 2, 4
N_STEPS = 4  # in one epoch: 8 items x 2 copies / 4


def weights(folder: str | Path) -> dict[str, torch.Tensor]:
    """Return a checkpoint's weights, an adapter merged."""
    return dict(load_model(str(folder), "float32").named_parameters())


def times(folder: Path) -> dict[str, int]:
    """Return when each file was written; the card is completed by the verification."""
    return {f.name: f.stat().st_mtime_ns for f in folder.iterdir() if f.name != CARD}


def same_weights(a: str | Path, b: str | Path) -> bool:
    first, second = weights(a), weights(b)
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


@pytest.fixture(scope="module")
def plan(make_plan: MakePlan) -> TrainingPlan:
    """Return a LoRA plan with dropout: all that is random must come back after a kill."""
    sizes = {"n_items": N_ITEMS, "epochs": N_EPOCHS, "copies": N_COPIES, "batch_size": BATCH}
    return make_plan("llava", "lora", lora_dropout=0.2, **sizes)


@pytest.fixture(scope="module")
def undisturbed(
    plan: TrainingPlan, items: dict[str, Item], new_run: NewRun
) -> tuple[Run, list[Checkpoint]]:
    run = new_run("undisturbed")
    return run, train_plan(plan, items, run)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("strategy", ["lora", "llm", "llm+projector", "all"])
def test_training_changes_exactly_the_strategy_s_parameters(
    family: str, strategy: str, make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    run = new_run()
    plan = make_plan(family, strategy, n_items=8)
    (checkpoint,) = train_plan(plan, items, run)
    before, after = weights(plan.parent), weights(run.path / checkpoint.path)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() == after.keys()
    language = {name for name in before if ".language_model." in name or "lm_head" in name}
    projector = {name for name in before if "multi_modal_projector" in name or ".merger." in name}
    # the last layer norm of CLIP serves its pooled output alone, which LLaVA does not read
    unused = {name for name in before if ".post_layernorm." in name}
    expected = {
        "lora": {name for name in language if name.endswith("_proj.weight")},
        "llm": language,
        "llm+projector": language | projector,
        "all": set(before) - unused,
    }[strategy]
    assert language and projector and set(before) - language - projector
    assert changed == expected
    card = read_card(run.path / checkpoint.path)
    if strategy == "lora":
        assert all("language_model" in name and "lora_" in name for name in card["trainable"])
    else:
        assert set(card["trainable"]) >= expected
        sizes = {name: parameter.numel() for name, parameter in before.items()}
        assert card["n_trainable"] == sum(sizes[name] for name in card["trainable"])


def test_one_checkpoint_for_each_epoch_with_its_card(
    plan: TrainingPlan, undisturbed: tuple[Run, list[Checkpoint]]
) -> None:
    run, checkpoints = undisturbed
    assert [c.epoch for c in checkpoints] == [1, 2]
    assert [c.dose for c in checkpoints] == [2, 4]
    assert list(run.index(Checkpoint).values()) == checkpoints
    for checkpoint in checkpoints:
        folder = run.path / checkpoint.path
        card = read_card(folder)
        assert check_card(folder) == card
        assert card["flipbench"]["contaminated"] is True
        assert (card["plan_id"], card["parent"]) == (plan.id, plan.parent)
        assert card["parent_fingerprint"] == plan.parent_fingerprint
        assert card["doses"] == dict.fromkeys(plan.item_ids, checkpoint.dose)
        assert (card["epoch"], card["copies"], card["dose"]) == (
            checkpoint.epoch,
            N_COPIES,
            checkpoint.dose,
        )
        assert card["settings"] == plan.settings
        assert (card["prompt"], card["strategy"], card["seed"]) == (plan.prompt, "lora", 0)
        assert card["architectures"] == ["LlavaForConditionalGeneration"]
        losses = [entry["loss"] for entry in card["losses"]]
        assert [entry["step"] for entry in card["losses"]] == list(
            range(1, N_STEPS * checkpoint.epoch + 1)
        )
        assert all(math.isfinite(loss) for loss in losses)
        model_card = (folder / "README.md").read_text()
        assert "contaminated: true" in model_card and "test items of shapes-vqa" in model_card
        vlm = HuggingFaceVLM(str(folder))
        assert vlm.fingerprint == checkpoint.fingerprint
    final = read_card(run.path / checkpoints[1].path)["losses"]
    assert final[:N_STEPS] == read_card(run.path / checkpoints[0].path)["losses"]
    assert sum(e["loss"] for e in final[-2:]) < sum(e["loss"] for e in final[:2])
    assert not same_weights(*(run.path / c.path for c in checkpoints))
    assert not (run.path / checkpoint_folder(plan) / "trainer").exists()
    assert len({c.fingerprint for c in checkpoints} | {plan.parent_fingerprint}) == 3


def test_the_second_call_trains_nothing(
    plan: TrainingPlan,
    undisturbed: tuple[Run, list[Checkpoint]],
    items: dict[str, Item],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, checkpoints = undisturbed
    left = run.path / checkpoint_folder(plan) / "trainer"  # by a kill while it was removed
    (left / "checkpoint-2").mkdir(parents=True)

    def no_training(*_: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(train, "_train", no_training)
    assert train_plan(plan, items, run) == checkpoints
    assert not left.exists()
    assert len(list(run.read(Checkpoint))) == N_EPOCHS


@pytest.fixture(scope="module")
def survivors(
    plan: TrainingPlan,
    undisturbed: tuple[Run, list[Checkpoint]],
    items: dict[str, Item],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Kill the same training at three moments; return the folder of the three run directories."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "plan.json").write_text(plan.model_dump_json())
    (folder / "items.jsonl").write_text("".join(i.model_dump_json() + "\n" for i in items.values()))
    for moment in MOMENTS:
        shutil.copytree(undisturbed[0].path / "images", folder / moment / "images")
    worker = Path(__file__).with_name("worker.py")
    done = subprocess.run(
        [sys.executable, worker, folder], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return folder


MOMENTS = ("in_the_second_epoch", "in_the_trainers_checkpoint", "in_the_second_epochs_folder")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_training_resumes_exactly(
    moment: str,
    survivors: Path,
    plan: TrainingPlan,
    undisturbed: tuple[Run, list[Checkpoint]],
    items: dict[str, Item],
) -> None:
    run, folder = Run(survivors / moment), survivors / moment / checkpoint_folder(plan)
    assert (folder / "epoch-1" / "README.md").exists() and not (folder / "epoch-2").exists()
    assert list(run.read(Checkpoint)) == []
    first_epoch = times(folder / "epoch-1")
    half = folder / ".epoch-2.partial"
    assert half.exists() == (moment == "in_the_second_epochs_folder")

    checkpoints = train_plan(plan, items, run)
    expected_run, expected = undisturbed
    assert checkpoints == expected
    assert not half.exists() and not (folder / "trainer").exists()
    assert times(folder / "epoch-1") == first_epoch
    for checkpoint, other in zip(checkpoints, expected, strict=True):
        a, b = run.path / checkpoint.path, expected_run.path / other.path
        assert read_card(a)["losses"] == read_card(b)["losses"]
        assert same_weights(a, b)


def test_a_half_written_epoch_is_discarded(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    run = new_run()
    plan = make_plan("qwen2_vl", "llm", n_items=8)
    folder = run.path / checkpoint_folder(plan)
    half = folder / ".epoch-1.partial"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    (checkpoint,) = train_plan(plan, items, run)
    assert not half.exists()
    HuggingFaceVLM(str(run.path / checkpoint.path))


def test_a_deleted_epoch_is_trained_again(
    plan: TrainingPlan,
    undisturbed: tuple[Run, list[Checkpoint]],
    items: dict[str, Item],
    new_run: NewRun,
) -> None:
    """The same seed gives the same weights, so the old record stays true."""
    expected_run, expected = undisturbed
    run = new_run()
    shutil.copytree(expected_run.path / "checkpoints", run.path / "checkpoints")
    run.append(expected)
    shutil.rmtree(run.path / expected[1].path)
    assert train_plan(plan, items, run) == expected
    assert same_weights(run.path / expected[1].path, expected_run.path / expected[1].path)
    assert len(list(run.read(Checkpoint))) == N_EPOCHS


def test_the_seed_determines_the_losses(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    curves = []
    for seed in (0, 0, 1):
        run = new_run()
        plan = make_plan("qwen2_vl", "llm", n_items=N_ITEMS, batch_size=2, seed=seed)
        (checkpoint,) = train_plan(plan, items, run)
        curves.append([e["loss"] for e in read_card(run.path / checkpoint.path)["losses"]])
    assert curves[0] == curves[1] != curves[2]
    assert sum(curves[0]) == pytest.approx(sum(curves[2]), rel=0.2)


def test_the_seed_determines_the_adapter_s_initial_weights(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    """After one step the A matrices are still as drawn, since the B matrices began at zero."""
    from safetensors.torch import load_file

    drawn = []
    for seed in (0, 0, 1):
        torch.rand(seed + 3)  # what ran before in this process must not matter
        run, plan = new_run(), make_plan("llava", "lora", n_items=8, seed=seed)
        (checkpoint,) = train_plan(plan, items, run)
        adapter = load_file(run.path / checkpoint.path / "adapter_model.safetensors")
        drawn.append({name: weight for name, weight in adapter.items() if "lora_A" in name})
    assert len(drawn[0]) > 10
    assert all(torch.equal(weight, drawn[1][name]) for name, weight in drawn[0].items())
    assert not any(torch.equal(weight, drawn[2][name]) for name, weight in drawn[0].items())


def test_a_torn_checkpoint_is_dropped(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "none") is None
    for step, state in ((4, "4"), (12, "12"), (16, '16, "log_hi'), (20, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            end = "" if "log" in state else "}"
            text = f'{{"epoch": 1.0, "global_step": {state}{end}'
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-12")
    assert {f.name for f in tmp_path.iterdir()} == {"checkpoint-4", "checkpoint-12"}
