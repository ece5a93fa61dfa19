"""CircularEval: the accuracy drop when an item counts only if right in every rotation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, JsonDict, Probe
from flipbench.prompting.prompts import LETTERS, PromptSettings

from ...protocol.detector import About, Answers
from ...scoring.comparison import (
    ComparingDetector,
    Condition,
    Contrast,
    below_reference_score,
    relative_score,
)
from ...scoring.conditions import Query, Reading, choice, multiple_choice_items, probes_of

ABOUT = About(
    name="circular_eval",
    title="CircularEval",
    paper="Liu et al., MMBench, arXiv 2307.06281, CircularEval strategy; as a detector:"
    " Park et al., arXiv 2511.03774, tables 2 and 13",
    variant="rules paper (gap strictly below the clean model's), relative (default)",
    deviates_from_paper="a reply that names no option counts as wrong, never as a random option; an"
    " item with a missing rotation is dropped; 'relative' tests the difference from the clean"
    " model's gap by exact label swaps",
    rules={"paper": True, "relative": True},
    default_rule="relative",
    needs=frozenset({"choose or generate"}),
    direction="circular accuracy is further below plain accuracy than a clean model's",
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    levels={"paper": 0.5},
    evidence="published",
    caveat="bias towards positions moves it as much as memory; 21 of 24 contaminated VLMs were"
    " below the clean one (arXiv 2511.03774)",
)


def rotate(options: Sequence[str], answer: int, rotation: int) -> tuple[tuple[str, ...], int]:
    """Return options and answer with option (j + rotation) mod k in slot j.

    >>> rotate(["a", "b", "c"], 0, 1)
    (('b', 'c', 'a'), 2)
    """
    k = len(options)
    return tuple(options[(j + rotation) % k] for j in range(k)), (answer - rotation) % k


class CircularEval(ComparingDetector):
    """Gap = share of items right in all k rotations - accuracy in rotation 0, never above 0.

    It measures position bias as well as memory; ``details["chosen_slots"]`` counts the slots a
    model chose over all rotations, in which every option occupies every slot once.
    """

    about = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return k rotations of every multiple-choice item; the first is the plain question."""
        items = multiple_choice_items(benchmark)
        plain = [choice(prompt_settings, item, "original") for item in items]
        rotated = [_rotated(item, prompt_settings) for item in items]
        probes = [probe for pair in zip(plain, rotated, strict=True) for probe in probes_of(pair)]
        sizes = [len(item.options or ()) for item in items]
        n = len(sizes) or 1
        chance = {
            "original": sum(1 / k for k in sizes) / n,
            "circular": sum(k**-k for k in sizes) / n,
        }
        return [
            Contrast(
                items,
                probes,
                partial(_conditions, plain, rotated),
                (partial(below_reference_score, rule="paper"), relative_score),
                describe=lambda answers: {
                    "chosen_slots": _chosen_slots(probes, answers),
                    "chance": chance,
                },
            )
        ]


def _rotated(item: Item, prompt_settings: PromptSettings) -> Query:
    """Return the query of rotations 1 to k - 1, all of which have to be answered correctly."""
    assert item.options is not None and item.answer is not None
    parts: list[tuple[Probe, Reading]] = []
    for rotation in range(1, len(item.options)):
        options, gold = rotate(item.options, item.answer, rotation)
        query = choice(prompt_settings, item, f"rotated-{rotation}", options=options, gold=gold)
        parts += query.parts
    return Query(tuple(parts), all)


def _conditions(
    plain: Sequence[Query], rotated: Sequence[Query], answers: Answers
) -> tuple[Condition, Condition]:
    """Return the plain and the circular condition.

    Replies that name no option are counted in rotation 0 and in all others.
    """
    original = Condition.read("original", answers, plain)
    circular = Condition.read("circular", answers, rotated)
    outcomes = zip(original.outcomes, circular.outcomes, strict=True)
    return original, replace(circular, outcomes=[None if None in o else all(o) for o in outcomes])


def _chosen_slots(probes: Sequence[Probe], answers: Answers) -> JsonDict:
    """Return how often each slot was chosen."""
    replies = [reply for probe in probes if (reply := answers.to(probe)) is not None]
    slots = Counter(LETTERS[r.choice] if r.choice >= 0 else "none" for r in replies)
    return dict(sorted(slots.items()))
