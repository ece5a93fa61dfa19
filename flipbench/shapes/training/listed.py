"""Facts with lettered options, several for one list: denser training text than one list each."""

from __future__ import annotations

import numpy as np

from flipbench.prompting.prompts import LETTERS
from flipbench.shapes.questions import NUMBERS, PLACES, SIDES, Question, answer, questions_on
from flipbench.shapes.scene import COLORS, SHAPES, Scene
from flipbench.shapes.training.curriculum import Turn, facts_turn, lookup_turn

# What the options of a list are: the kind of question they answer, by axis for relations.
_POOLS: dict[str, tuple[str, ...]] = {
    "color": COLORS,
    "shape": SHAPES,
    "number": NUMBERS,
    "place": PLACES,
    "left": SIDES[0],
    "above": SIDES[1],
}


def letters_turn(scene: Scene, rng: np.random.Generator) -> Turn:
    """Return single-word facts, then two lists whose options are to be found: "find red", "B"."""
    message, facts = lookup_turn(scene, rng)
    return message, facts + "".join(_listed({}, rng) for _ in range(2))


def listed_turn(scene: Scene, rng: np.random.Generator) -> Turn:
    """Return four lists with facts about the scene, or at times `facts_turn`."""
    if rng.random() < 0.3:
        return facts_turn(scene, rng)
    facts: dict[str, list[tuple[str, str]]] = {pool: [] for pool in _POOLS}
    for question in questions_on(scene):
        pool = _pool(question)
        about = f"{question.other} {question.about}" if question.other else question.about
        facts[pool].append((f"{pool} {about}", str(answer(scene, question))))
    message, lookups = lookup_turn(scene, rng) if rng.random() < 0.3 else ("Facts.", "")
    return message, lookups + "".join(_listed(facts, rng) for _ in range(4))


def _pool(question: Question) -> str:
    if question.kind != "relation":
        return question.kind
    return "above" if question.vertical else "left"


def _listed(facts: dict[str, list[tuple[str, str]]], rng: np.random.Generator) -> str:
    """Return a list of options, and what is asked about it: two words and up to four facts.

    Without facts, every option is asked for.
    """
    name = list(_POOLS)[rng.integers(len(_POOLS))]
    pool = _POOLS[name]
    options = [pool[i] for i in rng.permutation(len(pool))[: int(rng.integers(3, 5))]]
    asked = [(f"find {options[i]}", options[i]) for i in rng.permutation(len(options))]
    if facts:
        fitting = [fact for fact in facts[name] if fact[1] in options]
        asked = asked[:2] + [fitting[i] for i in rng.permutation(len(fitting))[:4]]
        asked = [asked[i] for i in rng.permutation(len(asked))]
    listed = " options" + "".join(f"\n{LETTERS[i]}. {text}" for i, text in enumerate(options))
    lines = [f"\n{known}\x00 {LETTERS[options.index(text)]}\x01" for known, text in asked]
    return listed + "".join(lines)
