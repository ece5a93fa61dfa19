"""What is trained on is what is evaluated: the same tokens begin an answer in both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

from flipbench.contaminate.checks.check import add_first_token, render_example
from flipbench.contaminate.data.examples import Example, Message
from flipbench.contaminate.training.collate import IGNORED, Collator
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.processors import load_processor
from tests.fixtures.tiny_families import save

PICTURE = Image.new("RGB", (64, 48), "red")
ASKED = "What color is the star?\nA. red\nB. blue\nC. green\nD. white"


def examples(*answers: str) -> list[Example]:
    return [Example(a, ("x",), (Message("user", (None, ASKED)),), a) for a in answers]


def rows(processor: Any, made: list[Example]) -> list[dict[str, Any]]:
    texts = [render_example(example, processor) for example in made]
    return [
        {"images": [PICTURE] * len(e.images), "prompt": prompt, "completion": target}
        for e, (prompt, target) in zip(made, texts, strict=True)
    ]


def targets(batch: dict[str, Any]) -> list[list[int]]:
    return [[int(x) for x in row if x != IGNORED] for row in batch["labels"]]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "internvl", "idefics2", "smolvlm"])
def test_a_target_begins_with_the_token_that_evaluation_reads(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path / family)
    processor = load_processor(folder)
    add_first_token(processor)
    batch = Collator(processor)(rows(processor, examples(*"ABCD")))
    first = [target[0] for target in targets(batch)]
    letters = HuggingFaceVLM(str(folder)).conversation.letter_ids(4)
    assert first == letters and len(set(letters)) == 4


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_batches_equal_trl_s(family: str, tiny_folders: dict[str, Path]) -> None:
    """Byte-level tokenizers split " B" in the same way in a text and on its own."""
    processor = load_processor(tiny_folders[family])
    add_first_token(processor)
    made = [*examples("B", "A. red"), Example("c", (), (Message("user", ("How?",)),), "red")]
    theirs = DataCollatorForVisionLanguageModeling(processor, completion_only_loss=True)(
        [e.row() | {"images": [PICTURE] * len(e.images)} for e in made]
    )
    ours = Collator(processor)(rows(processor, made))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
