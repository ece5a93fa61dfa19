"""Wrong answers to perturbed items that name the original's answer, against chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flipbench.core.randomness import generator
from flipbench.core.records import Count, Mean

from ..protocol import rules
from ..statistics.attraction import LetterAnswer, attraction, memory_share, permuted_p
from ..statistics.intervals import difference_interval
from ..statistics.resampling import label_swap_p
from .conditions import Settings

DETECTOR = "old_answer_attraction"
MIN_WRONG = 5
"""Fewest wrong answers that get a verdict."""
_NO_VARIETY = (
    "old answers and wrong answers vary too little within a new answer's letter to tell a memory"
    " from a preference for a letter"
)


@dataclass(frozen=True)
class WrongAnswer:
    """A wrong answer to a perturbed item with three or more options.

    Attributes
    ----------
    item_id : str
        Of the original.
    choice, old, new : int
        The option named, and the right ones of original and perturbed version.
    cluster : str
        What the item shares with others (`flipbench.evaluate.scoring.scores.cluster_of`).
    """

    item_id: str
    choice: int
    old: int
    new: int
    n_options: int
    cluster: str

    @property
    def is_old(self) -> bool:
        """Whether it is the original item's answer."""
        return self.choice == self.old

    @property
    def letters(self) -> LetterAnswer:
        """The three options and how many there are."""
        return LetterAnswer(self.old, self.new, self.choice, self.n_options)


@dataclass(frozen=True)
class PerturbedReplies:
    """The ids of the items whose perturbed version was answered, and their wrong answers."""

    item_ids: Sequence[str]
    wrong_answers: Sequence[WrongAnswer]
    n_unparsed: int = 0


def against_chance(replies: PerturbedReplies, settings: Settings) -> dict[str, Any]:
    """Return the fields of a score of "old answers are more frequent than by chance".

    Chance is what `flipbench.evaluate.statistics.attraction` says that letters explain: a
    preference for a letter proves nothing. Where items share an image or a group, the p-value is
    the larger of that and of swapping the sign of each cluster's sum.
    """
    answers, n = replies.wrong_answers, len(replies.wrong_answers)
    rng = generator(settings.seed, DETECTOR, "permutations")
    test = attraction([answer.letters for answer in answers], rng)
    excess = [a.is_old - chance for a, chance in zip(answers, test.expected, strict=True)]
    clusters = [answer.cluster for answer in answers]
    p_value = test.p_value
    if len(set(clusters)) < n:
        rng = generator(settings.seed, DETECTOR, "label swaps")
        swapped = label_swap_p([-value for value in excess], rng, clusters=clusters)
        p_value = max(p_value, swapped)
    refusals = [_NO_VARIETY] if any(a.is_old for a in answers) and not test.n_telling else []
    n_other = len(replies.item_ids) - n
    other_clusters = [f"answered otherwise {number}" for number in range(n_other)]
    return {
        **attraction_fields(replies, answers, excess, p_value, settings, refusals),
        "accuracies": {"old answer": Count(k=sum(a.is_old for a in answers), n=n)},
        "means": {"expected by chance": Mean(mean=sum(test.expected) / n if n else None, n=n)},
        "memory": memory_share(test.excess, max(0, n_other), [*clusters, *other_clusters]),
        "details": {"expected by": test.by},
    }


def stratified_p(answers: Sequence[WrongAnswer], settings: Settings | None = None) -> float:
    """Return the permutation p-value of old answers within strata of the new letter."""
    rng = generator((settings or Settings()).seed, DETECTOR, "permutations")
    return permuted_p([answer.letters for answer in answers], rng)[0]


def p_without_old_answers(answers: Sequence[WrongAnswer], n: int) -> float:
    """Return the p-value of `against_chance` after ``n`` of the old answers are left out."""
    old_answers = [answer for answer in answers if answer.is_old]
    remaining = [*old_answers[n:], *(answer for answer in answers if not answer.is_old)]
    fields = against_chance(PerturbedReplies([], remaining), Settings())
    return 1.0 if fields["p_value"] is None else float(fields["p_value"])


def attraction_fields(
    replies: PerturbedReplies,
    answers: Sequence[WrongAnswer],
    values: Sequence[float],
    p_value: float,
    settings: Settings,
    refusals: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the verdict on one value per wrong answer, 0 on average without memory.

    There is none for the reasons ``refusals``, and if replies are too few or too many unreadable.
    """
    clusters = [answer.cluster for answer in answers]
    unparsed = rules.unparsed_warning({"perturbed": (replies.n_unparsed, len(replies.item_ids))})
    reasons = [*refusals, *([unparsed] if unparsed else [])]
    if len(set(clusters)) < MIN_WRONG:
        reasons.append(
            f"only {len(answers)} wrong answers, about {len(set(clusters))} images or groups; fewer"
            f" than {MIN_WRONG} are too few for a verdict"
        )
    verdict = "inconclusive" if reasons else rules.significant(p_value, settings.alpha)
    by_item: Mapping[str, float] = dict(zip((a.item_id for a in answers), values, strict=True))
    return {
        "verdict": verdict,
        "statistic": sum(values) / len(values) if values else None,
        "interval": difference_interval(values, clusters),
        "p_value": p_value if values else None,
        "per_item": {id_: by_item.get(id_, 0.0) for id_ in replies.item_ids},
        "warnings": reasons,
    }
