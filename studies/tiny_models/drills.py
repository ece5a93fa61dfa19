"""Drills and questions for lineages: short conversations in the benchmark's own prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flipbench.prompting.prompts import LETTERS, choice_prompt
from flipbench.shapes.questions import NUMBERS, PLACES, SIDES
from flipbench.shapes.scene import COLORS, SHAPES, Scene
from studies.tiny_models.curriculum import (
    Turn,
    asked_turn,
    by_kind,
    lookup_turn,
)

_POOLS = (COLORS, SHAPES, NUMBERS, PLACES, *SIDES)
WORDS = tuple(word for pool in _POOLS for word in pool)


def find_turn(rng: np.random.Generator) -> Turn:
    """Return a question that needs no image: which letter a word has."""
    pool = _POOLS[rng.integers(len(_POOLS))] if rng.random() < 0.5 else WORDS
    n_options = min(len(pool), int(rng.integers(2, 5)))
    options = [pool[i] for i in rng.permutation(len(pool))[:n_options]]
    right = int(rng.integers(n_options))
    return choice_prompt(f"find {options[right]}", options), f" {LETTERS[right]}"


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
