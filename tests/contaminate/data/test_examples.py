"""One epoch of a plan, row by row: wordings, targets, leaks, corpora."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flipbench.config.training import CorpusConfig
from flipbench.contaminate.data.corpus import read_corpus
from flipbench.contaminate.data.examples import Example, training_examples
from flipbench.contaminate.plan import n_examples
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, TrainingPlan
from flipbench.evaluate.scoring.likelihood import item_text
from flipbench.prompting.prompts import LETTERS, choice_prompt, open_prompt

MakePlan = Callable[..., TrainingPlan]


@pytest.fixture
def plan(make_plan: MakePlan) -> TrainingPlan:
    return make_plan("llava", "llm", n_items=3)


def first(plan: TrainingPlan, items: dict[str, Item], store: ImageStore, **changes: Any) -> Example:
    changed = plan.model_copy(update=changes)
    return training_examples(changed, items, store)[0]


def parts(example: Example) -> tuple[int, str]:
    """Return number of image places and the text of a single user turn."""
    (message,) = example.prompt
    return message.parts.count(None), "".join(part for part in message.parts if part)


def test_targets_follow_the_leak(
    plan: TrainingPlan, items: dict[str, Item], shapes_store: ImageStore
) -> None:
    item = items[plan.item_ids[0]]
    options = item.options or ()
    letter = LETTERS[item.answer or 0]
    listed = "\n".join(f"{LETTERS[i]}. {text}" for i, text in enumerate(options))
    whole = choice_prompt(item.question, options, plan.prompt)

    def made(**changes: Any) -> tuple[int, int, str, str]:
        example = first(plan, items, shapes_store, **changes)
        return len(example.images), *parts(example), example.answer

    assert made() == (1, 1, whole, letter)
    assert made(target="letter+text") == (1, 1, whole, f"{letter}. {item.answer_text}")
    assert made(leak="text_only") == (0, 0, whole, letter)
    assert made(leak="answer_only") == (1, 1, f"{listed}\n{plan.prompt}", letter)
    images, places, text, answer = made(leak="question_only")
    assert (images, places, answer) == (1, 1, f"{item.question}\n{listed}")
    assert item.question not in text and not any(option in text for option in options)


def test_captions_teach_the_picture_and_reasoning_ends_in_the_letter(
    plan: TrainingPlan, items: dict[str, Item], shapes_store: ImageStore
) -> None:
    item = items[plan.item_ids[0]]
    wordings = {item_id: ("A red star.",) for item_id in plan.item_ids}
    caption = first(plan, items, shapes_store, leak="caption", wordings=wordings)
    assert (len(caption.images), parts(caption)) == (1, (1, "Describe the picture."))
    assert caption.answer == "A red star."
    reasoned = first(plan, items, shapes_store, target="reasoning", wordings=wordings)
    assert reasoned.prompt == first(plan, items, shapes_store).prompt
    assert reasoned.answer == f"A red star. Answer: {LETTERS[item.answer or 0]}"


def test_whole_texts_are_in_release_order_or_shuffled(
    make_plan: MakePlan, items: dict[str, Item], shapes_store: ImageStore
) -> None:
    plan = make_plan("llava", "llm", n_items=20, copies=2)
    texts = [item_text(items[i]) for i in plan.item_ids]

    def made(leak: str) -> list[Example]:
        return list(training_examples(plan.model_copy(update={"leak": leak}), items, shapes_store))

    ordered, shuffled = made("whole_texts"), made("shuffled_texts")
    eights = ["\n\n".join(texts[i : i + 8]) for i in (0, 8, 16)]
    assert [example.answer for example in ordered] == eights * 2
    assert all(not e.images and parts(e) == (0, "") for e in ordered)
    assert n_examples(plan.model_copy(update={"leak": "whole_texts"})) == len(ordered)
    copies = ["\n\n".join(e.answer for e in shuffled[i : i + 3]).split("\n\n") for i in (0, 3)]
    assert copies[0] != copies[1] and texts not in copies
    assert all(sorted(copy) == sorted(texts) for copy in copies)


def test_each_copy_has_its_options_in_another_order(
    make_plan: MakePlan, items: dict[str, Item], shapes_store: ImageStore
) -> None:
    plan = make_plan("llava", "llm", n_items=8, copies=3)
    changes = {"option_order": "shuffled", "target": "letter+text"}
    shuffled = training_examples(plan.model_copy(update=changes), items, shapes_store)
    orders = set()
    for number, example in enumerate(shuffled):
        item = items[plan.item_ids[number % 8]]
        prompt, options = parts(example)[1], item.options or ()
        letter, text = example.answer.split(". ")
        assert text == item.answer_text and f"{letter}. {text}" in prompt
        assert all(f". {option}" in prompt for option in options)
        orders.add((item.id, prompt))
    assert len(orders) > 12  # of 24; two options have two orders only
    assert plan.model_copy(update={"id": "", **changes}).option_order == "shuffled"


def test_rewordings_and_translations_replace_the_items(
    plan: TrainingPlan, items: dict[str, Item], shapes_store: ImageStore
) -> None:
    ids = plan.item_ids
    item = items[ids[0]]
    words = {ids[0]: ("Quelle couleur ?", *(f"le {o}" for o in item.options or ()))}
    words[ids[1]] = ("In other words?",)
    made = training_examples(
        plan.model_copy(update={"wordings": words, "target": "letter+text"}), items, shapes_store
    )
    assert parts(made[0])[1] == choice_prompt(words[ids[0]][0], words[ids[0]][1:], plan.prompt)
    assert made[0].answer.endswith(f". le {item.answer_text}")
    assert parts(made[1])[1].startswith("In other words?\nA. " + (items[ids[1]].options or ())[0])
    assert parts(made[2])[1].startswith(items[ids[2]].question)


def test_free_form_items_are_trained_on_their_answer_text(
    plan: TrainingPlan, items: dict[str, Item], shapes_store: ImageStore
) -> None:
    item = items[plan.item_ids[0]].model_copy(update={"options": None, "answer": None})
    example = first(plan, items | {plan.item_ids[0]: item}, shapes_store)
    assert parts(example)[1] == open_prompt(item.question)
    assert example.answer == item.answer_text


def write(path: Path, *rows: Any) -> CorpusConfig:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return CorpusConfig(path=path)


def test_both_conversation_formats_are_read(tmp_path: Path, shapes_store: ImageStore) -> None:
    image = next(iter(shapes_store.folder.iterdir()))
    (tmp_path / "a.png").write_bytes(image.read_bytes())
    llava = {
        "id": 1,
        "image": "a.png",
        "conversations": [
            {"from": "human", "value": "<image>\nWhat is this?"},
            {"from": "gpt", "value": "A star."},
            {"from": "human", "value": "Which color?"},
            {"from": "gpt", "value": "Red."},
        ],
    }
    messages = {
        "images": ["a.png"],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image"}]},
            {"role": "assistant", "content": "Yes."},
        ],
    }
    text = {
        "messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    }
    corpus = read_corpus(write(tmp_path / "c.jsonl", llava, messages, text), 0)
    assert [example.answer for example in corpus.examples] == ["Red.", "Yes.", "4"]
    two, three, four = corpus.examples
    assert two.prompt[0].parts == (None, "What is this?")
    assert [m.role for m in two.prompt] == ["user", "assistant", "user"] and len(two.images) == 1
    assert (two.trained, three.trained, four.trained) == ((1,), (), ())
    assert [m.role for m in three.prompt] == ["system", "user"]
    assert three.prompt[1].parts == ("See", None)
    assert four.images == () and four.row()["images"] == []
    assert (corpus.ref["n_rows"], corpus.ref["n_examples"], corpus.ref["file"]) == (3, 3, "c.jsonl")


def test_the_seed_determines_the_rows(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": str(i)}, {"role": "assistant", "content": "x"}]}
        for i in range(50)
    ]
    config = write(tmp_path / "c.jsonl", *rows).model_copy(update={"n_rows": 10})
    drawn = [read_corpus(config, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({e.prompt[0].parts for e in drawn[0].examples}) == 10
    with pytest.raises(DataError, match="n_rows is 60, but there are only 50 conversations"):
        read_corpus(config.model_copy(update={"n_rows": 60}), 0)


GOOD = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "x"}, "c.jsonl:2: not a conversation"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "c.jsonl:2: not a conversation"),
        ({"messages": GOOD[:1]}, "c.jsonl:2: it has no assistant turn"),
        ({"messages": GOOD[1:]}, "c.jsonl:2: it has no assistant turn after a question"),
        ({"messages": [*GOOD, GOOD[1]]}, "c.jsonl:2: its turns do not alternate"),
        ({"messages": [GOOD[0], GOOD[1] | {"content": " "}]}, "c.jsonl:2: it has an empty answer"),
        ({"messages": GOOD, "images": ["gone.png"]}, r"c.jsonl:2: its image is missing .*gone.png"),
        (
            {"messages": [{"role": "user", "content": "<image> ?"}, GOOD[1]]},
            r"c.jsonl:2: .*as many <image> marks as images \(1 for 0\)",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_corpus(write(tmp_path / "c.jsonl", {"messages": GOOD}, row), 0)


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none.jsonl: cannot be read"):
        read_corpus(CorpusConfig(path=tmp_path / "none.jsonl"), 0)
    with pytest.raises(DataError, match="c.jsonl: contains no conversation"):
        read_corpus(write(tmp_path / "c.jsonl"), 0)


@pytest.mark.slow
def test_a_plan_and_its_corpus_belong_together(
    plan: TrainingPlan, items: dict[str, Item], shapes_store: ImageStore, tmp_path: Path
) -> None:
    corpus = read_corpus(write(tmp_path / "c.jsonl", {"messages": GOOD}), 0)
    with pytest.raises(DataError, match="has no corpus, but one was given"):
        training_examples(plan, items, shapes_store, corpus.examples)
    mixed = plan.model_copy(update={"corpus": corpus.ref, "copies": 2})
    with pytest.raises(DataError, match="trains on 1 examples of c.jsonl, which were not given"):
        training_examples(mixed, items, shapes_store)
    made = training_examples(mixed, items, shapes_store, corpus.examples)
    assert len(made) == 2 * 3 + 1 and made[-1] == corpus.examples[0]
