from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipbench.core.images import ImageStore
from flipbench.core.records import Probe
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import LETTERS, choice_prompt
from flipbench.shapes.benchmark import shapes_vqa_scenes
from flipbench.shapes.questions import KINDS, Question, answer, fresh_scene, questions_on
from flipbench.shapes.render import render
from flipbench.shapes.scene import Scene
from flipbench.shapes.training.curriculum import (
    Turn,
    corpus,
    facts_turn,
    lookup_turn,
    question_turns,
)
from flipbench.shapes.training.exam import Exam, Pool, batch_of, encode
from flipbench.shapes.training.tiny import BUILDERS, N_IMAGE_TOKENS, build, plain_template

pytestmark = pytest.mark.slow

TURNS: list[Turn] = [
    (choice_prompt("What color is the star?", ["red", "blue"]), " B"),
    ("How many rings are there?\nAnswer with a single word or phrase.", " 3"),
    (choice_prompt("Where is the cross?", ["top left", "bottom right", "top right"]), " A"),
]


@pytest.fixture(params=BUILDERS)
def vlm(request: pytest.FixtureRequest, tiny_vlm: Callable[[str], HuggingFaceVLM]) -> Any:
    return tiny_vlm(request.param)


def template_pieces(
    vlm: HuggingFaceVLM, turns: list[Turn], picture: bool
) -> list[tuple[str, bool]]:
    """Cut the rendered chat where the model begins and ends to write: (text, is a reply)."""
    chat: list[dict[str, Any]] = []
    pieces, end = [], 0
    for i, (prompt, reply) in enumerate(turns):
        parts = [{"type": "image"}] if picture and i == 0 else []
        chat.append({"role": "user", "content": [*parts, {"type": "text", "text": prompt}]})
        before = vlm.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        content = [{"type": "text", "text": reply.strip()}]
        chat.append({"role": "assistant", "content": content})
        after = vlm.processor.apply_chat_template(chat, tokenize=False)
        assert after.startswith(before)
        pieces += [(before[end:], False), (after[len(before) :], True)]
        end = len(after)
    return pieces


