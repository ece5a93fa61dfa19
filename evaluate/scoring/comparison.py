"""Two conditions of the same items, compared, and the score of each decision rule.

A detector that compares accuracies is a `ComparingDetector`: its `Contrast` names the rules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar, cast

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import (
    Count,
    Item,
    JsonDict,
    Mean,
    PairedCounts,
    Probe,
    ReferenceResult,
    Response,
    Score,
)
from flipbench.prompting.prompts import PromptSettings

from ..protocol import rules
from ..protocol.detector import About, Answers, cached_per_benchmark
from ..protocol.rules import Bands, Direction, Verdict
from ..statistics.paired import (
    GapDifference,
    MeanOutcome,
    Outcome,
    PairedOutcome,
    gap_difference,
    mean_comparison,
    paired_comparison,
)
from .conditions import (
    Condition,
    Mask,
    Query,
    QueryPair,
    Settings,
    cache_recent,
    cluster_of,
    dropped_note,
    left_out_note,
    probes_of,
)
from .scores import make_score, no_reference_warning

__all__ = [
    "Comparison",
    "ComparingDetector",
    "Condition",
    "Contrast",
    "Rule",
    "Settings",
    "against_clean",
    "bands_score",
    "below_reference_score",
    "compare",
    "gap_score",
    "if_equally_hard",
    "mcnemar_score",
    "relative_score",
    "threshold_score",
    "two_conditions",
    "two_versions",
    "with_leakage",
]

PairedResult = PairedOutcome | MeanOutcome


@dataclass(frozen=True)
class Comparison:
    """A model in two conditions (N items each), optionally with a reference model in the same two.

    Attributes
    ----------
    items : sequence of Item, shape (N,)
        The original items compared; ``n_left_out`` others cannot be asked about.
    first, second : Condition or None
        The statistic is accuracy in ``second`` - accuracy in ``first``; ``first`` is None if it
        would be that of a missing reference model.
    reference : (Condition, Condition) or None
        The reference model's two conditions, for rules that compare gaps.
    against_clean : bool
        Whether ``first`` is the reference model's condition, not one of the model's own.
    direction : {"falls", "rises"}
        How a contaminated model's statistic moves.
    unit : str
        Of the outcomes and the statistic; "fraction" for accuracies.
    notes, details
        Warnings and details of every score.
    reason : str
        Why no item can be compared, in a few words; empty otherwise.
    clusters : sequence of str, shape (N,)
        What each item shares with others; by default `cluster_of` each.
    """

    detector: str
    benchmark: PairedBenchmark
    answers: Answers
    items: Sequence[Item]
    first: Condition | None
    second: Condition
    direction: Direction = "falls"
    unit: str = "fraction"
    reference_answers: Answers | None = None
    reference: tuple[Condition, Condition] | None = None
    against_clean: bool = False
    n_left_out: int = 0
    notes: tuple[str, ...] = ()
    reason: str = ""
    details: JsonDict = field(default_factory=dict)
    settings: Settings = Settings()
    clusters: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Find the clusters."""
        if not self.clusters:
            object.__setattr__(self, "clusters", [cluster_of(item) for item in self.items])

    def paired(self, also: Sequence[Condition] = ()) -> PairedResult:
        """Compare the two conditions, on the items with an outcome in the conditions ``also``."""
        assert self.first is not None
        baseline, variant, settings = self.first, self.second, self.settings
        if also:
            is_kept = has_all_outcomes((baseline, *also))
            outcomes = [
                v if keep else None for v, keep in zip(baseline.outcomes, is_kept, strict=True)
            ]
            baseline = replace(baseline, outcomes=outcomes)
        if baseline.right_or_wrong and variant.right_or_wrong:
            return paired_comparison(
                cast(Sequence[Outcome], baseline.outcomes),
                cast(Sequence[Outcome], variant.outcomes),
                clusters=self.clusters,
            )
        return mean_comparison(
            baseline.outcomes,
            variant.outcomes,
            generator(settings.seed, self.answers.model, "bootstrap"),
            rises=self.direction == "rises",
            clusters=self.clusters,
            n_bootstrap=settings.n_bootstrap,
            n_permutations=settings.n_permutations,
        )

    def one_sided_p(self, outcome: PairedResult) -> float:
        """Return the p-value against "the gap does not move as a contaminated model's does"."""
        if isinstance(outcome, MeanOutcome):
            return outcome.p_one_sided
        return outcome.p_drop if self.direction == "falls" else outcome.p_rise

    def score(
        self,
        rule: str,
        outcome: PairedResult | None,
        verdict: Verdict,
        refusal: str | None = None,
        *,
        p_value: float | None = None,
        tuned_threshold: bool = False,
        details: JsonDict | None = None,
        reference: ReferenceResult | None = None,
    ) -> Score:
        """Return a score whose statistic is the gap; "inconclusive" if a verdict has to be refused.

        Parameters
        ----------
        p_value : float, optional
            By default that of the paired test.
        reference : ReferenceResult, optional
            The reference model's result, if the rule compares the gap with it.
        """
        conditions = [side for side in (self.first, self.second) if side is not None]
        clean = self.reference if reference and self.reference else ()
        refusals = [refusal, _unparsed_refusal(conditions)]
        if clean_refusal := _unparsed_refusal(clean):
            refusals.append(f"of the reference, {clean_refusal}")
        if not self.items:
            verdict = "not_applicable"
            reason = f": {self.reason}" if self.reason else ""
            refusals = [f"this detector cannot ask about any item of the benchmark{reason}"]
        elif outcome is not None and outcome.n == 0:
            refusals = ["no item has all the answers it needs; run the same command again to retry"]
        reasons = [reason for reason in refusals if reason]
        if reasons and verdict != "not_applicable":
            verdict = "inconclusive"
        sides = (*conditions, *clean)
        columns = complete_outcomes(sides)
        accuracies, means = tallies(conditions, columns)
        fields: dict[str, Any] = {"statistic": None, "p_value": None}
        counts, warnings = {"n_left_out": self.n_left_out, "n_unanswered": 0}, [*self.notes]
        if outcome is not None:
            counts["n_unanswered"] = outcome.n_dropped
            warnings += self._cautions(outcome)
            fields["interval"] = outcome.interval
            if isinstance(outcome, MeanOutcome):
                counts |= {"n_fell": outcome.n_fell, "n_rose": outcome.n_rose}
            else:
                n11, b, c, n00 = outcome.n11, outcome.b, outcome.c, outcome.n00
                fields["paired"] = PairedCounts(n11=n11, b=b, c=c, n00=n00)
            if outcome.n:
                fields["statistic"] = outcome.gap
                if p_value is None and verdict != "not_applicable":
                    p_value = self.one_sided_p(outcome)
                fields["p_value"] = p_value
        return make_score(
            self.detector,
            self.benchmark,
            self.answers,
            rule,
            self.settings,
            reference_answers=self.reference_answers if reference or self.against_clean else None,
            direction=self.direction,
            unit=self.unit,
            verdict=verdict,
            reason=self.reason,
            n=len(columns[0]),
            n_dropped=self.n_left_out + counts["n_unanswered"],
            accuracies=accuracies,
            means=means,
            unparsed={condition.name: condition.n_unparsed for condition in conditions},
            reference=reference,
            tuned_threshold=tuned_threshold,
            details={**counts, **self.details, **(details or {})},
            per_item={} if self.first is None else self._changes(sides),
            warnings=[*warnings, *reasons],
            **fields,
        )

    def _cautions(self, outcome: PairedResult) -> list[str]:
        """Return the warnings that do not prevent a verdict."""
        cautions = [*dropped_note(outcome.n_dropped, len(self.items))]
        n_clusters = len(set(self.clusters))
        if n_clusters < len(self.items):
            cautions.append(
                f"{len(self.items)} items share {n_clusters} images or groups: test and interval"
                " treat each image or group, not each item, as independent"
            )
        return cautions

    def _changes(self, sides: Sequence[Condition]) -> dict[str, float]:
        """Return the second condition's outcome minus the first's, by the id of complete items."""
        is_complete = has_all_outcomes(sides)
        changes = (sides[1].values - sides[0].values)[is_complete].tolist()
        ids = (item.id for item in compress(self.items, is_complete.tolist()))
        return dict(zip(ids, changes, strict=True))


