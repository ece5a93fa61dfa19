"""Whether a gap is evidence: who judged the pairs, accuracy above guessing, and old answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flipbench.core.rates import Rate
from flipbench.core.records import Score
from flipbench.reporting import formats

from ..protocol.rules import Verdict
from ..statistics.counts import poisson_binomial_p

EASIER = (
    "Edited versions have been easier than their originals: all clean models of Park et al. (arXiv"
    " 2511.03774) score higher on them, by 0.3 to 31.5 points, and easier versions hide a gap."
)
"""Why a gap that is not significant is weak evidence without a clean model."""


@dataclass(frozen=True)
class Judged:
    """How many of the pairs compared are known to be valid, and from whom.

    Attributes
    ----------
    n, n_judged : int
        Pairs compared, and those that were judged valid.
    raters : str
        Who judged them; empty if nobody is known to have.
    by_construction : bool
        Whether the pairs need no judgement.
    bad_edits : (int, int) or None
        Of the pairs that the judges kept and people looked at, how many these rejected.
    """

    n: int
    n_judged: int = 0
    raters: str = ""
    by_construction: bool = False
    bad_edits: tuple[int, int] | None = None

    @property
    def bad_rate(self) -> Rate | None:
        """The share of bad edits among the pairs that the judges kept; None if nobody checked."""
        return None if self.bad_edits is None else Rate.wilson(*self.bad_edits)

    def text(self) -> str:
        """Return it as a sentence."""
        if self.by_construction:
            return f"The {self.n:,} pairs compared are valid by construction."
        if not self.n_judged:
            return (
                f"Nobody is known to have judged whether the perturbed images of the {self.n:,}"
                " pairs compared show their new answers."
            )
        return (
            f"Of the {self.n:,} pairs compared, {self.n_judged:,} were judged valid, by"
            f" {self.raters}."
        )


@dataclass(frozen=True)
class Guessing:
    """A model's right answers to the perturbed items, compared with guessing.

    Attributes
    ----------
    k, n : int
        Right answers, and items compared.
    expected : float
        Right answers of a model that guesses: the sum of 1 / number of options.
    p_above, p_below : float
        Exact one-sided p-values against "no better (no worse) than guessing".
    """

    model: str
    k: int
    n: int
    expected: float
    p_above: float
    p_below: float

    def text(self) -> str:
        """Return it as the end of a sentence.

        >>> against_guessing("m", 3, [4] * 12).text()
        'm gets 3/12 perturbed versions right, where guessing gets 3.0 (p = .609)'
        """
        return (
            f"{self.model} gets {self.k:,}/{self.n:,} perturbed versions right, where guessing gets"
            f" {self.expected:.1f} ({formats.p_equation(self.p_above)})"
        )


@dataclass(frozen=True)
class Doubt:
    """Why a gap is no evidence, and what to do about it, as parts of a sentence.

    Attributes
    ----------
    kind : str
        The reason in two words, for tables.
    """

    reason: str
    remedy: str
    kind: str


def against_guessing(model: str, k: int, n_options: Sequence[int]) -> Guessing:
    """Compare ``k`` right answers with guessing among ``n_options`` of each item."""
    chances = [1 / options for options in n_options]
    n = len(chances)
    return Guessing(
        model,
        k,
        n,
        sum(chances),
        poisson_binomial_p(k, chances),
        poisson_binomial_p(n - k, [1 - chance for chance in chances]),
    )


def images_show_nothing(
    guessing: Sequence[Guessing], attraction: Score | None, alpha: float
) -> bool:
    """Return whether nothing shows that the perturbed images have any effect on a model.

    Parameters
    ----------
    guessing : sequence of Guessing
        Of the model, then of its references; empty if the numbers of options are not known.
    attraction : Score or None
        Old-answer attraction against chance. It and accuracy significantly below guessing show a
        memory: neither happens if the images show nothing and the model guesses.
    """
    if not guessing or any(model.p_above <= alpha for model in guessing):
        return False
    if attraction is not None and attraction.p_value is not None and attraction.p_value <= alpha:
        return False
    return guessing[0].p_below > alpha


def attraction_text(score: Score) -> str:
    """Return a score of old-answer attraction against chance, as a part of a sentence."""
    if score.statistic is None or score.p_value is None:
        return "no wrong answer to a perturbed version can show whether old answers attract"
    count, mean = score.accuracies["old answer"], score.means["expected by chance"]
    chance = (mean.mean or 0.0) * count.n
    return (
        f"{count.k:,} of {count.n:,} wrong answers to perturbed versions name the original's"
        f" answer, where chance gives {chance:.1f} ({formats.p_equation(score.p_value)})"
    )


def attraction_sentence(verdict: Verdict, score: Score | None) -> str:
    """Return old-answer attraction as a sentence, and what it means if the gap says otherwise."""
    if score is None or score.verdict == "not_applicable":
        return ""
    text = f"Old-answer attraction, which does not depend on difficulty: {attraction_text(score)}."
    if verdict == "contaminated" and score.verdict == "not_detected":
        return (
            f"{text} A gap without attraction is also what harder perturbed images or weak edits"
            " give, or a memory too weak to name the old answer."
        )
    if verdict == "not_detected" and score.verdict == "contaminated":
        return (
            f"{text} Attraction without a gap means that easier perturbed images hide a memory, or"
            " that edits left the old object in place, or that the old answer is what one expects"
            " without looking."
        )
    if score.verdict == "inconclusive" and score.warnings:
        return f"{text} No verdict on it: {score.warnings[-1]}."
    return text