@pytest.mark.parametrize("picture", [True, False])
@pytest.mark.parametrize("n_turns", [1, 3])
@pytest.mark.parametrize("plain", [True, False])
def test_token_ids_match_the_chat_template(
    vlm: HuggingFaceVLM, n_turns: int, picture: bool, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Piece by piece: at evaluation the prompt is one piece and the model's reply is another."""
    if plain:
        family = vlm.model.config.model_type
        monkeypatch.setattr(vlm.processor, "chat_template", plain_template(family))
    pieces = template_pieces(vlm, TURNS[:n_turns], picture)
    expected = []
    for text, _ in pieces:
        text = text.replace("<IMG_CONTEXT>", "<img><IMG_CONTEXT></img>")  # as its processor does
        for mark in ("<image>", "<|image_pad|>", "<IMG_CONTEXT>"):
            text = text.replace(mark, mark * N_IMAGE_TOKENS)
        expected += vlm.tokenizer(text, add_special_tokens=False)["input_ids"]
    ids, _ = encode(vlm.processor, TURNS[:n_turns], picture)
    assert ids == expected


def test_the_first_prompt_is_what_the_model_reads_at_evaluation(
    vlm: HuggingFaceVLM, shapes_store: Any, shapes_items: list[Any]
) -> None:
    item = shapes_items[0]
    prompt = choice_prompt(item.question, item.options)
    ids, labels = encode(vlm.processor, [(prompt, f" {LETTERS[item.answer]}")], True)
    text = vlm.conversation.render(prompt, 1)
    seen = vlm.processor(
        text=[text], images=[[shapes_store.open(item.images[0])]], return_tensors="pt"
    )
    read = seen["input_ids"][0].tolist()
    assert ids[: len(read)] == read
    assert labels[: len(read)] == [-100] * len(read)
    assert labels[len(read)] == vlm.conversation.letter_ids(4)[item.answer]


@pytest.mark.parametrize("picture", [True, False])
def test_only_replies_and_their_end_marks_count_in_the_loss(
    vlm: HuggingFaceVLM, picture: bool
) -> None:
    ids, labels = encode(vlm.processor, TURNS, picture)
    assert all(label in (-100, token) for label, token in zip(labels, ids, strict=True))
    counted = vlm.tokenizer.decode([label for label in labels if label != -100])
    end = vlm.tokenizer.eos_token
    assert counted.replace(" ", "") == end.join(["B", "3", "A", ""])


@pytest.mark.parametrize("make_turn", [facts_turn, lookup_turn])
def test_only_the_values_of_facts_count_in_the_loss(
    vlm: HuggingFaceVLM, make_turn: Callable[[Scene, np.random.Generator], Turn]
) -> None:
    rng = np.random.default_rng(0)
    scene = fresh_scene(rng)
    turn = make_turn(scene, rng)
    values = [fact.split("\x00")[1] for fact in turn[1].split("\x01")[:-1]]
    ids, labels = encode(vlm.processor, [turn], True)
    assert len(values) > 4
    assert vlm.tokenizer.decode([label for label in labels if label != -100]) == "".join(values)
    assert "\x00" not in vlm.tokenizer.decode(ids)
    facts = [fact.split("\x00") for fact in turn[1].split("\x01")[:-1]]
    questions = [(known.split(), value.strip()) for known, value in facts]
    for (kind, about), value in [
        (known, value) for known, value in questions if len(known) == 2 and known[0] in KINDS[:4]
    ]:
        assert answer(scene, Question(kind, about)) == value


def test_training_conversations_are_true() -> None:
    rng = np.random.default_rng(4)
    lettered, named = [], []
    for _ in range(60):
        scene = fresh_scene(rng)
        truths = {
            (q.text(phrasing), answer(scene, q))
            for q in questions_on(scene)
            for phrasing in (0, 1, 2)
        }
        for prompt, reply in question_turns(scene, rng):
            question, *lines, instruction = prompt.split("\n") if "\n" in prompt else ["", ""]
            if "letter" in instruction:
                options = [line.partition(". ")[2] for line in lines]
                lettered.append((question, options, reply.strip(), truths))
            elif lines == [] and "word" in instruction:
                named.append((question, reply.strip(), truths))
    assert len(lettered) > 100 and len(named) > 20
    for question, options, letter, truths in lettered:
        assert len(set(options)) == len(options)
        # paraphrases of relations name no side, so both axes may have an answer
        assert (question, options[LETTERS.index(letter)]) in truths
    for question, word, truths in named:
        assert (question, word) in truths


def test_batches_are_padded_right_and_mark_what_is_padding(vlm: HuggingFaceVLM) -> None:
    pool = Pool.of([fresh_scene(np.random.default_rng(i)) for i in (0, 1)], vlm.processor)
    batch = batch_of(vlm.processor, [TURNS[:1], TURNS[:2]], pool.inputs([0, 1]))
    for row, n_turns in enumerate((1, 2)):
        ids, labels = encode(vlm.processor, TURNS[:n_turns], True)
        n = int(batch["attention_mask"][row].sum())
        assert batch["attention_mask"][row].tolist() == [1] * n + [0] * (
            len(batch["labels"][0]) - n
        )
        assert batch["input_ids"][row, :n].tolist() == ids
        assert batch["labels"][row].tolist() == labels + [-100] * (len(batch["labels"][0]) - n)
    image_id = vlm.model.config.image_token_id
    assert (batch["input_ids"] == image_id).sum(1).tolist() == [N_IMAGE_TOKENS] * 2
    with torch.no_grad():
        assert vlm.model(**batch).loss.isfinite()


def test_the_training_pool_is_disjoint_from_the_benchmark(vlm: HuggingFaceVLM) -> None:
    rng = np.random.default_rng(0)
    exam = Exam.draw(rng, 1, vlm.processor)
    fresh = [fresh_scene(rng) for _ in range(3)]
    taken = shapes_vqa_scenes()[100]
    disguised = Scene(taken.things, taken.background + 1)  # the backdrop makes no other scene
    pool = Pool.of([fresh[0], taken, fresh[1], disguised, exam.scenes[0], fresh[2]], vlm.processor)
    rows = pool.pixels.clone()
    pool.drop_overlap(exam.scenes)
    assert pool.scenes == fresh
    assert torch.equal(pool.pixels, rows[[0, 2, 5]])


def test_the_exam_is_graded_like_an_evaluation(vlm: HuggingFaceVLM, tmp_path: Path) -> None:
    exam = Exam.draw(np.random.default_rng(1), 2, vlm.processor)
    assert len(exam.prompts) == len(exam.scenes) == 10
    for i, prompt in enumerate(exam.prompts):
        gold = prompt.split("\n")[1 + exam.gold[i]].partition(". ")[2]
        question = prompt.split("\n")[0]
        assert (question, gold) in {
            (q.text(), answer(exam.scenes[i], q)) for q in questions_on(exam.scenes[i])
        }
    figures = exam.grade(vlm.model)
    vlm.model.eval()
    store = ImageStore(tmp_path)
    for name, look in (("accuracy", True), ("text_only", False)):
        probes = [
            Probe(
                item_id="i",
                variant=name,
                images=(store.put_image(render(scene), "exam"),) if look else (),
                prompt=prompt,
                ask="choose",
                n_options=len(family.options),
            )
            for prompt, scene, family in zip(exam.prompts, exam.scenes, exam.families, strict=True)
        ]
        # untrained models mean no letter, so no choice is read; the exam takes the likeliest
        chosen = [int(np.argmax(r.option_log_probs)) for r in vlm.ask(probes, store)]
        right = [a == b for a, b in zip(chosen, exam.gold, strict=True)]
        assert figures[name] == sum(right) / len(right)


def test_every_word_of_the_world_is_one_token() -> None:
    texts = corpus(np.random.default_rng(0))
    for family in BUILDERS:
        _, processor = build(family, texts)
        for word in ("red", "triangle", "top", "below", "4", "A", "J"):
            assert len(processor.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) == 1
        text = "naïve “星”\tx"
        ids = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert processor.tokenizer.decode(ids) == text