Rule = Callable[[Comparison], Score]


@dataclass(frozen=True)
class Contrast:
    """What to ask about N items, and the rules that decide; with answers it is a `Comparison`.

    `two_conditions` and `against_clean` make one from queries.

    Attributes
    ----------
    read : callable
        Reads a model's answers in both conditions, or in the only one, which is then compared with
        that of a clean model.
    rules : sequence of callable
        Each returns one score.
    left_out : str
        Why items of the benchmark are left out; if empty, no note mentions them.
    leave_out : callable
        Returns the ids of further items to leave out, which only the answers show.
    describe : callable
        Returns details of a model's answers, for all scores.
    finish : callable
        Returns a score with what only this detector reports.
    direction, unit, reason, notes
        Those of the `Comparison`.
    """

    items: Sequence[Item]
    probes: Sequence[Probe]
    read: Callable[[Answers], Sequence[Condition]]
    rules: Sequence[Rule]
    left_out: str = ""
    leave_out: Callable[[Answers], Collection[str]] = lambda _: ()
    describe: Callable[[Answers], JsonDict] = lambda _: {}
    finish: Callable[[Score, Answers], Score] = lambda score, _: score
    direction: Direction = "falls"
    unit: str = "fraction"
    reason: str = ""
    notes: tuple[str, ...] = ()

    @cached_property
    def clusters(self) -> list[str]:
        """What each item shares with others, shape (N,)."""
        return [cluster_of(item) for item in self.items]


