"""The score of a comparison: its counts, the reasons for no verdict, and its warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Count, Item, JsonDict, Mean, PairedCounts, ReferenceResult, Score

from ..protocol import rules
from ..protocol.detector import Answers
from ..protocol.rules import Verdict
from ..statistics.paired import Outcome, PairedOutcome, paired_comparison
from .conditions import Comparison, Condition, Settings
from .means import MeanOutcome, mean_comparison

PairedResult = PairedOutcome | MeanOutcome


def make_score(
    detector: str,
    benchmark: PairedBenchmark,
    answers: Answers,
    rule: str,
    settings: Settings,
    *,
    reference_answers: Answers | None = None,
    details: JsonDict | None = None,
    warnings: Sequence[str] = (),
    **fields: Any,
) -> Score:
    """Return a score with the fields that all scores share: ids, test level and seed.

    Parameters
    ----------
    reference_answers : Answers, optional
        Of the reference model that the rule compares with; a model compared with itself gets a
        warning.
    **fields
        Further fields of the `Score`.
    """
    if reference_answers and reference_answers.fingerprint == answers.fingerprint:
        own = "the model is its own reference: this says nothing about false alarms"
        warnings = [own, *warnings]
    return Score(
        detector=detector,
        rule=rule,
        model=answers.model,
        model_fingerprint=answers.fingerprint,
        benchmark=benchmark.name,
        benchmark_id=benchmark.id,
        reference_fingerprint=reference_answers.fingerprint if reference_answers else "",
        alpha=settings.alpha,
        details={"seed": settings.seed, **(details or {})},
        warnings=tuple(warnings),
        **{"statistic": None, "n": 0, **fields},
    )


def no_reference_warning(rule: str, answers: Answers) -> str:
    """Return the warning that a rule needs a clean model and none was given."""
    return (
        f"rule {rule!r} compares with a clean model and none was given for {answers.model}: add the"
        " model it was trained from (dose 0) to the grid, or pass its answers as reference"
    )


def score_of(
    comparison: Comparison,
    rule: str,
    outcome: PairedResult | None,
    verdict: Verdict,
    refusal: str | None = None,
    *,
    p_value: float | None = None,
    tuned_threshold: bool = False,
    details: JsonDict | None = None,
    uses_reference: bool = False,
    reference: ReferenceResult | None = None,
    warning: str = "",
) -> Score:
    """Return a score whose statistic is the gap; "inconclusive" if a verdict has to be refused."""
    refusals = [refusal, *_unparsed_refusals(comparison, uses_reference)]
    if not comparison.items:
        verdict = "not_applicable"
        refusals = [
            "this detector cannot ask about any item of the benchmark"
            + (f": {comparison.reason}" if comparison.reason else "")
        ]
    elif outcome is not None and outcome.n == 0:
        refusals = ["no item has all the answers it needs; run the same command again to retry"]
    reasons = [reason for reason in refusals if reason]
    if reasons and verdict != "not_applicable":
        verdict = "inconclusive"
    compared = outcome is not None and outcome.n > 0
    if p_value is None and outcome is not None and verdict != "not_applicable":
        p_value = one_sided_p(comparison, outcome)
    against_reference = uses_reference and comparison.reference is not None
    keep = answered_by_reference(comparison) if against_reference else None
    conditions, totals, n = _totals(comparison, outcome)
    accuracies, means = tallies(conditions, totals, n)
    n_unanswered = outcome.n_dropped if outcome else 0
    return make_score(
        comparison.detector,
        comparison.benchmark,
        comparison.answers,
        rule,
        comparison.settings,
        reference_answers=comparison.reference_answers if uses_reference else None,
        statistic=outcome.gap if outcome is not None and compared else None,
        direction=comparison.direction,
        unit=comparison.unit,
        interval=outcome.interval if outcome else None,
        p_value=p_value if compared else None,
        verdict=verdict,
        reason=comparison.reason,
        n=n,
        n_dropped=comparison.n_left_out + n_unanswered,
        accuracies=accuracies,
        means=means,
        paired=_paired_counts(outcome),
        unparsed={condition.name: condition.n_unparsed for condition in conditions},
        reference=reference,
        tuned_threshold=tuned_threshold,
        details={
            **_changes_of_mean(outcome),
            "n_left_out": comparison.n_left_out,
            "n_unanswered": n_unanswered,
            **comparison.details,
            **(details or {}),
        },
        per_item=_per_item(comparison, keep),
        warnings=[
            *comparison.notes,
            *([warning] if warning else []),
            *(_cautions(comparison, outcome) if outcome is not None else []),
            *reasons,
        ],
    )


def _unparsed_refusals(comparison: Comparison, uses_reference: bool) -> list[str | None]:
    pairs = [(comparison.first, comparison.second)]
    if uses_reference and comparison.reference is not None:
        pairs.append(comparison.reference)
    return [
        rules.unparsed_warning({c.name: (c.n_unparsed, c.n_replies) for c in (first, second)})
        for first, second in pairs
        if first is not None
    ]


def _cautions(comparison: Comparison, outcome: PairedResult) -> list[str]:
    """Return the warnings that do not prevent a verdict."""
    cautions = []
    if outcome.n_dropped:
        cautions.append(
            f"{outcome.n_dropped} of {len(comparison.items)} items are dropped because an answer is"
            " missing; run the same command again to retry"
        )
    n_clusters = len({cluster_of(item) for item in comparison.items})
    if n_clusters < len(comparison.items) and isinstance(outcome, PairedOutcome):
        cautions.append(
            f"{len(comparison.items)} items share {n_clusters} images or groups: the interval"
            " resamples whole groups, but the exact McNemar test assumes independent items"
        )
    fell, rose = (
        (outcome.n_fell, outcome.n_rose)
        if isinstance(outcome, MeanOutcome)
        else (outcome.b, outcome.c)
    )
    if outcome.n and fell + rose == 0:
        cautions.append(
            "no item differs between the two conditions: an interval of width 0 understates the"
            " uncertainty"
        )
    return cautions


def _totals(
    comparison: Comparison, outcome: PairedResult | None
) -> tuple[list[Condition], list[float], int]:
    """Return the conditions counted, the sum of outcomes in each, and the number of items."""
    first, second = comparison.first, comparison.second
    if outcome is None or first is None:
        answered = [o for o in second.outcomes if o is not None]
        return [second], [sum(answered)], len(answered)
    if isinstance(outcome, MeanOutcome):
        return [first, second], [outcome.first, outcome.second], outcome.n
    return [first, second], [outcome.k_original, outcome.k_perturbed], outcome.n


def _paired_counts(outcome: PairedResult | None) -> PairedCounts | None:
    if not isinstance(outcome, PairedOutcome):
        return None
    return PairedCounts(n11=outcome.n11, b=outcome.b, c=outcome.c, n00=outcome.n00)


def _changes_of_mean(outcome: PairedResult | None) -> JsonDict:
    if not isinstance(outcome, MeanOutcome):
        return {}
    return {"n_fell": outcome.n_fell, "n_rose": outcome.n_rose}


def tallies(
    conditions: Sequence[Condition], totals: Sequence[float], n_items: int
) -> tuple[dict[str, Count], dict[str, Mean]]:
    """Return correct answers as k of n by condition, and means of outcomes that are not shares."""
    accuracies, means = {}, {}
    for condition, total in zip(conditions, totals, strict=True):
        if condition.n_trials is None:
            mean = total / n_items if n_items else None
            means[condition.name] = Mean(mean=mean, n=n_items)
        else:
            k, n = round(total * condition.n_trials), n_items * condition.n_trials
            accuracies[condition.name] = Count(k=k, n=n)
    return accuracies, means


def _per_item(comparison: Comparison, keep: Sequence[bool] | None) -> dict[str, float]:
    if comparison.first is None:
        return {}
    first, second = comparison.first.outcomes, comparison.second.outcomes
    included = keep if keep is not None else [True] * len(comparison.items)
    return {
        item.id: float(after) - float(before)
        for item, before, after, use in zip(comparison.items, first, second, included, strict=True)
        if use and before is not None and after is not None
    }


def one_sided_p(comparison: Comparison, outcome: PairedResult) -> float:
    """Return the p-value against "the gap does not move as a contaminated model's does"."""
    if isinstance(outcome, MeanOutcome):
        return outcome.p_one_sided
    return outcome.p_drop if comparison.direction == "falls" else outcome.p_rise


def paired(comparison: Comparison, keep: Sequence[bool] | None = None) -> PairedResult:
    """Compare the two conditions, on the items selected by ``keep``, shape (N,), if given."""
    assert comparison.first is not None
    first, second = comparison.first.outcomes, comparison.second.outcomes
    if keep is not None:
        first = [outcome if use else None for outcome, use in zip(first, keep, strict=True)]
    settings, clusters = comparison.settings, [cluster_of(item) for item in comparison.items]
    rng = generator(settings.seed, comparison.answers.fingerprint, "bootstrap")
    if all(outcome is None or isinstance(outcome, bool) for outcome in (*first, *second)):
        return paired_comparison(
            cast(Sequence[Outcome], first),
            cast(Sequence[Outcome], second),
            clusters=clusters,
            rng=rng,
            n_bootstrap=settings.n_bootstrap,
        )
    return mean_comparison(
        first,
        second,
        comparison.direction,
        rng,
        clusters=clusters,
        n_bootstrap=settings.n_bootstrap,
        n_permutations=settings.n_permutations,
    )


def answered_by_reference(comparison: Comparison) -> list[bool]:
    """Return for each item whether the reference model answered in both conditions."""
    assert comparison.reference is not None
    first, second = comparison.reference
    return [None not in pair for pair in zip(first.outcomes, second.outcomes, strict=True)]


def cluster_of(item: Item) -> str:
    """Return what an item shares with others: its group, else its images, else only its id."""
    return item.group or " ".join(image.sha256 for image in item.images) or item.id
