"""The score of a comparison: its counts, the reasons for no verdict, and its warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import Any, cast

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Count, JsonDict, Mean, PairedCounts, ReferenceResult, Score

from ..protocol import rules
from ..protocol.detector import Answers
from ..protocol.rules import Verdict
from ..statistics.paired import (
    MeanOutcome,
    Outcome,
    PairedOutcome,
    mean_comparison,
    paired_comparison,
)
from .conditions import Comparison, Condition, Mask, Settings, dropped_note
from .conditions import cluster_of as cluster_of

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
        own_reference = "the model is its own reference: this says nothing about false alarms"
        warnings = [own_reference, *warnings]
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
    conditions = [side for side in (comparison.first, comparison.second) if side is not None]
    clean = comparison.reference if reference and comparison.reference else ()
    clean_refusal = _unparsed_refusal(clean)
    of_reference = f"of the reference, {clean_refusal}" if clean_refusal else None
    refusals = [refusal, _unparsed_refusal(conditions), of_reference]
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
    has_items = outcome is not None and outcome.n > 0
    if p_value is None and outcome is not None and verdict != "not_applicable":
        p_value = one_sided_p(comparison, outcome)
    sides = (*conditions, *clean)
    columns = complete_outcomes(sides)
    accuracies, means = tallies(conditions, columns)
    changes = {} if comparison.first is None else _changes(comparison, sides)
    n_unanswered = outcome.n_dropped if outcome else 0
    return make_score(
        comparison.detector,
        comparison.benchmark,
        comparison.answers,
        rule,
        comparison.settings,
        reference_answers=(
            comparison.reference_answers if reference or comparison.against_clean else None
        ),
        statistic=outcome.gap if outcome is not None and has_items else None,
        direction=comparison.direction,
        unit=comparison.unit,
        interval=outcome.interval if outcome else None,
        p_value=p_value if has_items else None,
        verdict=verdict,
        reason=comparison.reason,
        n=len(columns[0]),
        n_dropped=comparison.n_left_out + n_unanswered,
        accuracies=accuracies,
        means=means,
        paired=(
            PairedCounts(n11=outcome.n11, b=outcome.b, c=outcome.c, n00=outcome.n00)
            if isinstance(outcome, PairedOutcome)
            else None
        ),
        unparsed={condition.name: condition.n_unparsed for condition in conditions},
        reference=reference,
        tuned_threshold=tuned_threshold,
        details={
            **(
                {"n_fell": outcome.n_fell, "n_rose": outcome.n_rose}
                if isinstance(outcome, MeanOutcome)
                else {}
            ),
            "n_left_out": comparison.n_left_out,
            "n_unanswered": n_unanswered,
            **comparison.details,
            **(details or {}),
        },
        per_item=changes,
        warnings=[
            *comparison.notes,
            *(_cautions(comparison, outcome) if outcome is not None else []),
            *reasons,
        ],
    )


def _unparsed_refusal(conditions: Sequence[Condition]) -> str | None:
    return rules.unparsed_warning({c.name: (c.n_unparsed, c.n_replies) for c in conditions})


def _cautions(comparison: Comparison, outcome: PairedResult) -> list[str]:
    """Return the warnings that do not prevent a verdict."""
    cautions = [*dropped_note(outcome.n_dropped, len(comparison.items))]
    n_clusters = len(set(comparison.clusters))
    if n_clusters < len(comparison.items):
        cautions.append(
            f"{len(comparison.items)} items share {n_clusters} images or groups: test and interval"
            " treat each image or group, not each item, as independent"
        )
    return cautions


def has_all_outcomes(sides: Sequence[Condition]) -> Mask:
    """Return which items have an outcome in all conditions, shape (N,)."""
    return np.array([side.answered for side in sides]).all(axis=0).astype(bool)


def complete_outcomes(sides: Sequence[Condition]) -> list[list[float]]:
    """Return each condition's outcomes of the items that have one in all of them."""
    is_complete = has_all_outcomes(sides)
    return [side.values[is_complete].tolist() for side in sides]


def _changes(comparison: Comparison, sides: Sequence[Condition]) -> dict[str, float]:
    """Return the second condition's outcome minus the first's, by the id of complete items."""
    is_complete = has_all_outcomes(sides)
    changes = (sides[1].values - sides[0].values)[is_complete].tolist()
    ids = (item.id for item in compress(comparison.items, is_complete.tolist()))
    return dict(zip(ids, changes, strict=True))


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


def one_sided_p(comparison: Comparison, outcome: PairedResult) -> float:
    """Return the p-value against "the gap does not move as a contaminated model's does"."""
    if isinstance(outcome, MeanOutcome):
        return outcome.p_one_sided
    return outcome.p_drop if comparison.direction == "falls" else outcome.p_rise


def paired_result(comparison: Comparison, also: Sequence[Condition] = ()) -> PairedResult:
    """Compare the two conditions, on the items that have an outcome in the conditions ``also``."""
    assert comparison.first is not None
    baseline, variant = comparison.first, comparison.second
    if also:
        values = zip(baseline.outcomes, has_all_outcomes((baseline, *also)).tolist(), strict=True)
        baseline = replace(baseline, outcomes=[value if keep else None for value, keep in values])
    settings, clusters = comparison.settings, comparison.clusters
    rng = generator(settings.seed, comparison.answers.model, "bootstrap")
    if baseline.right_or_wrong and variant.right_or_wrong:
        return paired_comparison(
            cast(Sequence[Outcome], baseline.outcomes),
            cast(Sequence[Outcome], variant.outcomes),
            clusters=clusters,
        )
    return mean_comparison(
        baseline.outcomes,
        variant.outcomes,
        rng,
        rises=comparison.direction == "rises",
        clusters=clusters,
        n_bootstrap=settings.n_bootstrap,
        n_permutations=settings.n_permutations,
    )
