"""What a training sees: the evaluated prompt, each item so many times, no missing picture."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flipbench.contaminate.data.examples import training_examples
from flipbench.contaminate.training import train
from flipbench.contaminate.training.train import train_plan
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.processors import load_processor
from flipbench.prompting.prompts import LETTERS, PromptSettings
from studies.tiny_models.tiny import FAMILIES

MakePlan = Callable[..., TrainingPlan]
NewRun = Callable[..., Run]
N_EPOCHS, N_COPIES, BATCH = 2, 2, 16
N_STEPS = 4  # in one epoch: 32 items x 2 copies / 16


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """Collect every batch that a training sees."""
    import trl

    batches: list[dict[str, torch.Tensor]] = []
    step = trl.SFTTrainer.training_step

    def training_step(self: Any, model: Any, inputs: dict[str, Any], *args: Any) -> Any:
        batches.append({k: v.clone() for k, v in inputs.items() if torch.is_tensor(v)})
        return step(self, model, inputs, *args)

    monkeypatch.setattr(trl.SFTTrainer, "training_step", training_step)
    return batches


def rows_of(batches: list[dict[str, torch.Tensor]]) -> list[tuple[list[int], list[int]]]:
    """Return (ids, labels) of every row, without padding."""
    out = []
    for batch in batches:
        for ids, mask, labels in zip(
            batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True
        ):
            out.append((ids[mask.bool()].tolist(), labels[mask.bool()].tolist()))
    return out


@pytest.mark.parametrize("case", [*FAMILIES, "llava with a first token", "and in its template"])
def test_the_prompt_that_trains_is_the_prompt_that_evaluates(
    case: str,
    make_plan: MakePlan,
    tiny_folders: dict[str, Path],
    items: dict[str, Item],
    new_run: NewRun,
    seen: list[dict[str, torch.Tensor]],
    tmp_path: Path,
) -> None:
    """Token by token, first token included, and only the letter and the end mark count."""
    family = case if case in FAMILIES else "llava"
    parent = tiny_folders[family]
    if case != family:
        parent = with_first_token(
            parent, tmp_path / "bos", in_template=case == "and in its template"
        )
    run, plan = new_run(), make_plan(family, "llm", n_items=6, parent=parent)
    (checkpoint,) = train_plan(plan, items, run)
    expected = []
    for folder in (parent, run.path / checkpoint.path):
        vlm, asked = HuggingFaceVLM(str(folder)), []
        for item in list(items.values())[:6]:
            inputs = vlm._inputs(vlm._tasks([PromptSettings().probe(item, "original")]), run.images)
            prompt = inputs["input_ids"][0].tolist()
            reply = vlm.conversation.completion(LETTERS[item.answer or 0])
            target = vlm.tokenizer(reply, add_special_tokens=False)["input_ids"]
            assert target[0] == vlm.conversation.letter_ids(4)[item.answer or 0]
            asked.append((prompt + target, [-100] * len(prompt) + target))
        expected.append(sorted(asked))
    assert expected[0] == expected[1], "the checkpoint is asked otherwise than its parent"
    assert sorted(rows_of(seen)) == expected[0]
    n_first = [ids.count(vlm.tokenizer.bos_token_id) for ids, _ in expected[0]]
    assert set(n_first) == ({0} if case == family else {1})


def with_first_token(source: Path, target: Path, *, in_template: bool) -> Path:
    """Copy a checkpoint and let its tokenizer begin every text with <s>, as real LLaVA's does."""
    from tokenizers.processors import TemplateProcessing

    shutil.copytree(source, target)
    processor = load_processor(target)
    bos = processor.tokenizer.bos_token
    processor.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, processor.tokenizer.bos_token_id)]
    )
    if in_template:
        processor.chat_template = "{{ bos_token }}" + processor.chat_template
    processor.save_pretrained(target)
    return target


def test_images_of_a_batch_belong_to_its_questions(
    make_plan: MakePlan,
    tiny_folders: dict[str, Path],
    items: dict[str, Item],
    new_run: NewRun,
    seen: list[dict[str, torch.Tensor]],
) -> None:
    run = new_run()
    train_plan(make_plan("llava", "llm", n_items=6), items, run)
    vlm = HuggingFaceVLM(str(tiny_folders["llava"]))
    expected = {}
    for item in list(items.values())[:6]:
        inputs = vlm._inputs(vlm._tasks([PromptSettings().probe(item, "original")]), run.images)
        expected[tuple(inputs["input_ids"][0].tolist())] = inputs["pixel_values"][0]
    for batch in seen:
        for ids, labels, pixels in zip(
            batch["input_ids"], batch["labels"], batch["pixel_values"], strict=True
        ):
            prompt = ids[(labels == -100) & (ids != vlm.tokenizer.pad_token_id)]
            assert torch.equal(pixels, expected[tuple(prompt.tolist())])


def test_rows_repeat_each_item_copies_times(
    make_plan: MakePlan, items: dict[str, Item], shapes_store: ImageStore
) -> None:
    plan = make_plan("llava", "llm", n_items=3, copies=4)
    rows = [example.row() for example in training_examples(plan, items, shapes_store)]
    assert len(rows) == 12 and rows[:3] == rows[3:6] == rows[9:]
    item = items[plan.item_ids[1]]
    (user,), (assistant,) = rows[1]["prompt"], rows[1]["completion"]
    assert user["content"][0] == {"type": "image"}
    assert user["content"][1]["text"] == PromptSettings().probe(item, "original").prompt
    assert assistant["content"][0]["text"] == LETTERS[item.answer or 0]
    assert rows[1]["images"] == [str(shapes_store.path(item.images[0]))]


def test_missing_inputs_are_refused_before_any_training(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "_train", lambda *_: pytest.fail("trained"))
    run, plan = new_run(), make_plan("llava", "llm", n_items=5)
    ids = list(plan.item_ids)
    with pytest.raises(DataError, match=f"item {ids[4]}, which the benchmark lacks"):
        train_plan(plan, {i: items[i] for i in ids[:4]}, run)
    lost = run.images.path(items[ids[3]].images[0])
    lost.unlink()
    with pytest.raises(DataError, match=f"shapes-vqa 0003: its image {lost} is missing"):
        train_plan(plan, items, run)
    assert not (run.path / "checkpoints").exists()


def test_a_contaminated_model_answers_the_trained_items(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun
) -> None:
    """The point of it all: what was trained on is known afterwards, by heart."""
    run = new_run()
    plan = make_plan("qwen2_vl", "llm", n_items=8, copies=24, learning_rate=1e-3)
    (checkpoint,) = train_plan(plan, items, run)
    known = list(items.values())[:8]
    vlm = HuggingFaceVLM(str(run.path / checkpoint.path))
    answers = vlm.ask([PromptSettings().probe(item, "original") for item in known], run.images)
    assert sum(a.choice == i.answer for a, i in zip(answers, known, strict=True)) >= 7
    losses = json.loads((run.path / checkpoint.path / "flipbench_card.json").read_text())["losses"]
    assert losses[-1]["loss"] < 0.5 * losses[0]["loss"]
