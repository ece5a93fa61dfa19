"""The tiny models' training text: facts and conversations about scenes, and drills."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flipbench.prompting.prompts import LETTERS, choice_prompt, open_prompt
from flipbench.shapes.questions import (
    KINDS,
    NUMBERS,
    PLACES,
    SIDES,
    Question,
    answer,
    fresh_scene,
    place_of,
    questions_on,
)
from flipbench.shapes.scene import COLORS, SHAPES, Scene, Thing
from flipbench.shapes.wording import DESCRIBE, describe

# A turn is (user's message, model's reply); `encode` adds the image before the first.
Turn = tuple[str, str]
_POOLS = (COLORS, SHAPES, NUMBERS, PLACES, *SIDES)
WORDS = tuple(word for pool in _POOLS for word in pool)


def corpus(rng: np.random.Generator) -> list[str]:
    """Return texts with every word of the embedded world, to fit the tokenizer."""
    texts = [f" {letter}" for letter in LETTERS[:10]] + [f"\n{letter}." for letter in LETTERS[:10]]
    for _ in range(200):
        scene = fresh_scene(rng)
        questions = questions_on(scene)
        question = questions[rng.integers(len(questions))]
        for phrasing in range(3):
            texts.append(choice_prompt(question.text(phrasing), _options(scene, question, rng)))
            texts.append(open_prompt(question.text(phrasing)))
        texts += [DESCRIBE, describe(scene), *(a + b for a, b in _facts(scene, rng))]
        texts += [
            f"USER: {question.text()} ASSISTANT: {answer(scene, question)}",
            "user\n",
            "assistant\n",
        ]
    pools = (SHAPES, COLORS, NUMBERS, PLACES, *SIDES)
    texts += [f" {word}" for pool in pools for word in pool] * 2
    texts += ["\nfind options"] * 2
    texts += ["yes no none fact true false not same other this that it its in on at to and or"] * 2
    return texts


def lookup_turn(scene: Scene, rng: np.random.Generator) -> Turn:
    """Return one turn of single-word facts, which need only be looked up in the image."""
    facts = [
        (f" shape {q.about}", f" {answer(scene, q)}")
        for q in questions_on(scene)
        if q.kind == "shape"
    ]
    facts += [fact for thing in _unique(scene) for fact in _looks(thing)]
    return "Facts.", _as_text([facts[i] for i in rng.permutation(len(facts))])


def facts_turn(scene: Scene, rng: np.random.Generator) -> Turn:
    """Return one turn whose reply is a list of facts; only their values count in the loss."""
    return "Facts.", _as_text(_facts(scene, rng))


def _as_text(facts: list[tuple[str, str]]) -> str:
    return "".join(f"{prompt}\x00{value}\x01" for prompt, value in facts)


def _looks(thing: Thing) -> list[tuple[str, str]]:
    """Return the single-word facts about a thing of a unique shape."""
    height, side = place_of(thing.cell).split()
    return [
        (f" color {thing.shape}", f" {thing.color}"),
        (f" height {thing.shape}", f" {height}"),
        (f" side {thing.shape}", f" {side}"),
    ]


def _facts(scene: Scene, rng: np.random.Generator) -> list[tuple[str, str]]:
    facts = []
    for question in questions_on(scene):
        side = "above" if question.vertical else "left"
        values = {
            "color": f" color {question.about}",
            "shape": f" shape {question.about}",
            "place": f" place {question.about}",
            "number": f" number {question.about}",
            "relation": f" {side} {question.other} {question.about}",
        }[question.kind]
        facts.append((question.kind, values, f" {answer(scene, question)}"))
    sample: list[tuple[str, str]] = []
    for kind, limit in (("color", 3), ("shape", 3), ("place", 3), ("number", 4), ("relation", 4)):
        of_kind = [(values, value) for k, values, value in facts if k == kind]
        for values, value in [of_kind[i] for i in rng.permutation(len(of_kind))[:limit]]:
            lettered = rng.random() < 0.3
            sample.append(_with_options(values, value, rng) if lettered else (values, value))
    for thing in _unique(scene)[:2]:
        sample += _looks(thing)[1:]
    words = [word for pool in _POOLS for word in pool]
    for word in (words[i] for i in rng.permutation(len(words))[:4]):
        sample.append(_with_options(f" find {word}", f" {word}", rng))
    return [sample[i] for i in rng.permutation(len(sample))]


# Words that can be each other's wrong options.
_POOLS = (COLORS, SHAPES, NUMBERS, PLACES, *SIDES)


def _unique(scene: Scene) -> list[Thing]:
    shapes = [thing.shape for thing in scene.things]
    return [thing for thing in scene.things if shapes.count(thing.shape) == 1]


def _with_options(prompt: str, value: str, rng: np.random.Generator) -> tuple[str, str]:
    """Return the fact with lettered options before it, and the letter instead of the value.

    "find" and a word is a drill that needs no image: which letter has this word?
    """
    gold = value.strip()
    pool = next(pool for pool in _POOLS if gold in pool)
    distractors = [word for word in pool if word != gold]
    order = rng.permutation(len(distractors))[: int(rng.integers(1, 4))]
    options = [gold, *(distractors[i] for i in order)]
    options = [options[i] for i in rng.permutation(len(options))]
    option_lines = "".join(f"\n{LETTERS[i]}. {option}" for i, option in enumerate(options))
    return f" options{option_lines}\n{prompt.strip()}", f" {LETTERS[options.index(gold)]}"


def question_turns(scene: Scene, rng: np.random.Generator, n_turns: int = 4) -> list[Turn]:
    """Return a conversation: a caption, facts, or questions, most of them with options."""
    draw = rng.random()
    if draw < 0.05:
        return [(DESCRIBE, " " + describe(scene))]
    if draw < 0.25:  # otherwise the model forgets the facts
        return [facts_turn(scene, rng)]
    questions = by_kind(scene)
    turns: list[Turn] = []
    while len(turns) < n_turns:
        turn = asked_turn(scene, questions, rng)
        if turn:
            turns.append(turn)
    return turns


def by_kind(scene: Scene) -> dict[str, list[Question]]:
    """Return the questions that have an answer in ``scene``, by kind."""
    questions: dict[str, list[Question]] = {}
    for question in questions_on(scene):
        questions.setdefault(question.kind, []).append(question)
    return questions


def asked_turn(
    scene: Scene,
    questions: dict[str, list[Question]],
    rng: np.random.Generator,
    open_share: float = 0.2,
) -> Turn | None:
    """Draw a question and ask it, with options or open; None if that draw is not to be asked."""
    of_kind = questions.get(KINDS[rng.integers(len(KINDS))])
    if not of_kind:
        return None
    question = of_kind[rng.integers(len(of_kind))]
    right_answer = answer(scene, question)
    if right_answer == "0" and rng.random() < 0.75:
        return None
    text = question.text(0 if rng.random() < 0.5 else int(rng.integers(1, 3)))
    if rng.random() < open_share:
        return open_prompt(text), f" {right_answer}"
    options = _options(scene, question, rng)
    return choice_prompt(text, options), f" {LETTERS[options.index(str(right_answer))]}"


def _options(scene: Scene, question: Question, rng: np.random.Generator) -> list[str]:
    gold = answer(scene, question)
    pool = {
        "color": COLORS,
        "shape": SHAPES,
        "number": NUMBERS,
        "place": PLACES,
        "relation": SIDES[question.vertical],
    }[question.kind]
    if rng.random() < 0.1:  # options of any kind, as in a generalised benchmark
        pool = (*COLORS, *SHAPES, *NUMBERS, *PLACES)
    n_options = min(len(pool), int(rng.integers(3, 5)))
    distractors = [option for option in pool if option != gold]
    options = [
        str(gold),
        *(distractors[i] for i in rng.permutation(len(distractors))[: n_options - 1]),
    ]
    return [options[i] for i in rng.permutation(len(options))]


def find_turn(rng: np.random.Generator) -> Turn:
    """Return a question that needs no image: which letter a word has."""
    pool = _POOLS[rng.integers(len(_POOLS))] if rng.random() < 0.5 else WORDS
    n_options = min(len(pool), int(rng.integers(2, 5)))
    options = [pool[i] for i in rng.permutation(len(pool))[:n_options]]
    right_slot = int(rng.integers(n_options))
    return choice_prompt(f"find {options[right_slot]}", options), f" {LETTERS[right_slot]}"


def lookup_turns(scene: Scene, rng: np.random.Generator) -> list[Turn]:
    """Return single-word facts about a scene, and words to find."""
    return [lookup_turn(scene, rng), *(find_turn(rng) for _ in range(3))]


def answer_turns(scene: Scene, rng: np.random.Generator, n_turns: int = 5) -> list[Turn]:
    """Return questions about a scene, a third of them open, and some words to find."""
    questions = by_kind(scene)
    turns: list[Turn] = []
    while len(turns) < n_turns:
        if rng.random() < 0.2:
            turns.append(find_turn(rng))
        elif turn := asked_turn(scene, questions, rng, open_share=0.35):
            turns.append(turn)
    return turns


@torch.no_grad()
def share_words(model: Any, tokenizer: Any) -> None:
    """Start the embedding of a word that begins a reply as that of the same word after a space.

    Chat templates that end in a newline make such words tokens of their own.
    """
    embeddings = model.get_input_embeddings().weight
    for word in {part for words in WORDS for part in words.split()}:
        at_start, after_space = (
            tokenizer(text, add_special_tokens=False)["input_ids"] for text in (word, f" {word}")
        )
        if len(at_start) == len(after_space) == 1:
            embeddings[at_start[0]] = embeddings[after_space[0]]
