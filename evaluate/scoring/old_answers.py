"""Wrong answers to perturbed items that name the original's answer, against chance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flipbench.core.randomness import generator
from flipbench.core.records import Count, Mean, MemoryShare

from ..protocol import rules
from ..statistics.intervals import difference_interval
from ..statistics.resampling import N_PERMUTATIONS, label_swap_p, permutation_p
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
    def stratum(self) -> tuple[int, int]:
        """Number of options and new answer, which limit what a wrong answer can be."""
        return self.n_options, self.new


@dataclass(frozen=True)
class PerturbedReplies:
    """The ids of the items whose perturbed version was answered, and their wrong answers."""

    item_ids: Sequence[str]
    wrong: Sequence[WrongAnswer]
    n_unparsed: int = 0


def against_chance(replies: PerturbedReplies, settings: Settings) -> dict[str, Any]:
    """Return the fields of a score of "old answers are more frequent than by chance".

    Chance is what the same wrong answers give if the old answers are permuted among the items that
    share number of options and new answer: a preference for a letter then proves nothing. Where
    items share an image or a group, the p-value is the larger of that and of swapping the sign of
    each cluster's sum.
    """
    wrong, n = replies.wrong, len(replies.wrong)
    chances = _chances(wrong)
    above = [a.is_old - chance for a, chance in zip(wrong, chances, strict=True)]
    clusters = [answer.cluster for answer in wrong]
    p_value = stratified_p(wrong, settings)
    if len(set(clusters)) < n:
        rng = generator(settings.seed, DETECTOR, "label swaps")
        swapped = label_swap_p([-value for value in above], rng, clusters=clusters)
        p_value = max(p_value, swapped)
    refusals = [_NO_VARIETY] if any(a.is_old for a in wrong) and not any(above) else []
    return {
        **decided(replies, wrong, above, p_value, settings, refusals),
        "accuracies": {"old answer": Count(k=sum(a.is_old for a in wrong), n=n)},
        "means": {"expected by chance": Mean(mean=sum(chances) / n if n else None, n=n)},
        "memory": memory_share(replies, chances),
    }


def memory_share(replies: PerturbedReplies, chances: Sequence[float]) -> MemoryShare:
    """Return the share of items answered from memory, by old answers in wrong replies.

    The mean over all items answered of 1 for the old answer, -c / (1 - c) for another wrong one and
    0 for the rest, where c is the share of old answers by chance among the wrong answers with the
    same number of options and new answer (1 / (k - 1) with k options and no preference for a
    letter). Without memory it is 0 on average. A lower bound: memory that the picture overrules,
    or that a right answer hides, does not count. Edits that still show the old answer add to it.

    Parameters
    ----------
    chances : sequence of float, shape (n_wrong,)
        How often each wrong answer would be the old one by chance.
    """
    by_stratum: dict[tuple[int, int], list[float]] = {}
    for answer, chance in zip(replies.wrong, chances, strict=True):
        by_stratum.setdefault(answer.stratum, []).append(chance)
    values, clusters = {}, {}
    for answer in replies.wrong:
        chance = float(np.mean(by_stratum[answer.stratum]))
        values[answer.item_id] = (
            1.0 if answer.is_old else -chance / (1 - chance) if chance < 1 else 0.0
        )
        clusters[answer.item_id] = answer.cluster
    shares = [values.get(item_id, 0.0) for item_id in replies.item_ids]
    shared = [clusters.get(item_id, item_id) for item_id in replies.item_ids]
    return MemoryShare(
        share=sum(shares) / len(shares) if shares else None,
        interval=difference_interval(shares, shared),
        n=len(shares),
    )


def stratified_p(wrong: Sequence[WrongAnswer], settings: Settings | None = None) -> float:
    """Return the one-sided permutation p-value of `against_chance`, at least 1 / (B + 1).

    Drawn as random tables of old answers by choices with the margins of each stratum, cell by cell.
    """
    settings = settings or Settings()
    rng = generator(settings.seed, DETECTOR, "permutations")
    n_draws = settings.n_permutations
    null = np.zeros(n_draws, dtype=np.int64)
    for answers in _strata(wrong):
        null += _matches(answers, rng, n_draws)
    return permutation_p(sum(answer.is_old for answer in wrong), null)


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
    refusals: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the verdict on one value per wrong answer, 0 on average without memory.

    There is none for the reasons ``refusals``, and if replies are too few or too many unreadable.
    """
    clusters = [answer.cluster for answer in wrong]
    unparsed = rules.unparsed_warning({"perturbed": (replies.n_unparsed, len(replies.item_ids))})
    reasons = [*refusals, *([unparsed] if unparsed else [])]
    if len(set(clusters)) < MIN_WRONG:
        reasons.append(
            f"only {len(wrong)} wrong answers, about {len(set(clusters))} images or groups; fewer"
            f" than {MIN_WRONG} are too few for a verdict"
        )
    verdict = "inconclusive" if reasons else rules.significant(p_value, settings.alpha)
    by_item: Mapping[str, float] = dict(zip((a.item_id for a in wrong), values, strict=True))
    return {
        "verdict": verdict,
        "statistic": sum(values) / len(values) if values else None,
        "interval": difference_interval(values, clusters),
        "p_value": p_value if values else None,
        "per_item": {id_: by_item.get(id_, 0.0) for id_ in replies.item_ids},
        "warnings": reasons,
    }


def _strata(wrong: Sequence[WrongAnswer]) -> Iterator[list[WrongAnswer]]:
    """Yield the wrong answers that share number of options and new answer, in a fixed order."""
    strata: dict[tuple[int, int], list[WrongAnswer]] = {}
    for answer in wrong:
        strata.setdefault(answer.stratum, []).append(answer)
    yield from (strata[key] for key in sorted(strata))


def _chances(wrong: Sequence[WrongAnswer]) -> list[float]:
    """Return how often each choice would be the old answer, if these were permuted."""
    olds: dict[tuple[int, int], list[int]] = {}
    for answer in wrong:
        olds.setdefault(answer.stratum, []).append(answer.old)
    return [olds[a.stratum].count(a.choice) / len(olds[a.stratum]) for a in wrong]


def _matches(
    answers: Sequence[WrongAnswer], rng: np.random.Generator, n_draws: int = N_PERMUTATIONS
) -> NDArray[np.int64]:
    """Return how many choices meet their old answer, if these are permuted, shape (n_draws,)."""
    options = sorted({a.old for a in answers} | {a.choice for a in answers})
    rows = [sum(a.old == option for a in answers) for option in options]
    left = np.tile([sum(a.choice == option for a in answers) for option in options], (n_draws, 1))
    matches = np.zeros(n_draws, dtype=np.int64)
    for row, size in enumerate(rows[:-1]):
        need = np.full(n_draws, size)
        for column in range(len(options) - 1):
            rest = left[:, column + 1 :].sum(axis=1)
            drawn = rng.hypergeometric(left[:, column], rest, need)
            matches += drawn if column == row else 0
            left[:, column] -= drawn
            need -= drawn
        left[:, -1] -= need
    matches += left[:, -1]  # the last row takes what is left
    return matches
