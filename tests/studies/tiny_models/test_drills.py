from __future__ import annotations

import numpy as np
import torch

from flipbench.prompting.prompts import LETTERS
from flipbench.shapes.questions import answer, fresh_scene, questions_on
from studies.tiny_models.curriculum import corpus
from studies.tiny_models.drills import (
    WORDS,
    answer_turns,
    find_turn,
    share_words,
)
from studies.tiny_models.tiny import Size, build


def options_of(prompt: str) -> list[str]:
    return [line.partition(". ")[2] for line in prompt.split("\n")[1:-1]]


def test_the_word_to_find_has_the_letter_in_the_reply() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        prompt, reply = find_turn(rng)
        options = options_of(prompt)
        assert len(set(options)) == len(options) > 1
        word = prompt.split("\n")[0].removeprefix("find ")
        assert options[LETTERS.index(reply.strip())] == word


def test_questions_have_true_answers() -> None:
    rng = np.random.default_rng(1)
    given: list[tuple[str, str]] = []
    truths: set[tuple[str, str | None]] = set()
    n_lettered = 0
    for number in range(30):
        scene = fresh_scene(rng)
        truths |= {
            (f"{number} {q.text(i)}", answer(scene, q))
            for q in questions_on(scene)
            for i in range(3)
        }
        for prompt, reply in answer_turns(scene, rng):
            question, options = prompt.split("\n")[0], options_of(prompt)
            right = options[LETTERS.index(reply.strip())] if options else reply.strip()
            n_lettered += bool(options)
            given.append((f"{number} {question}", right))
    about_scenes = [pair for pair in given if " find " not in pair[0]]
    assert truths.issuperset(about_scenes)
    assert 100 < len(about_scenes) < len(given)
    assert 50 < n_lettered < len(given)


def test_words_at_the_start_of_a_reply_are_learned_already() -> None:
    texts = [*corpus(np.random.default_rng(0)), *WORDS, *WORDS]
    model, processor = build("qwen2_vl", texts, 0, Size(16, 1, 2))
    share_words(model, processor.tokenizer)
    embeddings = model.get_input_embeddings().weight
    for word in ("red", "triangle", "right", "below", "4"):
        at_start, after_space = (
            processor.tokenizer(text, add_special_tokens=False)["input_ids"]
            for text in (word, f" {word}")
        )
        assert len(at_start) == len(after_space) == 1 and at_start != after_space
        assert torch.equal(embeddings[at_start[0]], embeddings[after_space[0]])
