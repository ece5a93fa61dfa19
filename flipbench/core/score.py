"""A score: what one detector found out about one model, typed as far as anything reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from flipbench.core.record_base import JsonDict, Record, Value, content_id

Direction = Literal["falls", "rises"]
"""How a contaminated model's statistic moves."""
ALPHA = 0.05
"""Default level of a test."""


class Interval(Value):
    """A two-sided confidence interval and its level."""

    low: float
    high: float
    level: float = 0.95


class Count(Value):
    """``k`` of ``n``, such as right answers of all answers."""

    k: int
    n: int


class Mean(Value):
    """The mean of ``n`` similarities; None without any."""

    mean: float | None
    n: int


class Suspects(Count):
    """The ``k`` of ``n`` pairs that were right on the original and wrong on the perturbed version.

    ``rate`` is k / n and ``share`` the part of the right answers to originals that were lost.
    ``names`` lists the items where they are known by name.
    """

    rate: float | None
    share: float | None
    names: tuple[str, ...] = ()


class PairedCounts(Value):
    """The 2 x 2 table of a paired comparison.

    Pairs that are right in both conditions (``n11``), right then wrong (``b``), wrong then right
    (``c``), wrong in both (``n00``).
    """

    n11: int
    b: int
    c: int
    n00: int

    def suspects(self, names: Sequence[str] = ()) -> Suspects:
        """Return the pairs that fell, as shares of all pairs and of those right at first.

        >>> found = PairedCounts(n11=4, b=3, c=1, n00=2).suspects()
        >>> (found.k, found.n, found.rate, round(found.share, 3))
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
    """What a clean reference model shows on the items a score compares it on.

    ``statistic`` is its own gap (share, correlation), not the difference from the model's, and
    ``p_value`` that of the same test.
    """

    model: str
    statistic: float | None = None
    p_value: float | None = None
    n: int | None = None
    accuracies: dict[str, Count] = Field(default_factory=dict)
    means: dict[str, Mean] = Field(default_factory=dict)
    unparsed: dict[str, int] = Field(default_factory=dict)


class Score(Record):
    """What one detector says of one model on one benchmark (accuracies and gaps as fractions).

    ``verdict`` follows ``rule``; "not_detected" never means "clean". Accuracies, means and
    ``unparsed`` go by condition, the first of a comparison first.

    Attributes
    ----------
    alpha : float
        Level of the rule's test.
    reason : str
        In a few words, why the rule does not apply; the warnings say it in a sentence.
    accuracies : dict of str to Count
        Right answers of those compared; ``means`` stands in its place where answers are graded.
    paired : PairedCounts or None
        Where each item was right or wrong in two conditions.
    unparsed : dict of str to int or None
        Replies that name no option; None where nobody counted them.
    tuned_threshold : bool
        Whether the rule's threshold was fitted to published models.
    details : dict
        Further numbers of the detector, for people: no table, page or rule reads them.
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
    reference: ReferenceResult | None = None
    tuned_threshold: bool = False
    details: JsonDict = Field(default_factory=dict)
    per_item: dict[str, float] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    target: str = Field(default="", description="a plug-in's import path; empty for our own")
    arguments: JsonDict = Field(default_factory=dict, description="a plug-in's parameters")

    @classmethod
    def id_for(cls, **made_of: Any) -> str:
        """Return the id; target and arguments count for a plug-in only."""
        whole = super().id_for(**made_of)
        if made_of["target"] or made_of["arguments"]:
            return whole
        own = (name for name in cls.made_of if name not in ("target", "arguments"))
        return content_id(cls.kind, *(made_of[name] for name in own))
