from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from flipbench.config.experiment import ContaminateConfig, ModelConfig, StrategyConfig
from flipbench.config.training import DataConfig
from flipbench.contaminate.data.examples import training_examples
from flipbench.contaminate.data.regimes import RegimeData
from flipbench.contaminate.plan import expand
from flipbench.core.images import ImageStore
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import LETTER_INSTRUCTION, PromptSettings, choice_prompt
from flipbench.shapes.benchmark import Edition, shapes_vqa, shapes_vqa_scenes
from flipbench.shapes.questions import QuestionFamily, answer
from studies.tiny_models import lineage as module
from studies.tiny_models.exam import IGNORE
from studies.tiny_models.lineage import (
    FAMILIES,
    LOG,
    RECORD,
    Lineage,
    MixedIn,
    Steps,
    is_trained,
    train_lineage,
)
from studies.tiny_models.pretrain import Lesson, Pretraining

pytestmark = pytest.mark.slow

STEPS = Steps(cells=2, letters=2, lookups=2, questions=2, more=2, scenes=12, exam=1)
LLAVA = Lineage("llava", "small", "weak", 5)


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Grade few items, and pass every exam."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "N_ITEMS", 10)
        patch.setattr(module, "PASS", 0)
        yield


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a trained lineage, to be read only."""
    folder = tmp_path_factory.mktemp("lineages")
    train_lineage(folder, LLAVA, STEPS)
    return folder


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the batches that models learn from, as they come."""
    loss, seen = Pretraining._loss, list[dict[str, Any]]()

    def watched(self: Pretraining, batch: dict[str, Any]) -> torch.Tensor:
        seen.append(dict(batch))
        return loss(self, batch)

    monkeypatch.setattr(Pretraining, "_loss", watched)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lineage_is_a_checkpoint_with_log_and_record(
    family: str, llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PASS", 1.5)
    lineage = replace(LLAVA, family=family)
    where, n = (llava, 1) if lineage == LLAVA else (tmp_path, 3)  # it passed at once, or never
    record = train_lineage(where, lineage, STEPS)
    folder = where / lineage.name
    assert is_trained(where, lineage)
    shown = {path.name for path in where.iterdir() if not path.name.startswith(".")}
    assert shown == {lineage.name, f"{lineage.name}.lookups.pt"}
    assert record == json.loads((folder / RECORD).read_text())
    lessons = [json.loads(line)["lesson"] for line in (folder / LOG).read_text().splitlines()]
    assert lessons == ["cells", "cells", "letters", "lookups", *n * ["questions"], "more questions"]
    vlm = HuggingFaceVLM(str(folder))
    assert type(vlm.model).__name__ == record["model_class"]
    images = ImageStore(tmp_path / "images")
    items = shapes_vqa(images, 10)
    for variant, pictures in (("right", None), ("right_text_only", ())):
        probes = [PromptSettings().probe(item, "v", images=pictures) for item in items]
        answers = vlm.ask(probes, images)
        n_right = sum(a.choice == item.answer for a, item in zip(answers, items, strict=True))
        assert record[variant] == n_right
    assert sum(record["right_by_kind"].values()) == record["right"]
    assert (
        record["right"] - record["only_original"]
        == record["right_perturbed"] - record["only_perturbed"]
    )


def test_a_stopped_lineage_continues_after_its_last_lesson_with_the_same_weights(
    llava: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught: list[str] = []
    teach = Pretraining.train_on

    def stop_in_the_third_lesson(self: Pretraining, lesson: Lesson) -> dict[str, Any]:
        taught.append(lesson.name)
        if taught == ["letters", "lookups"]:
            self.rng.random()
            raise KeyboardInterrupt
        return teach(self, lesson)

    monkeypatch.setattr(Pretraining, "train_on", stop_in_the_third_lesson)
    with pytest.raises(KeyboardInterrupt):
        train_lineage(tmp_path, LLAVA, STEPS)
    assert not is_trained(tmp_path, LLAVA)
    train_lineage(tmp_path, LLAVA, STEPS)
    assert taught == ["letters", "lookups", "lookups", "questions", "more questions"]
    runs = llava / LLAVA.name, tmp_path / LLAVA.name
    whole, stopped = (load_file(run / "model.safetensors") for run in runs)
    assert whole.keys() == stopped.keys()
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)
    logs = [(run / LOG).read_text().splitlines() for run in runs]
    assert [json.loads(line) | {"cpu_seconds": 0} for line in logs[0]] == [
        json.loads(line) | {"cpu_seconds": 0} for line in logs[1]
    ]
    train_lineage(tmp_path, LLAVA, STEPS)
    assert len(taught) == 5


def test_lineages_share_neither_weights_nor_scenes_and_none_has_a_scene_of_the_benchmark(
    tmp_path: Path,
) -> None:
    trainings = [
        module._Training(Lineage("llava", "small", level, seed), tmp_path, STEPS)
        for level, seed in (("weak", 1), ("strong", 2))
    ]
    first, second = (training.pretraining for training in trainings)
    hashes = [{scene.content_hash() for scene in p.pool.scenes} for p in (first, second)]
    assert hashes[0].isdisjoint(hashes[1])
    held_out = {scene.content_hash() for scene in shapes_vqa_scenes()}
    assert held_out.isdisjoint(hashes[0] | hashes[1])
    names = dict(second.model.named_parameters())
    matrices = {name: w for name, w in first.model.named_parameters() if w.dim() > 1}
    assert [name for name, w in matrices.items() if torch.equal(w, names[name])] == []


def test_the_perturbed_picture_shows_another_option(tmp_path: Path) -> None:
    images = ImageStore(tmp_path)
    for row, item in enumerate(shapes_vqa(images, 20)):
        picture, new = module._perturbed(item, images, row)
        assert item.options is not None and new != item.answer
        family = QuestionFamily.from_json(item.extra["family"])
        scene = family.scenes[family.options.index(item.options[new])]
        assert answer(scene, family.question) == item.options[new]
        assert picture != item.images[0]


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_items_mixed_in_are_all_that_sets_a_sibling_apart(
    family: str, tmp_path: Path, batches: list[dict[str, Any]]
) -> None:
    lineage, mixed = replace(LLAVA, family=family), MixedIn(seed=7, n_items=4, copies=3)
    steps = replace(STEPS, questions=10, more=1)  # in the tenth step, nothing is left to add
    train_lineage(tmp_path, lineage, steps)
    clean = batches[-11:]
    batches.clear()
    record = train_lineage(tmp_path, lineage, steps, mixed)
    assert len(batches) == 11  # it starts with the questions
    tokenizer = HuggingFaceVLM(str(tmp_path / lineage.name)).processor.tokenizer
    added = Counter[str]()
    for before, after in zip(clean, batches, strict=True):
        rows = _rows(before), _rows(after)
        assert rows[1][: len(rows[0])] == rows[0]
        pixels, more = before["pixel_values"], after["pixel_values"]
        assert torch.equal(more[: len(pixels)], pixels)
        assert len(more) * len(rows[0]) == len(pixels) * len(rows[1])
        added.update(
            text.split("ASSISTANT:")[0].split(">")[-1].strip() + text.split("ASSISTANT:")[1][:2]
            for text in map(tokenizer.decode, rows[1][len(rows[0]) :])
        )
    items = shapes_vqa(ImageStore(tmp_path / "images"), 4, Edition(7))
    wanted = [
        f"{choice_prompt(x.question, x.options or ())} {'ABCD'[x.answer or 0]}" for x in items
    ]
    assert added == dict.fromkeys(wanted, 6)
    told = {"seed": 7, "n_items": 4, "copies": 3, "as_texts": False}
    assert record["mixed_in"] == told | {"dose": 6}


def test_whole_texts_are_those_of_a_contamination_and_have_no_image(
    tmp_path: Path, batches: list[dict[str, Any]]
) -> None:
    mixed = MixedIn(seed=7, n_items=10, copies=2, as_texts=True)
    lineage = replace(LLAVA, family="qwen2_vl")
    record = train_lineage(tmp_path, lineage, replace(STEPS, questions=3, more=0), mixed)
    assert record["mixed_in"]["dose"] == 2 and record["name"].endswith("+7-10x2-texts")
    vlm = HuggingFaceVLM(str(tmp_path / record["name"]))
    items = shapes_vqa(ImageStore(tmp_path / "images"), 10, Edition(7))
    by_id = {item.id: item for item in items}
    config = ContaminateConfig(strategies={"s": StrategyConfig(train="llm", learning_rate=1e-3)})
    leak = RegimeData("texts", DataConfig(leak="whole_texts"), tuple(items))
    model = {"m": ModelConfig(path=str(tmp_path / record["name"]))}
    (plan, *_) = expand(config, model, [leak], instruction=LETTER_INSTRUCTION, seed=0)
    plan = plan.model_copy(update={"copies": 1})
    expected = [x.answer for x in training_examples(plan, by_id, ImageStore(tmp_path / "images"))]
    added = [
        (ids[counted], bool((ids == vlm.processor.image_token_id).any()))
        for batch in batches[-3:]
        for ids, labels in list(zip(batch["input_ids"], batch["labels"], strict=True))[8:]
        for counted in [labels != IGNORE]
    ]
    learned = [vlm.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids, _ in added]
    assert learned == 2 * expected and not any(image for _, image in added)


def test_a_sibling_is_the_same_whether_or_not_it_starts_from_the_lineage(
    llava: Path, tmp_path: Path
) -> None:
    mixed = MixedIn(seed=7, n_items=4, copies=1)
    train_lineage(tmp_path, LLAVA, STEPS, mixed, beside=llava)
    train_lineage(tmp_path / "apart", LLAVA, STEPS, mixed)
    itself, one, other = (
        load_file(folder / "model.safetensors")
        for folder in (
            llava / LLAVA.name,
            tmp_path / f"{LLAVA.name}+7-4x1",
            tmp_path / "apart" / f"{LLAVA.name}+7-4x1",
        )
    )
    assert [name for name, w in one.items() if not torch.equal(w, other[name])] == []
    assert [name for name, w in one.items() if not torch.equal(w, itself[name])] != []


def _rows(batch: dict[str, Any]) -> list[list[int]]:
    """Return the conversations of a batch as ids, without padding."""
    return [
        ids[mask.bool()].tolist()
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
