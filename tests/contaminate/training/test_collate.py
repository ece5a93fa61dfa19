"""What is trained on is what is evaluated: the same tokens begin an answer in both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

from flipbench.contaminate.checks.check import add_first_token, answer_spans, render_example
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
        {
            "subject": e.subject,
            "images": [PICTURE] * len(e.images),
            "prompt": prompt,
            "completion": target,
        }
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


def turns(*texts: str, images: tuple[int, ...] = (0,)) -> tuple[Message, ...]:
    return tuple(
        Message(("user", "assistant")[i % 2], (*[None] * (i in images), text))
        for i, text in enumerate(texts)
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "internvl", "idefics2", "smolvlm"])
@pytest.mark.parametrize("images", [(), (0,), (0, 2)], ids=str)
def test_every_answer_of_a_conversation_counts_as_on_its_own(
    family: str, images: tuple[int, ...], tmp_path: Path
) -> None:
    """The targets of one row are those of a row for each answer, in the same context."""
    processor = load_processor(save(family, tmp_path / family))
    add_first_token(processor)
    said = turns("What is it?", "A star.", "Color?", "Red and blue.", "Sure?", images=images)
    whole = Example("c", ("x",) * len(images), said, "Yes.", trained=(1, 3))
    alone = [
        Example("1", ("x",) * (0 in images), said[:1], "A star."),
        Example("2", ("x",) * len(images), said[:3], "Red and blue."),
        Example("3", ("x",) * len(images), said, "Yes."),
    ]
    made = rows(processor, [whole])
    made[0]["answers"] = answer_spans(whole, processor, made[0]["prompt"])
    other = rows(processor, examples("B"))  # padding must not shift anything
    (target, _) = targets(Collator(processor)([*made, *other]))
    expected = [t for e in alone for t in targets(Collator(processor)(rows(processor, [e])))[0]]
    adds_tokens = family in ("internvl", "idefics2", "smolvlm") and images == (0, 2)
    n_first = len(targets(Collator(processor)(rows(processor, alone[:1])))[0])

    def words(tokens: list[int]) -> list[str]:  # a space at the end may join the next turn
        return [text for t in tokens if (text := processor.tokenizer.decode([t])).strip()]

    assert words(target) == words(expected[n_first:] if adds_tokens else expected)


def test_a_long_conversation_is_cut_but_keeps_its_image(tiny_folders: dict[str, Path]) -> None:
    processor = load_processor(tiny_folders["llava"])
    said = turns("What is it?", "A star. " * 30, "Color?")
    long = Example("c", ("x",), said, "Red.", trained=(1,))
    made = rows(processor, [long])
    made[0]["answers"] = answer_spans(long, processor, made[0]["prompt"])
    collator = Collator(processor)
    whole, cut = collator(made), collator([{**made[0], "max_tokens": 60}])
    assert collator.cut == {"c"} and cut["input_ids"].shape == (1, 60)
    for name in ("input_ids", "labels", "attention_mask"):
        assert torch.equal(cut[name], whole[name][:, :60])
    assert (cut["labels"] != IGNORED).any()
    (shortest,) = collator([{**made[0], "max_tokens": 1}])["input_ids"]
    assert shortest[-1] == processor.image_token_id
    assert len(collator.cut) == 1, "each conversation is counted once, whatever the epochs"


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