def two_conditions(
    query_pairs: Sequence[QueryPair],
    names: tuple[str, str],
    rules: Sequence[Rule],
    left_out: str = "",
    n_trials: tuple[int | None, int | None] = (1, 1),
    **fields: Any,
) -> Contrast:
    """Contrast a model's answers in two conditions.

    Parameters
    ----------
    names : (str, str)
        Of the conditions.
    n_trials : (int or None, int or None)
        See `Condition`.
    **more
        Further fields of the `Contrast`.
    """
    sides = [pair.first for pair in query_pairs], [pair.second for pair in query_pairs]

    def read(answers: Answers) -> list[Condition]:
        return [
            Condition.read(name, answers, queries, n)
            for name, queries, n in zip(names, sides, n_trials, strict=True)
        ]

    items = [pair.item for pair in query_pairs]
    return Contrast(items, probes_of(query_pairs), cache_recent(read), rules, left_out, **fields)


def two_versions(
    benchmark: PairedBenchmark,
    probes: Callable[[Item, str], Sequence[Probe]],
    value: Callable[[Sequence[Response]], float | None],
    rules: Sequence[Rule],
    n_trials: int | None = None,
) -> Contrast:
    """Contrast a value of all replies about an item on the originals and the perturbed items.

    ``probes`` gets an item and "original" or "perturbed"; for ``value``, see
    `Condition.of_replies`.
    """
    versions = {"original": benchmark.originals, "perturbed": benchmark.perturbed}
    sides = {side: [probes(item, side) for item in items] for side, items in versions.items()}
    return Contrast(
        items=benchmark.originals,
        probes=[probe for rows in sides.values() for row in rows for probe in row],
        read=cache_recent(
            lambda answers: [
                Condition.of_replies(side, answers, rows, value, n_trials)
                for side, rows in sides.items()
            ]
        ),
        rules=rules,
    )


def against_clean(
    queries: Sequence[tuple[Item, Query]],
    name: str,
    rules: Sequence[Rule],
    left_out: str = "",
    n_trials: int | None = 1,
    **fields: Any,
) -> Contrast:
    """Contrast a model with a clean model in one condition; a contaminated model's share rises.

    Parameters are those of `two_conditions`.
    """
    queries_only = [query for _, query in queries]
    return Contrast(
        items=[item for item, _ in queries],
        probes=probes_of(queries_only),
        read=cache_recent(lambda answers: [Condition.read(name, answers, queries_only, n_trials)]),
        rules=rules,
        left_out=left_out,
        direction="rises",
        **fields,
    )


@dataclass
class ComparingDetector(ABC):
    """A detector whose ``design`` is all that it asks and how it decides."""

    about: ClassVar[About]
    settings: Settings = Settings()

    @abstractmethod
    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return the contrasts in order; their rules give the scores, the paper's first."""

    @cached_per_benchmark
    def _contrasts(
        self, benchmark: PairedBenchmark, prompt_settings: PromptSettings
    ) -> list[Contrast]:
        return self.design(benchmark, prompt_settings)

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return the probes of all contrasts."""
        contrasts = self._contrasts(benchmark, prompt_settings)
        return [probe for contrast in contrasts for probe in contrast.probes]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return one score for each rule of each contrast."""
        scores = []
        for contrast in self._contrasts(benchmark, prompt_settings):
            if contrast.rules:
                comparison = compare(self, benchmark, contrast, answers, reference)
                scores += [contrast.finish(rule(comparison), answers) for rule in contrast.rules]
        return scores


