"""Wrong answers that are the original's: how many a preference for letters explains."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import comb, factorial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flipbench.core.records import Interval, MemoryShare

from .counts import poisson_binomial_p
from .intervals import difference_interval

Array = NDArray[np.float64]
LEAST_P = 1e-6
"""Strata are used if the largest number of old answers that they allow has at most this p-value."""
MAX_EXACT = 400
"""Most wrong answers with one new letter whose matches are counted exactly."""
N_DRAWS = 9_999


@dataclass(frozen=True)
class LetterAnswer:
    """A wrong answer to a perturbed item: the indices of three options, and how many there are."""

    old: int
    new: int
    chosen: int
    n_options: int

    @property
    def is_old(self) -> bool:
        """Whether the answer is the original's."""
        return self.chosen == self.old


@dataclass(frozen=True)
class Attraction:
    """Whether old answers are chosen more often than chance and letters explain.

    Attributes
    ----------
    p_value : float
        One-sided.
    expected : tuple of float, shape (N,)
        The probability that a wrong answer is the old one, if nothing is memorised.
    excess : tuple of float, shape (N,)
        By strata: 1 on average if a wrong answer comes from memory, 0 on average if not, or where
        the stratum does not tell.
    by : {"strata", "letters", "options"}
        What the test rests on: permutations within strata of the new letter, the letters that the
        other wrong answers name, or the number of options alone.
    n_telling : int
        Answers in strata with different old letters.
    """

    p_value: float
    expected: tuple[float, ...]
    excess: tuple[float, ...]
    by: Literal["strata", "letters", "options"]
    n_telling: int = 0


def attraction(answers: Sequence[LetterAnswer], rng: np.random.Generator) -> Attraction:
    """Test whether wrong answers name the old one more often than their letters explain.

    Within strata of equal option count and equal new letter, the old letters are permuted among the
    wrong answers: without memory, which letter a model prefers has nothing to do with which one was
    right in the original. The p-value is exact (a Monte-Carlo estimate with `N_DRAWS` draws if a
    stratum has more than `MAX_EXACT` answers), whatever the preference, the difficulty of pictures
    and the quality of guesses.

    Where the strata are too small, or all their old letters equal, the p-value is the larger of
    two: of one old answer in k - 1 by chance, and of chances by the preference for letters that the
    *other* wrong answers show (`_preferred`). Items are independent here; see
    `flipbench.evaluate.scoring.old_answers` for clusters.

    Parameters
    ----------
    answers : sequence of LetterAnswer, shape (N,)
    rng : numpy.random.Generator
        Used for large strata only.

    References
    ----------
    Ours. The number of matches of a random permutation: J. Riordan, *An Introduction to
    Combinatorial Analysis* (1958), chapter 7 (rook polynomials).

    Examples
    --------
    >>> says_a = [LetterAnswer(old=0, new=1 + i % 3, chosen=0, n_options=4) for i in range(30)]
    >>> attraction(says_a, np.random.default_rng(0)).p_value > 0.05  # it may just prefer A
    True
    """
    if not answers:
        return Attraction(1.0, (), (), "options")
    count, strata = sum(answer.is_old for answer in answers), _strata(answers)
    groups = [[answers[i] for i in indices] for indices in strata.values()]
    p_value, least = permuted_p(answers, rng)
    n_telling = sum(len(g) for g in groups if len({answer.old for answer in g}) > 1)
    strata_chances, excess = np.empty(len(answers)), np.empty(len(answers))
    for indices, group in zip(strata.values(), groups, strict=True):
        strata_chances[indices], excess[indices] = _stratum_chances(group)
    by: Literal["strata", "letters", "options"] = "strata"
    chances = strata_chances
    if least > LEAST_P:
        by_options = np.array([1 / (answer.n_options - 1) for answer in answers])
        by_letters = _letter_chances(answers)
        p_value = poisson_binomial_p(count, by_options.tolist())
        by, chances = "options", by_options
        if (p_letters := poisson_binomial_p(count, by_letters.tolist())) > p_value:
            by, chances, p_value = "letters", by_letters, p_letters
    expected = tuple(chances.tolist())
    return Attraction(min(1.0, p_value), expected, tuple(excess.tolist()), by, n_telling)


def permuted_p(answers: Sequence[LetterAnswer], rng: np.random.Generator) -> tuple[float, float]:
    """Return the p-value of `attraction` by strata alone, and that of the most old answers.

    The second is 0 for a Monte-Carlo estimate.
    """
    count = sum(answer.is_old for answer in answers)
    groups = [[answers[i] for i in indices] for indices in _strata(answers).values()]
    if max(map(len, groups), default=0) <= MAX_EXACT:
        matches = reduce(np.convolve, map(_match_distribution, groups), np.ones(1))
        return min(1.0, float(matches[count:].sum())), float(matches[-1])
    draws = np.sum([_match_draws(group, rng) for group in groups], axis=0)
    return (1 + int((draws >= count).sum())) / (N_DRAWS + 1), 0.0


