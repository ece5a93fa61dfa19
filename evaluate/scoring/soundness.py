"""Whether a gap is evidence: who judged the pairs, accuracy above guessing, and old answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flipbench.core.records import Score
from flipbench.reporting import formats

from ..protocol.rules import Verdict
from ..statistics.counts import poisson_binomial_p
from ..statistics.resampling import by_cluster, exact_label_swap_p

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
    p_value : float
        Of the gap on the judged pairs alone.
    """

    n: int
    n_judged: int = 0
    raters: str = ""
    by_construction: bool = False
    p_value: float = 1.0

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
    """Why a gap is no evidence, and what to do about it, as parts of a sentence."""

    reason: str
    remedy: str


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


def drop_p(changes: Mapping[str, float], clusters: Mapping[str, str]) -> float:
    """Return the exact p-value of a drop, from changes (-1, 0, 1) and clusters by item id.

    Without shared clusters it is that of the McNemar test.

    >>> round(drop_p({"a": -1, "b": -1, "c": 1}, {"a": "a", "b": "b", "c": "c"}), 6)
    0.5
    """
    values = np.array(list(changes.values()), dtype=float)
    totals, _ = by_cluster(values, [clusters[item_id] for item_id in changes])
    return exact_label_swap_p(np.rint(totals))


def doubts(
    verdict: Verdict,
    judged: Judged,
    guessing: Sequence[Guessing],
    attraction: Score | None,
    *,
    alpha: float,
    has_reference: bool,
) -> list[Doubt]:
    """Return why a verdict on the gap must be withheld; empty if there is no reason.

    Parameters
    ----------
    guessing : sequence of Guessing
        Of the model, then of its references; empty if the numbers of options are not known.
    attraction : Score or None
        Old-answer attraction against chance. Without it, accuracy significantly below guessing
        takes its place: neither happens if the images show nothing and the model guesses.
    """
    found = []
    is_valid = judged.by_construction or judged.p_value <= alpha
    if verdict == "contaminated" and not is_valid and not has_reference:
        unjudged = "nobody is known to have judged the perturbed images"
        if judged.n_judged:
            unjudged = (
                f"it is not ({formats.p_equation(judged.p_value)}) on the {judged.n_judged:,} of"
                f" {judged.n:,} pairs that were judged valid"
            )
        found.append(
            Doubt(
                f"the gap is significant, but {unjudged}, and bad edits give the same gap",
                "have the pairs judged (flipbench filter or flipbench review), say who judged them"
                " (--judged-by), or compare with a clean model (--reference)",
            )
        )
    if verdict in ("contaminated", "not_detected") and _show_nothing(guessing, attraction, alpha):
        models = "; ".join(one.text() for one in guessing)
        old = f"; {attraction_text(attraction)}" if attraction and attraction.n else ""
        found.append(
            Doubt(
                f"no model does better than guessing on the perturbed versions, so their images may"
                f" show nothing: {models}{old}",
                "look at the pairs (flipbench review), or give a clean model that can answer such"
                " questions (--reference)",
            )
        )
    return found


def _show_nothing(guessing: Sequence[Guessing], attraction: Score | None, alpha: float) -> bool:
    """Return whether nothing shows that the perturbed images have any effect on a model."""
    if not guessing or any(one.p_above <= alpha for one in guessing):
        return False
    if attraction is not None and attraction.p_value is not None:
        return attraction.p_value > alpha
    return guessing[0].p_below > alpha


def attraction_text(score: Score) -> str:
    """Return a score of old-answer attraction against chance, as a part of a sentence."""
    if score.statistic is None or score.p_value is None:
        return "no wrong answer to a perturbed version can show whether old answers attract"
    count, expected = score.accuracies["old answer"], score.means["expected by chance"]
    chance = (expected.mean or 0.0) * count.n
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
