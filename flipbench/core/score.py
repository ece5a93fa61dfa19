"""A score: one detector's result for one model; every field that other code reads is typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from flipbench.core.record_base import JsonDict, Record, Value

Direction = Literal["falls", "rises"]
"""The direction in which contamination moves the statistic."""
ALPHA = 0.05
"""Default level of a test."""


class Interval(Value):
    """A two-sided confidence interval and its level."""

    low: float
    high: float
    level: float = 0.95


class Count(Value):
    """``k`` of ``n``, such as right answers out of all answers."""

    k: int
    n: int


class Mean(Value):
    """The mean of ``n`` similarities; None if ``n`` is 0."""

    mean: float | None
    n: int


class MemoryShare(Value):
    """The share of ``n`` items answered from memory of the original, a lower bound.

    ``share`` is None if ``n`` is 0.
    """

    share: float | None
    interval: Interval | None
    n: int


class Suspects(Count):
    """The ``k`` of ``n`` pairs answered correctly on the original but not on the perturbed version.

    ``rate`` is k / n, and ``share`` the fraction of the pairs answered correctly on the original.
    ``names`` lists the items, if their names are known.
    """

    rate: float | None
    share: float | None
    names: tuple[str, ...] = ()


class PairedCounts(Value):
    """The 2 x 2 table of a paired comparison.

    Numbers of pairs that are right in both conditions (``n11``), right then wrong (``b``), wrong
    then right (``c``), wrong in both (``n00``).
    """

    n11: int
    b: int
    c: int
    n00: int

    def suspects(self, names: Sequence[str] = ()) -> Suspects:
        """Return the pairs that went from right to wrong.

        >>> suspects = PairedCounts(n11=4, b=3, c=1, n00=2).suspects()
        >>> (suspects.k, suspects.n, suspects.rate, round(suspects.share, 3))
        (3, 10, 0.3, 0.429)
        """
        n, right = self.n11 + self.b + self.c + self.n00, self.n11 + self.b
        return Suspects(
            k=self.b,
            n=n,
            rate=self.b / n if n else None,
            share=self.b / right if right else None,
            names=tuple(names),
        )


class ReferenceResult(Value):
    """A clean reference model's result on the items that it is compared on.

    ``statistic`` is its own gap (share, correlation), not the difference from the model's, and
    ``p_value`` is that of the same test.
    """

    model: str
    statistic: float | None = None
    p_value: float | None = None
    n: int | None = None
    accuracies: dict[str, Count] = Field(default_factory=dict)
    means: dict[str, Mean] = Field(default_factory=dict)
    unparsed: dict[str, int] = Field(default_factory=dict)


class QuadrantResult(Value):
    """Items by whether the answer is consistent over wordings and relies on the image.

    Attributes
    ----------
    counts : dict of str to Count
        Right answers to the question as it is (``k``) of the items in each quadrant (``n``).
    flip_rate, dangerous, given_consistent : Interval or None
        Of FR, DF, and DF among the consistent items, over items; the fractions follow from
        ``counts``.
    prior : Count
        Right answers without the image: DF of a model that is always right, with this text prior.
    entropies : dict of str to Mean
        Mean entropy of the answer, by quadrant, in nats.
    divergences : dict of str to Mean
        Mean KL(P with image || P without), by quadrant, in nats.
    auroc : float or None
        How well a low divergence tells dangerous from other items.
    auroc_interval : Interval or None
        As if items were independent.
    wordings : dict of str to int
        Other wordings of the questions, by whether they were kept, or why they were not.
    levels : dict of str to Count
        Wordings with another answer than the question as it is, by what the wording changes.
    unchanged : dict of str to dict of str to Count
        Answers that stay on another or a black picture, by check and quadrant.
    items : dict of str to str
        The quadrant of each item, by the item's id.
    """

    counts: dict[str, Count]
    flip_rate: Interval | None = None
    dangerous: Interval | None = None
    given_consistent: Interval | None = None
    prior: Count
    entropies: dict[str, Mean] = Field(default_factory=dict)
    divergences: dict[str, Mean] = Field(default_factory=dict)
    auroc: float | None = None
    auroc_interval: Interval | None = None
    wordings: dict[str, int] = Field(default_factory=dict)
    levels: dict[str, Count] = Field(default_factory=dict)
    unchanged: dict[str, dict[str, Count]] = Field(default_factory=dict)
    items: dict[str, str] = Field(default_factory=dict)


class Score(Record):
    """One detector's result for one model on one benchmark (accuracies and gaps as fractions).

    ``verdict`` follows from ``rule``; "not_detected" never means "clean". Accuracies, means and
    ``unparsed`` are keyed by condition, in the order of the comparison.

    Attributes
    ----------
    alpha : float
        Level of the rule's test.
    reason : str
        Why the rule does not apply, in a few words; the warnings give it as a sentence.
    accuracies : dict of str to Count
        Right answers among the items compared; graded answers have ``means`` instead.
    paired : PairedCounts or None
        Right and wrong answers of the same items in two conditions.
    unparsed : dict of str to int or None
        Number of replies that name no option; None if they were not counted.
    memory : MemoryShare or None
        How many items were answered from memory, by the old answers in wrong replies.
    lacks_reference : bool
        Whether the rule does not apply because it compares with a clean model and none was given.
    tuned_threshold : bool
        Whether the rule's threshold was fitted to published models.
    details : dict
        Further numbers for people; no table, page or rule reads them.
    """

    kind: ClassVar[str] = "scores"
    made_of: ClassVar[tuple[str, ...]] = (
        "detector",
        "rule",
        "model_fingerprint",
        "benchmark_id",
        "reference_fingerprint",
        "target",
        "arguments",
    )
    optional: ClassVar[tuple[str, ...]] = ("target", "arguments")

    detector: str
    rule: str
    model: str
    model_fingerprint: str
    benchmark: str
    benchmark_id: str
    reference_fingerprint: str = ""
    statistic: float | None
    direction: Direction
    unit: str = "fraction"
    interval: Interval | None = None
    p_value: float | None = None
    alpha: float = Field(default=ALPHA, gt=0, lt=1)
    verdict: Literal["contaminated", "not_detected", "inconclusive", "not_applicable"]
    reason: str = ""
    n: int
    n_dropped: int = 0
    accuracies: dict[str, Count] = Field(default_factory=dict)
    means: dict[str, Mean] = Field(default_factory=dict)
    paired: PairedCounts | None = None
    unparsed: dict[str, int | None] = Field(default_factory=dict)
    suspects: Suspects | None = None
    memory: MemoryShare | None = None
    quadrants: QuadrantResult | None = None
    reference: ReferenceResult | None = None
    lacks_reference: bool = False
    tuned_threshold: bool = False
    details: JsonDict = Field(default_factory=dict)
    per_item: dict[str, float] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    target: str = Field(default="", description="a plug-in's import path; empty if built in")
    arguments: JsonDict = Field(default_factory=dict, description="a plug-in's parameters")