def compare(
    detector: ComparingDetector,
    benchmark: PairedBenchmark,
    contrast: Contrast,
    answers: Answers,
    reference: Answers | None,
) -> Comparison:
    """Read a model's answers, and those of a clean ``reference`` model, in a contrast."""
    left_out = contrast.leave_out(answers)
    is_kept = [item.id not in left_out for item in contrast.items]
    items = list(compress(contrast.items, is_kept))
    n_left_out = len(benchmark.pairs) - len(items)

    def read(model: Answers) -> Sequence[Condition]:
        conditions = contrast.read(model)
        if not left_out:
            return conditions
        return [replace(c, outcomes=list(compress(c.outcomes, is_kept))) for c in conditions]

    conditions, clean = read(answers), read(reference) if reference else []
    against_clean = len(conditions) == 1
    baseline: Condition | None = conditions[0]
    if against_clean:
        baseline = replace(clean[0], name=f"{clean[0].name} of the reference") if clean else None
    return Comparison(
        detector=detector.about.name,
        benchmark=benchmark,
        answers=answers,
        items=items,
        first=baseline,
        second=conditions[-1],
        direction=contrast.direction,
        unit=contrast.unit,
        reference_answers=reference,
        reference=(clean[0], clean[1]) if clean and not against_clean else None,
        against_clean=against_clean,
        n_left_out=n_left_out,
        notes=(*left_out_note(n_left_out, contrast.left_out), *contrast.notes),
        reason=contrast.reason,
        details=contrast.describe(answers),
        settings=detector.settings,
        clusters=list(compress(contrast.clusters, is_kept)),
    )


def gap_score(
    comparison: Comparison, rule: str, decide: Callable[[PairedResult], Verdict], **fields: Any
) -> Score:
    """Return the score of a custom rule; ``fields`` are those of `Comparison.score`."""
    if comparison.first is None:
        return no_reference_score(comparison, rule)
    outcome = comparison.paired()
    verdict = decide(outcome) if outcome.n else "not_detected"
    return comparison.score(rule, outcome, verdict, **fields)


def threshold_score(comparison: Comparison, rule: str) -> Score:
    """Return the score of the sign of the gap: strictly below 0 (above, if it rises)."""
    return gap_score(
        comparison, rule, lambda outcome: rules.beyond(outcome.gap, 0.0, comparison.direction)
    )


def bands_score(comparison: Comparison, bands: Bands) -> Score:
    """Return the score of rule "bands": the gap falls into a published band."""

    def decide(outcome: PairedResult) -> Verdict:
        return "not_detected" if bands.degree(outcome.gap) == "none" else "contaminated"

    score = gap_score(comparison, "bands", decide, tuned_threshold=True)
    if score.statistic is None:
        return score
    degree = {"degree": bands.degree(score.statistic), "bands": bands._asdict()}
    return score.model_copy(update={"details": score.details | degree})


def with_leakage(score: Score) -> Score:
    """Return the score with MM-Detect's instance leakage and the gap relative to CR."""
    if score.paired is None or not score.n:
        return score
    b, n, n_right = score.paired.b, score.n, score.paired.n11 + score.paired.b
    gap = (score.paired.c - b) / n
    leakage = {"k": b, "n": n, "rate": b / n, "normalised": gap * n / n_right if n_right else None}
    return score.model_copy(update={"details": score.details | {"leakage": leakage}})


def mcnemar_score(comparison: Comparison, rule: str = "mcnemar") -> Score:
    """Return the score of the exact one-sided McNemar test of the gap.

    For shares or similarities it is the permutation test that swaps an item's two conditions,
    which for right or wrong is the same test.
    """
    if comparison.first is None:
        return no_reference_score(comparison, rule)
    outcome, alpha = comparison.paired(), comparison.settings.alpha
    verdict = rules.significant(comparison.one_sided_p(outcome), alpha)
    refusal = rules.too_few_warning(outcome.n_independent, alpha)
    return comparison.score(rule, outcome, verdict, refusal)


def if_equally_hard(rule: Rule) -> Rule:
    """Return a rule that assumes both versions to be equally hard, and gives no verdict if not."""

    def decide(comparison: Comparison) -> Score:
        score = rule(comparison)
        if comparison.benchmark.exchangeable is not False:
            return score
        warning = (
            f"rule {score.rule!r} assumes that both versions are equally hard, but the pairs of"
            f" {score.benchmark} were found, not made, so one version may be harder for any model:"
            " use rule 'relative' with a clean reference model"
        )
        warnings = (*score.warnings, warning)
        changes = {"verdict": "not_applicable", "p_value": None, "warnings": warnings}
        return score.model_copy(update=changes)

    return decide


