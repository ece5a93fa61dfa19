"""Wrong answers to perturbed items that name the original's answer, against chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flipbench.core.randomness import generator
from flipbench.core.records import Count, Mean

from ..protocol import rules
from ..statistics.counts import poisson_binomial_p
from ..statistics.intervals import difference_interval
from ..statistics.resampling import label_swap_p
from .conditions import Settings

DETECTOR = "old_answer_attraction"
MIN_WRONG = 5
"""Fewest wrong answers that get a verdict."""


@dataclass(frozen=True)
class WrongAnswer:
    """A wrong answer to a perturbed item with three or more options.

    Attributes
    ----------
    item_id : str
        Of the original.
    is_old : bool
        Whether it is the original item's answer.
    cluster : str
        What the item shares with others (`flipbench.evaluate.scoring.scores.cluster_of`).
    """

    item_id: str
    is_old: bool
    n_options: int
    cluster: str


@dataclass(frozen=True)
class PerturbedReplies:
    """The ids of the items whose perturbed version was answered, and their wrong answers."""

    item_ids: Sequence[str]
    wrong: Sequence[WrongAnswer]
    n_unparsed: int = 0


def against_chance(replies: PerturbedReplies, settings: Settings) -> dict[str, Any]:
    """Return the fields of a score of "old answers are more frequent than one in k - 1"."""
    wrong, n = replies.wrong, len(replies.wrong)
    chances = [1 / (answer.n_options - 1) for answer in wrong]
    above = [a.is_old - chance for a, chance in zip(wrong, chances, strict=True)]
    clusters = [answer.cluster for answer in wrong]
    k = sum(answer.is_old for answer in wrong)
    p_value = poisson_binomial_p(k, chances)
    if len(set(clusters)) < n:
        rng = generator(settings.seed, DETECTOR, "label swaps")
        swapped = label_swap_p([-value for value in above], rng, clusters=clusters)
        p_value = max(p_value, swapped)
    return {
        **decided(replies, wrong, above, p_value, settings),
        "accuracies": {"old answer": Count(k=k, n=n)},
        "means": {"expected by chance": Mean(mean=sum(chances) / n if n else None, n=n)},
    }


def without_old_answers(wrong: Sequence[WrongAnswer], n: int) -> float:
    """Return the p-value of `against_chance` after ``n`` of the old answers are left out."""
    old = [answer for answer in wrong if answer.is_old]
    kept = [*old[n:], *(answer for answer in wrong if not answer.is_old)]
    fields = against_chance(PerturbedReplies([], kept), Settings())
    return 1.0 if fields["p_value"] is None else float(fields["p_value"])


def decided(
    replies: PerturbedReplies,
    wrong: Sequence[WrongAnswer],
    values: Sequence[float],
    p_value: float,
    settings: Settings,
) -> dict[str, Any]:
    """Return the verdict on one value per wrong answer, 0 on average without memory."""
    clusters = [answer.cluster for answer in wrong]
    unparsed = rules.unparsed_warning({"perturbed": (replies.n_unparsed, len(replies.item_ids))})
    refusals = [unparsed] if unparsed else []
    if len(set(clusters)) < MIN_WRONG:
        refusals.append(
            f"only {len(wrong)} wrong answers, about {len(set(clusters))} images or groups; fewer"
            f" than {MIN_WRONG} are too few for a verdict"
        )
    verdict = "inconclusive" if refusals else rules.significant(p_value, settings.alpha)
    by_item: Mapping[str, float] = dict(zip((a.item_id for a in wrong), values, strict=True))
    return {
        "verdict": verdict,
        "statistic": sum(values) / len(values) if values else None,
        "interval": difference_interval(values, clusters),
        "p_value": p_value if values else None,
        "per_item": {id_: by_item.get(id_, 0.0) for id_ in replies.item_ids},
        "warnings": refusals,
    }
