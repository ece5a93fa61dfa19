from __future__ import annotations

import numpy as np

from flipbench.prompting.prompts import LETTERS
from flipbench.shapes.questions import answer, fresh_scene, questions_on
from studies.tiny_models.curriculum import (
    answer_turns,
    find_turn,
)


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