def below_reference_score(comparison: Comparison, rule: str) -> Score:
    """Return the score of "the gap is strictly beyond the reference's", on items both answered.

    Beyond is below, or above if the gap rises. The statistic is the model's own gap.
    """
    if comparison.reference is None:
        return no_reference_score(comparison, rule, keep_statistic=True)
    outcome, between, fields = _against_reference(comparison)
    verdict = rules.beyond(between.gap, between.reference_gap, comparison.direction)
    return comparison.score(rule, outcome, verdict, **fields)


def relative_score(comparison: Comparison, rule: str = "relative") -> Score:
    """Return the score of the exact label-swap test of gap - reference gap.

    The statistic is that difference.
    """
    if comparison.reference is None:
        return no_reference_score(comparison, rule)
    outcome, between, fields = _against_reference(comparison)
    alpha = comparison.settings.alpha
    verdict = rules.significant(between.p_below, alpha)
    refusal = rules.too_few_warning(between.n_independent, alpha)
    score = comparison.score(rule, outcome, verdict, refusal, **fields)
    statistic = between.difference if between.n else None
    return score.model_copy(update={"statistic": statistic, "interval": between.interval})


def _against_reference(comparison: Comparison) -> tuple[PairedResult, GapDifference, JsonDict]:
    """Compare with the reference on the items that both answered.

    Returns
    -------
    PairedResult
        The model's own result on these items.
    GapDifference
        Between the two gaps.
    dict
        Fields of the score: p-value, the reference's results, and the model's accuracies minus the
        reference's. A difference on the original is inflation, on the variant interference (or
        damage).
    """
    assert comparison.reference is not None and comparison.first is not None
    sides = (comparison.first, comparison.second, *comparison.reference)
    baseline, variant, clean_baseline, clean_variant = (side.outcomes for side in sides)
    between = gap_difference(
        baseline,
        variant,
        clean_baseline,
        clean_variant,
        generator(comparison.settings.seed, comparison.answers.model, "relative"),
        clusters=comparison.clusters,
        n_permutations=comparison.settings.n_permutations,
        rises=comparison.direction == "rises",
    )
    columns, n = complete_outcomes(sides), between.n
    accuracies, means = tallies(comparison.reference, columns[2:])
    result = ReferenceResult(
        model=comparison.reference_answers.model if comparison.reference_answers else "",
        statistic=between.reference_gap if n else None,
        n=n,
        accuracies=accuracies,
        means=means,
        unparsed={side.name: side.n_unparsed for side in comparison.reference},
    )
    totals = [sum(column) for column in columns]
    changes = {
        condition.name: (totals[i] - totals[2 + i]) / n if n else None
        for i, condition in enumerate(comparison.reference)
    }
    return (
        comparison.paired(comparison.reference),
        between,
        {
            "p_value": between.p_below,
            "reference": result,
            "details": {"change_against_reference": changes},
        },
    )


def no_reference_score(comparison: Comparison, rule: str, *, keep_statistic: bool = False) -> Score:
    """Return "not_applicable"; ``keep_statistic`` if the statistic needs no reference."""
    notes = (*comparison.notes, no_reference_warning(rule, comparison.answers))
    outcome = None if comparison.first is None else comparison.paired()
    score = replace(comparison, notes=notes).score(rule, outcome, "not_applicable")
    changes = {} if keep_statistic else {"statistic": None, "interval": None}
    return score.model_copy(update={"lacks_reference": bool(comparison.items), **changes})


def _unparsed_refusal(conditions: Sequence[Condition]) -> str | None:
    return rules.unparsed_warning({c.name: (c.n_unparsed, c.n_replies) for c in conditions})


def has_all_outcomes(sides: Sequence[Condition]) -> Mask:
    """Return which items have an outcome in all conditions, shape (N,)."""
    return np.array([side.answered for side in sides]).all(axis=0).astype(bool)


def complete_outcomes(sides: Sequence[Condition]) -> list[list[float]]:
    """Return each condition's outcomes of the items that have one in all of them."""
    is_complete = has_all_outcomes(sides)
    return [side.values[is_complete].tolist() for side in sides]


def tallies(
    conditions: Sequence[Condition], columns: Sequence[Sequence[float]]
) -> tuple[dict[str, Count], dict[str, Mean]]:
    """Return correct answers as k of n by condition, and means of outcomes that are not shares.

    ``columns`` holds each condition's outcomes of the same n items.
    """
    accuracies, means, n = {}, {}, len(columns[0])
    for condition, column in zip(conditions, columns, strict=False):
        total = sum(column)
        if condition.n_trials is None:
            means[condition.name] = Mean(mean=total / n if n else None, n=n)
        else:
            k = round(total * condition.n_trials)
            accuracies[condition.name] = Count(k=k, n=n * condition.n_trials)
    return accuracies, means