def memory_share(
    excess: Sequence[float], n_other: int, clusters: Sequence[str] | None = None
) -> MemoryShare:
    """Return the share of answers to perturbed items that come from memory of the originals.

    The mean of ``excess`` over all answers, with Student's interval.

    Parameters
    ----------
    excess : sequence of float, shape (N,)
        Of wrong answers: `Attraction.excess`. If nothing is known about letters, 1 for the old
        answer and -1 / (k - 2) for another wrong one.
    n_other : int
        Answers that are right or unreadable, whose excess is 0.
    clusters : sequence of str, shape (N + n_other,), optional
        Of the wrong answers, then of the others.

    References
    ----------
    Ours. With a share m of answers from memory, a share w of other wrong answers and k options, old
    answers are m + w / (k - 1) of all; the estimate subtracts the second term.

    Examples
    --------
    >>> memory_share([1, 1, -0.5], 2).share
    0.3
    """
    values = [*excess, *[0.0] * n_other]
    interval = difference_interval(values, clusters)
    if interval:
        low, high = (max(-1.0, min(1.0, limit)) for limit in (interval.low, interval.high))
        interval = Interval(low=low, high=high, level=interval.level)
    share = sum(values) / len(values) if values else None
    return MemoryShare(share=share, interval=interval, n=len(values))


def _strata(answers: Sequence[LetterAnswer]) -> dict[tuple[int, int], list[int]]:
    """Return the places of the answers by number of options and new letter."""
    strata: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, answer in enumerate(answers):
        strata[answer.n_options, answer.new].append(index)
    return strata


def _match_distribution(group: Sequence[LetterAnswer]) -> Array:
    """Return P(m answers are old ones), m = 0, 1, …, if old letters are permuted in the group.

    Rook polynomial: a letter chosen c times and old g times is a board of c x g squares.
    """
    choices = Counter(answer.chosen for answer in group)
    old_letters = Counter(answer.old for answer in group)
    size, rooks = len(group), np.array([1], dtype=object)  # whole numbers of any size
    for letter, c in choices.items():
        g = old_letters[letter]
        board = [comb(c, j) * comb(g, j) * factorial(j) for j in range(min(c, g) + 1)]
        rooks = np.convolve(rooks, np.array(board, dtype=object))
    at_least = [ways * factorial(size - k) for k, ways in enumerate(rooks)]
    exactly = [
        sum((-1) ** (k - m) * comb(k, m) * at_least[k] for k in range(m, len(at_least)))
        for m in range(len(at_least))
    ]
    while exactly[-1] == 0:
        exactly.pop()
    return np.array([ways / factorial(size) for ways in exactly])


def _match_draws(group: Sequence[LetterAnswer], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the number of old answers in random permutations, shape (N_DRAWS,)."""
    choices = np.array([answer.chosen for answer in group], dtype=np.int16)
    old_letters = np.array([answer.old for answer in group], dtype=np.int16)
    draws = [(rng.permutation(old_letters) == choices).sum() for _ in range(N_DRAWS)]
    return np.array(draws, dtype=np.int64)


def _stratum_chances(group: Sequence[LetterAnswer]) -> tuple[Array, Array]:
    """Return the chance of each answer to be an old one by the others' old letters, and the excess.

    The excess is 1 on average for a memorised answer: its chance to be expected anyway is that of
    two old letters to be equal. It is 0 where the old letters do not differ, which says nothing.
    """
    n_rest, old_letters = len(group) - 1, Counter(answer.old for answer in group)
    if not n_rest:
        return np.array([1 / (answer.n_options - 1) for answer in group]), np.zeros(1)
    chances = np.array([(old_letters[answer.chosen] - answer.is_old) / n_rest for answer in group])
    differing = 1 - sum(n * (n - 1) for n in old_letters.values()) / len(group) / n_rest
    is_old = np.array([answer.is_old for answer in group])
    return chances, (is_old - chances) / differing if differing else np.zeros(len(group))


def _letter_chances(answers: Sequence[LetterAnswer]) -> Array:
    """Return the chance of the old letter by the letters of the other wrong answers."""
    counts = Counter(answers)
    chance = {answer: _preferred(counts - Counter([answer]), answer) for answer in counts}
    return np.array([chance[answer] for answer in answers])


def _preferred(counts: Counter[LetterAnswer], answer: LetterAnswer) -> float:
    """Return how often an answer's old letter is chosen among those that are wrong there.

    Fits a strength to each letter, of which each answer chooses one among all but the new one, by
    the MM algorithm (Hunter, Annals of Statistics 32 (2004), 384-406, section 5). Each letter is
    chosen once more among all of them.
    """
    k = answer.n_options
    n_chosen, n_new = np.ones(k), np.zeros(k)
    for wrong_answer, n in counts.items():
        if wrong_answer.n_options == k:
            n_chosen[wrong_answer.chosen] += n
            n_new[wrong_answer.new] += n
    strengths = np.full(k, 1 / k)
    for _ in range(100):
        contests = n_new / (1 - strengths)  # by the letter that does not take part
        updated = n_chosen / (contests.sum() - contests + k)
        updated /= updated.sum()
        if np.abs(updated - strengths).max() < 1e-6:
            break
        strengths = updated
    return float(strengths[answer.old] / (1 - strengths[answer.new]))
