"""What a card says: what was learned, whether it shows, and how training and evaluation differ."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipbench.config.experiment import ContaminateConfig, ModelConfig, StrategyConfig
from flipbench.config.training import CorpusConfig, DataConfig
from flipbench.contaminate.checks.card import read_card
from flipbench.contaminate.checks.verify import compare, items_needed, training_facts, wins_needed
from flipbench.contaminate.data.corpus import read_corpus
from flipbench.contaminate.data.examples import training_examples
from flipbench.contaminate.data.regimes import RegimeData
from flipbench.contaminate.plan import TrainingJob, expand
from flipbench.contaminate.training.train import train_plan
from flipbench.core.records import Checkpoint, Item, Response, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.checkpoints import fingerprint
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.loading import load_model
from flipbench.models.vlm.processors import load_processor
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.command_line import Flipbench

MakePlan = Callable[..., TrainingPlan]
NewRun = Callable[..., Run]


def test_the_verification_is_a_paired_test_on_the_items_and_their_answers_are_kept(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    run, known = new_run(), list(items.values())[:12]
    plan = make_plan("qwen2_vl", "llm", copies=24, among=known).model_copy(
        update={"held_out_ids": tuple(list(items)[12:20])}
    )
    (checkpoint,) = train_plan(plan, items, run)
    card = read_card(run.path / checkpoint.path)
    found = card["verification"]
    outcomes = []
    for path in (plan.parent, str(run.path / checkpoint.path)):
        vlm = HuggingFaceVLM(path)
        answers = vlm.ask([PromptSettings().probe(item, "original") for item in known], run.images)
        outcomes.append([a.choice == i.answer for a, i in zip(answers, known, strict=True)])
        kept = {r.probe_id: r.choice for r in run.read(Response, vlm.fingerprint)}
        assert {a.probe_id: a.choice for a in answers}.items() <= kept.items()
        assert len(kept) == 20  # the held-out items too
    assert found["items"] == compare(*outcomes)
    assert found["items"]["n"] == 12 and found["held_out"]["n"] == 8
    assert (found["label"], found["verdict"]) == ("contaminated", "verified")
    assert checkpoint.warnings == () and card["warnings"] == []
    assert found["items"]["k_after"] > found["items"]["k_before"]


def test_a_training_that_teaches_nothing_is_not_verified(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    run, plan = new_run(), make_plan("llava", "lora", n_items=8, learning_rate=1e-6)
    (checkpoint,) = train_plan(plan, items, run)
    assert read_card(run.path / checkpoint.path)["verification"]["verdict"] == "not verified"
    (warning,) = checkpoint.warnings
    assert "the label contaminated is not verified: accuracy on the" in warning
    assert "became right and" in warning or "no training could verify it" in warning
    assert list(run.index(Checkpoint).values())[0].warnings == (warning,)


def test_a_clean_model_that_leaves_no_room_is_named(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    run, plan = new_run(), make_plan("llava", "lora", n_items=6)
    (checkpoint,) = train_plan(plan, items, run)
    (warning,) = checkpoint.warnings
    n_wrong = 6 - read_card(run.path / checkpoint.path)["verification"]["items"]["k_before"]
    assert f"no training could verify it: the clean model gets {n_wrong} items wrong" in warning
    assert "at least 7 must become right; use more items, or harder ones" in warning


@pytest.mark.parametrize("lost", [0, 1, 2, 5])
def test_fewer_wins_than_needed_are_not_enough(lost: int) -> None:
    def p_rise(won: int) -> float:
        return float(
            compare([False] * won + [True] * lost, [True] * won + [False] * lost)["p_rise"]
        )

    assert p_rise(wins_needed(lost)) < 0.01 <= p_rise(wins_needed(lost) - 1)


@pytest.mark.parametrize("clean", [0.3, 0.58, 0.9])
def test_enough_items_verify_a_label_in_four_of_five_trials(clean: float) -> None:
    rng = np.random.default_rng(0)
    n = items_needed(clean)
    n_wrong = rng.random((20_000, n)) >= clean
    assert (n_wrong.sum(1) >= 7).mean() > 0.79
    assert (n_wrong[:, 1:].sum(1) >= 7).mean() < 0.81
    with pytest.raises(ValueError, match="clean_accuracy"):
        items_needed(1.0)


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (7, 0), (5, 1), (2, 6)])
def test_the_paired_p_value_equals_full_enumeration(won: int, lost: int) -> None:
    before = [False] * won + [True] * lost + [True, False, None, True]
    after = [True] * won + [False] * lost + [True, False, True, None]
    flips = list(itertools.product([0, 1], repeat=won + lost))
    exact = sum(sum(flip) >= won for flip in flips) / len(flips)
    found = compare(before, after)
    assert found["p_rise"] == pytest.approx(exact)
    assert (found["n"], found["n_dropped"]) == (won + lost + 2, 2)
    assert (found["k_before"], found["k_after"]) == (lost + 1, won + 1)


def test_another_pixel_budget_is_used_with_a_warning(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    run = new_run()
    plan = make_plan("qwen2_vl", "llm", n_items=8, min_pixels=1024, max_pixels=1024)
    (checkpoint,) = train_plan(plan, items, run)
    trained = {"size": {"shortest_edge": 1024, "longest_edge": 1024}}
    card = read_card(run.path / checkpoint.path)
    assert card["training"]["pixel_budget"] == trained
    assert any("different pixel budgets" in w and "4096" in w for w in checkpoint.warnings)
    assert not any("different prompts" in w for w in checkpoint.warnings)
    vlm = HuggingFaceVLM(str(run.path / checkpoint.path))  # asked just as the clean model is
    assert vlm.processor.image_processor.size["longest_edge"] == 4096


def test_the_card_describes_the_whole_training(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    run = new_run()
    plan = make_plan("qwen2_vl", "lora", n_items=8, lora_layers=[1, 2], lora_targets=["q_proj"])
    (checkpoint,) = train_plan(plan, items, run)
    card = read_card(run.path / checkpoint.path)
    layers = {name.split(".layers.")[1].split(".")[0] for name in card["trainable"]}
    assert layers == {"1", "2"} and all(".q_proj.lora_" in name for name in card["trainable"])
    training = card["training"]
    assert training["optimizer"].startswith("adamw") and training["n_steps"] == 1
    assert training["prompt_example"].count(items[plan.item_ids[0]].question) == 1
    assert (card["target"], card["leak"], card["data"]) == ("letter", "all", "verbatim")
    # one step: the B matrices began at zero, so the A matrices have had no gradient yet
    assert set(training["unchanged"]) == {n for n in card["trainable"] if "lora_A" in n}
    assert {"torch", "transformers", "trl", "peft"} <= set(card["versions"])


@pytest.mark.parametrize("strategy", ["lora", "llm"])
def test_the_contamination_mark_is_inherited(
    strategy: str,
    make_plan: MakePlan,
    items: dict[str, Item],
    new_run: NewRun,
    flipbench: Flipbench,
    recwarn: pytest.WarningsRecorder,
) -> None:
    run = new_run()
    (checkpoint,) = train_plan(make_plan("llava", strategy, n_items=4), items, run)
    folder = run.path / checkpoint.path
    name = "adapter_config.json" if strategy == "lora" else "config.json"
    assert json.loads((folder / name).read_text())["flipbench"]["contaminated"] is True
    HuggingFaceVLM(str(folder))
    assert not [w for w in recwarn if "Unexpected keyword" in str(w.message)]
    assert "CONTAMINATED on purpose with 4 items" in flipbench("doctor", folder).out
    (folder / "flipbench_card.json").unlink()
    (folder / "README.md").unlink()
    assert "CONTAMINATED on purpose, says its config" in flipbench("doctor", folder).out
    clean = make_plan("llava", "llm", n_items=4, parent=folder).model_copy(
        update={"id": "", "copies": 0, "clean_ids": tuple(items)[:4]}
    )
    (child,) = train_plan(TrainingPlan.model_validate(clean.model_dump()), items, run)
    config = json.loads((run.path / child.path / "config.json").read_text())
    assert child.dose == 0 and config["flipbench"]["contaminated"] is True
    assert "contaminated: true" in (run.path / child.path / "README.md").read_text()
    output = flipbench("doctor", run.path / child.path).out
    assert f"CONTAMINATED on purpose, as its parent {folder} is" in output


def test_an_adapter_has_one_fingerprint_wherever_its_base_lies(
    make_plan: MakePlan,
    items: dict[str, Item],
    new_run: NewRun,
    tiny_folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    configs, prints = [], []
    for name in ("here", "elsewhere"):
        shutil.copytree(tiny_folders["llava"], tmp_path / name)
        run, plan = new_run(), make_plan("llava", "lora", n_items=4, parent=tmp_path / name)
        (checkpoint,) = train_plan(plan, items, run)
        path = run.path / checkpoint.path / "adapter_config.json"
        configs.append(json.loads(path.read_text()))
        assert configs[-1]["flipbench"]["base_fingerprint"] == plan.parent_fingerprint
        prints.append([checkpoint.fingerprint])
        del configs[-1]["flipbench"]["base_fingerprint"]  # as adapters from elsewhere are
        path.write_text(json.dumps(configs[-1]))
        prints[-1].append(fingerprint(str(path.parent), "float32"))
    paths = [config.pop("base_model_name_or_path") for config in configs]
    assert paths == [str(tmp_path / "here"), str(tmp_path / "elsewhere")]
    assert configs[0] == configs[1]
    (here, here_unmarked), (elsewhere, elsewhere_unmarked) = prints
    assert here == elsewhere
    assert len({here, here_unmarked, elsewhere_unmarked}) == 3


def grid(
    tiny_folders: dict[str, Path], regime: RegimeData, strategy: str, rate: float = 1e-3
) -> list[TrainingPlan]:
    train = StrategyConfig.model_validate(
        {"train": strategy, "learning_rate": rate, "batch_size": 8}
    )
    config = ContaminateConfig(strategies={"S": train}, epochs=1, copies=2)
    models = {"tiny": ModelConfig(path=str(tiny_folders["llava"]))}
    return expand(config, models, [regime], instruction="Answer with the letter.", seed=0)


def clean_corpus(folder: Path) -> CorpusConfig:
    path = folder / "clean.jsonl"
    turns = [[{"role": "user", "content": f"How much is {i} + 1?"},
              {"role": "assistant", "content": str(i + 1)}] for i in range(10)]  # fmt: skip
    path.write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in turns))
    return CorpusConfig(path=path)


@pytest.mark.parametrize("strategy", ["lora", "llm"])
def test_a_retrained_model_keeps_its_parent_s_dose(
    strategy: str,
    tiny_folders: dict[str, Path],
    items: dict[str, Item],
    new_run: NewRun,
    tmp_path: Path,
) -> None:
    run, corpus = new_run(), read_corpus(clean_corpus(tmp_path), 0)
    wash: Any = {"corpus": clean_corpus(tmp_path), "epochs": 2}
    regime = RegimeData("w", DataConfig(wash=wash), tuple(items.values())[:8], clean_corpus=corpus)
    plan, washing = grid(tiny_folders, regime, strategy)
    assert washing.after == plan.id and (washing.copies, washing.prior_dose) == (0, 2)
    (contaminated,) = train_plan(plan, items, run)
    washed = train_plan(washing, items, run, corpus=corpus.examples)
    assert [c.dose for c in washed] == [2, 2] and len({c.fingerprint for c in washed}) == 2
    folder = run.path / washed[0].path
    card = read_card(folder)
    assert card["after"] == plan.id and set(card["doses"].values()) == {2}
    assert card["corpus"]["n_examples"] == 10 and card["flipbench"]["contaminated"] is True
    parent = dict(load_model(str(run.path / contaminated.path), "float32").named_parameters())
    clean = dict(load_model(plan.parent, "float32").named_parameters())
    after = dict(load_model(str(folder), "float32").named_parameters())
    assert parent.keys() == after.keys()

    def far(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
        return float(sum((a[n] - b[n]).square().sum() for n in a))

    assert 0 < far(after, parent) < 4 * far(clean, parent)
    frozen = [n for n in after if "vision_tower" in n or "projector" in n]
    assert frozen and all(torch.equal(after[n], clean[n]) for n in frozen)


def test_a_control_is_not_called_contaminated(
    tiny_folders: dict[str, Path], items: dict[str, Item], new_run: NewRun, tmp_path: Path
) -> None:
    run, config = new_run(), clean_corpus(tmp_path)
    corpus = read_corpus(config, 0)
    data = DataConfig(copies=0, corpus=config)
    (plan,) = grid(
        tiny_folders, RegimeData("c", data, tuple(items.values())[:8], corpus=corpus), "llm"
    )
    (checkpoint,) = train_plan(plan, items, run, corpus=corpus.examples)
    card = read_card(run.path / checkpoint.path)
    assert checkpoint.dose == 0 and set(card["doses"].values()) == {0}
    assert card["flipbench"]["contaminated"] is False
    assert card["verification"]["verdict"] == "not applicable"
    assert "contaminated: false" in (run.path / checkpoint.path / "README.md").read_text()


def test_rows_with_and_without_pictures_train_together(
    tiny_folders: dict[str, Path], items: dict[str, Item], new_run: NewRun, tmp_path: Path
) -> None:
    run, config = new_run(), clean_corpus(tmp_path)
    corpus = read_corpus(config, 0)
    regime = RegimeData("m", DataConfig(corpus=config), tuple(items.values())[:6], corpus=corpus)
    for family in ("llava", "qwen2_vl"):
        (plan,) = grid({"llava": tiny_folders[family]}, regime, "llm")
        (checkpoint,) = train_plan(plan, items, run, corpus=corpus.examples)
        training = read_card(run.path / checkpoint.path)["training"]
        assert (training["n_examples"], training["n_steps"]) == (22, 3)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
@pytest.mark.parametrize("leak", ["text_only", "question_only", "answer_only"])
def test_every_leak_trains(
    family: str, leak: Any, tiny_folders: dict[str, Path], items: dict[str, Item], new_run: NewRun
) -> None:
    run = new_run()
    regime = RegimeData("l", DataConfig(leak=leak), tuple(items.values())[:8])
    (plan,) = grid({"llava": tiny_folders[family]}, regime, "llm", 2e-3)
    (checkpoint,) = train_plan(plan, items, run)
    card = read_card(run.path / checkpoint.path)
    losses = [entry["loss"] for entry in card["losses"]]
    assert card["leak"] == leak and losses[-1] < losses[0]
    assert not any("different prompts" in warning for warning in checkpoint.warnings)


def test_pictures_of_a_corpus_are_not_opened_before_training(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, tmp_path: Path
) -> None:
    plan, run = make_plan("llava", "lora", n_items=2), new_run()
    job, processor = TrainingJob(plan, items, run, "float32"), load_processor(plan.parent)
    epoch = training_examples(plan, items, run.images)
    broken = replace(epoch.items[0], images=(str(tmp_path / "gone.png"),))
    facts = training_facts(job, replace(epoch, corpus=[broken]), processor)
    assert facts["n_examples"] == len(epoch) + 1
