"""The score of a comparison: its counts, what forbids a verdict, and what a reader should know."""

from __future__ import annotations

from collections.abc import Sequence

from flipbench.core.randomness import generator
from flipbench.core.records import (
    Count,
    Item,
    JsonDict,
    Mean,
    PairedCounts,
    ReferenceResult,
    Score,
)

from ..protocol import rules
from ..protocol.rules import Verdict
from ..statistics.paired import Outcome, PairedOutcome, Value, paired_comparison
from .conditions import Comparison, Condition
from .means import MeanOutcome, mean_comparison

Compared = PairedOutcome | MeanOutcome


def score_of(
    comparison: Comparison,
    rule: str,
    outcome: Compared | None,
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
    """Return a score whose statistic is the gap; what forbids a verdict is added and said."""
    warnings = [*comparison.notes, *([warning] if warning else [])]
    refusals = [refusal, *_unparsed_refusals(comparison, uses_reference)]
    if not comparison.items:
        verdict = "not_applicable"
        refusals = [
            "no item of the benchmark can be put to a model this way"
            + (f": {comparison.reason}" if comparison.reason else "")
        ]
    elif outcome is not None and outcome.n == 0:
        refusals = ["no item has all the answers it needs; run the same command again to ask anew"]
    said = [reason for reason in refusals if reason]
    if said and verdict != "not_applicable":
        verdict = "inconclusive"
    own = comparison.against is not None and (
        comparison.against.fingerprint == comparison.answers.fingerprint
    )
    if uses_reference and own:
        warnings.append("the model is its own reference: this says nothing about false alarms")
    if outcome is not None:
        warnings += _cautions(comparison, outcome)
    n_unanswered = outcome.n_dropped if outcome else 0
    compared = outcome is not None and outcome.n > 0
    if p_value is None and outcome is not None and compared and verdict != "not_applicable":
        p_value = one_sided_p(comparison, outcome)
    against = comparison.against.fingerprint if comparison.against and uses_reference else ""
    keep = answered_by_reference(comparison) if comparison.reference and uses_reference else None
    counted, totals, n = _totals(comparison, outcome)
    accuracies, means = tallies(counted, totals, n)
    return Score(
        detector=comparison.detector,
        rule=rule,
        model=comparison.answers.model,
        model_fingerprint=comparison.answers.fingerprint,
        benchmark=comparison.benchmark.name,
        benchmark_id=comparison.benchmark.id,
        reference_fingerprint=against,
        statistic=outcome.gap if outcome is not None and compared else None,
        direction=comparison.direction,
        unit=comparison.unit,
        interval=outcome.interval if outcome else None,
        p_value=p_value if compared else None,
        alpha=comparison.settings.alpha,
        verdict=verdict,
        reason=comparison.reason,
        n=n,
        n_dropped=comparison.n_left_out + n_unanswered,
        accuracies=accuracies,
        means=means,
        paired=_paired_counts(outcome),
        unparsed={condition.name: condition.n_unparsed for condition in counted},
        reference=reference,
        tuned_threshold=tuned_threshold,
        details={
            **_changes_of_mean(outcome),
            "n_left_out": comparison.n_left_out,
            "n_unanswered": n_unanswered,
            "seed": comparison.settings.seed,
            **comparison.details,
            **(details or {}),
        },
        per_item=_per_item(comparison, keep),
        warnings=tuple(warnings + said),
    )


def _unparsed_refusals(comparison: Comparison, uses_reference: bool) -> list[str | None]:
    pairs = [(comparison.first, comparison.second)]
    if uses_reference and comparison.reference is not None:
        pairs.append(comparison.reference)
    return [
        rules.unparsed_warning({c.name: (c.n_unparsed, c.n_replies) for c in (one, two)})
        for one, two in pairs
        if one is not None
    ]


def _cautions(comparison: Comparison, outcome: Compared) -> list[str]:
    """Return what a reader should know though it forbids no verdict."""
    found = []
    if outcome.n_dropped:
        found.append(
            f"{outcome.n_dropped} of {len(comparison.items)} items are dropped: an answer is"
            " missing; run the same command again to ask anew"
        )
    n_clusters = len({cluster_of(item) for item in comparison.items})
    if n_clusters < len(comparison.items) and isinstance(outcome, PairedOutcome):
        found.append(
            f"{len(comparison.items)} items share {n_clusters} images or groups: the interval"
            " draws whole groups, but the exact McNemar test takes items for independent"
        )
    if outcome.n and sum(_changed(outcome)) == 0:
        found.append(
            "no item differs between the two conditions: an interval of width 0 understates what"
            " is unknown"
        )
    return found


def _changed(outcome: Compared) -> tuple[int, int]:
    """Return how many items fell and how many rose."""
    if isinstance(outcome, MeanOutcome):
        return outcome.n_fell, outcome.n_rose
    return outcome.b, outcome.c


def _totals(
    comparison: Comparison, outcome: Compared | None
) -> tuple[list[Condition], list[float], int]:
    """Return the conditions counted, the sum of outcomes in each, and the number of items."""
    first, second = comparison.first, comparison.second
    if outcome is None or first is None:
        answered = [o for o in second.outcomes if o is not None]
        return [second], [sum(answered)], len(answered)
    if isinstance(outcome, MeanOutcome):
        return [first, second], [outcome.first, outcome.second], outcome.n
    return [first, second], [outcome.k_original, outcome.k_perturbed], outcome.n


def _paired_counts(outcome: Compared | None) -> PairedCounts | None:
    if not isinstance(outcome, PairedOutcome):
        return None
    return PairedCounts(n11=outcome.n11, b=outcome.b, c=outcome.c, n00=outcome.n00)


def _changes_of_mean(outcome: Compared | None) -> JsonDict:
    if not isinstance(outcome, MeanOutcome):
        return {}
    return {"n_fell": outcome.n_fell, "n_rose": outcome.n_rose}


def tallies(
    conditions: Sequence[Condition], totals: Sequence[float], n_items: int
) -> tuple[dict[str, Count], dict[str, Mean]]:
    """Return right answers as k of n by condition, and means where outcomes are no shares."""
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
    kept = keep if keep is not None else [True] * len(comparison.items)
    return {
        item.id: float(after) - float(before)
        for item, before, after, use in zip(comparison.items, first, second, kept, strict=True)
        if use and before is not None and after is not None
    }


def one_sided_p(comparison: Comparison, outcome: Compared) -> float:
    """Return the p-value against "the gap does not move as a contaminated model's does"."""
    if isinstance(outcome, MeanOutcome):
        return outcome.p_one_sided
    return outcome.p_drop if comparison.direction == "falls" else outcome.p_rise


def paired(comparison: Comparison, keep: Sequence[bool] | None = None) -> Compared:
    """Compare the two conditions, on the items of ``checkpointing`` alone if given."""
    assert comparison.first is not None
    first, second = comparison.first.outcomes, comparison.second.outcomes
    if keep is not None:
        first = [o if kept else None for o, kept in zip(first, keep, strict=True)]
    settings, clusters = comparison.settings, [cluster_of(item) for item in comparison.items]
    rng = generator(settings.seed, comparison.answers.fingerprint, "bootstrap")
    right_or_wrong = _right_or_wrong(first), _right_or_wrong(second)
    if right_or_wrong[0] is not None and right_or_wrong[1] is not None:
        return paired_comparison(
            right_or_wrong[0],
            right_or_wrong[1],
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


def _right_or_wrong(values: Sequence[Value]) -> list[Outcome] | None:
    """Return the values where each is an outcome, else None."""
    outcomes = [value for value in values if value is None or isinstance(value, bool)]
    return outcomes if len(outcomes) == len(values) else None


def answered_by_reference(comparison: Comparison) -> list[bool]:
    """Return for each item whether the reference model answered in both conditions."""
    assert comparison.reference is not None
    one, two = comparison.reference
    return [None not in pair for pair in zip(one.outcomes, two.outcomes, strict=True)]


def cluster_of(item: Item) -> str:
    """Return what an item shares with others: its group, else its images, else nothing."""
    return item.group or " ".join(image.sha256 for image in item.images) or item.id
