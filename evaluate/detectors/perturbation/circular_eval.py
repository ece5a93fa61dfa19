"""CircularEval: the accuracy drop when an item counts only if right in every rotation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, JsonDict, Probe, Score
from flipbench.prompting.prompts import LETTERS, PromptSettings

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...scoring.comparison import (
    Comparison,
    Condition,
    Settings,
    below_reference_score,
    relative_score,
)
from ...scoring.conditions import multiple_choice_items
from ...statistics.paired import Outcome

ABOUT = About(
    name="circular_eval",
    title="CircularEval",
    paper="Liu et al., MMBench, arXiv 2307.06281, CircularEval strategy; as a detector:"
    " Park et al., arXiv 2511.03774, tables 2 and 13",
    variant="rules paper (gap strictly below the clean model's), relative (default)",
    deviates_from_paper="a reply that names no option counts as wrong, never as a random option; an"
    " item with a missing rotation is dropped; 'relative' requires a bootstrap interval below 0",
    default_rule="relative",
    needs=frozenset({"choose or generate"}),
    direction="circular accuracy is further below plain accuracy than a clean model's",
    needs_clean_model=True,
    practical=False,
)


def rotate(options: Sequence[str], answer: int, rotation: int) -> tuple[tuple[str, ...], int]:
    """Return options and answer with option (j + rotation) mod k in slot j.

    >>> rotate(["a", "b", "c"], 0, 1)
    (('b', 'c', 'a'), 2)
    """
    k = len(options)
    return tuple(options[(j + rotation) % k] for j in range(k)), (answer - rotation) % k


@dataclass
class CircularEval:
    """Gap = share of items right in all k rotations - accuracy in rotation 0, never above 0.

    It measures position bias as well as memory; ``details["chosen_slots"]`` counts the slots a
    model chose over all rotations, in which every option occupies every slot once.

    References
    ----------
    Liu et al., arXiv 2307.06281, CircularEval strategy; Park et al., arXiv 2511.03774, tables 2
    and 13.
    Differs from the paper in that rotation 0 is the plain question's own answer, so that the gap
    cannot be positive, and in rule 'relative'.
    """

    settings: Settings = field(default_factory=Settings)
    about: About = ABOUT

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return k rotations of every multiple-choice item; the first is the plain question."""
        rotations = self._all_rotations(benchmark, prompt_settings)
        return [probe for of_item in rotations for probe, _ in of_item]

    @cached_per_benchmark
    def _all_rotations(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings
    ) -> list[list[tuple[Probe, int]]]:
        return [_rotations(item, prompt_settings) for item in multiple_choice_items(benchmark)]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules paper and relative."""
        items = multiple_choice_items(benchmark)
        rotations = self._all_rotations(benchmark, prompt_settings)
        first, second, slots = _conditions(rotations, answers)
        sizes = [len(item.options or ()) for item in items]
        n = len(sizes) or 1
        comparison = Comparison(
            detector=self.about.name,
            benchmark=benchmark,
            answers=answers,
            items=items,
            first=first,
            second=second,
            reference_answers=reference,
            reference=_conditions(rotations, reference)[:2] if reference else None,
            n_left_out=len(benchmark.pairs) - len(items),
            details={
                "chosen_slots": slots,
                "chance": {
                    "original": sum(1 / k for k in sizes) / n,
                    "circular": sum(k**-k for k in sizes) / n,
                },
            },
            settings=self.settings,
        )
        return [below_reference_score(comparison, "paper"), relative_score(comparison)]


def _rotations(item: Item, prompt_settings: PromptSettings) -> list[tuple[Probe, int]]:
    """Return k (probe, gold slot) pairs, rotation 0 first."""
    assert item.options is not None and item.answer is not None
    rotations = []
    for rotation in range(len(item.options)):
        options, gold = rotate(item.options, item.answer, rotation)
        variant = "original" if rotation == 0 else f"rotated-{rotation}"
        rotations.append((prompt_settings.probe(item, variant, options=options), gold))
    return rotations


def _conditions(
    rotations_by_item: Sequence[Sequence[tuple[Probe, int]]], answers: Answers
) -> tuple[Condition, Condition, JsonDict]:
    """Return the plain and the circular condition, and how often each slot was chosen.

    Replies that name no option are counted in rotation 0 and in all others.
    """
    plain: list[Outcome] = []
    circular: list[Outcome] = []
    unparsed, replies = [0, 0], [0, 0]
    slots: Counter[str] = Counter()
    for rotations in rotations_by_item:
        outcomes: list[Outcome] = []
        for rotation, (probe, gold) in enumerate(rotations):
            response = answers.to(probe)
            outcomes.append(None if response is None else response.choice == gold)
            if response is not None:
                replies[rotation > 0] += 1
                unparsed[rotation > 0] += response.choice < 0
                slots[LETTERS[response.choice] if response.choice >= 0 else "none"] += 1
        plain.append(outcomes[0])
        circular.append(None if None in outcomes else all(outcomes))
    return (
        Condition("original", plain, unparsed[0], replies[0]),
        Condition("circular", circular, unparsed[1], replies[1]),
        dict(sorted(slots.items())),
    )
