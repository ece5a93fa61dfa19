"""Two conditions of the same items, compared, and the score of each decision rule.

Detectors that compare accuracies build one `Comparison` and choose from these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Item, JsonDict, ReferenceResult, Score

from ..protocol import rules
from ..protocol.detector import About, Answers
from ..protocol.rules import Bands, Verdict
from ..statistics.paired import GapDifference, gap_difference
from .conditions import Comparison, Condition, Query, QueryPair, Settings, conditions, left_out_note
from .scores import (
    PairedResult,
    answered_by_reference,
    cluster_of,
    no_reference_warning,
    one_sided_p,
    paired,
    score_of,
    tallies,
)

__all__ = [
    "Comparison",
    "Condition",
    "Settings",
    "bands_score",
    "below_reference_score",
    "compare",
    "compare_with_model",
    "gap_score",
    "mcnemar_score",
    "relative_score",
    "threshold_score",
    "with_leakage",
]


class ComparingDetector(Protocol):
    """The attributes of a detector that a comparison needs."""

    about: About
    settings: Settings


def compare(
    detector: ComparingDetector,
    benchmark: PairedBenchmark,
    query_pairs: Sequence[QueryPair],
    names: tuple[str, str],
    answers: Answers,
    reference: Answers | None,
    left_out: str = "",
    n_trials: tuple[int | None, int | None] = (1, 1),
    **more: Any,
) -> Comparison:
    """Compare two conditions of a model.

    Parameters
    ----------
    names : (str, str)
        Of the conditions.
    left_out : str
        Why items of the benchmark are left out; if empty, no note mentions them.
    n_trials : (int or None, int or None)
        See `Condition`.
    **more
        Further fields of the `Comparison`.
    """
    first, second = conditions(query_pairs, names, answers, n_trials)
    return Comparison(
        answers=answers,
        items=[pair.item for pair in query_pairs],
        first=first,
        second=second,
        reference_answers=reference,
        reference=conditions(query_pairs, names, reference, n_trials) if reference else None,
        **_common(detector, benchmark, len(query_pairs), left_out),
        **more,
    )


def compare_with_model(
    detector: ComparingDetector,
    benchmark: PairedBenchmark,
    queries: Sequence[tuple[Item, Query]],
    name: str,
    answers: Answers,
    reference: Answers | None,
    left_out: str = "",
    n_trials: int | None = 1,
    **more: Any,
) -> Comparison:
    """Compare a model with a reference model in one condition; a contaminated model's rises.

    Parameters are those of `compare`.
    """

    def read(of: Answers, condition: str) -> Condition:
        return Condition.read(condition, of, [query for _, query in queries], n_trials)

    return Comparison(
        answers=answers,
        items=[item for item, _ in queries],
        first=read(reference, f"{name} of the reference") if reference else None,
        second=read(answers, name),
        direction="rises",
        reference_answers=reference,
        **_common(detector, benchmark, len(queries), left_out),
        **more,
    )


def _common(
    detector: ComparingDetector, benchmark: PairedBenchmark, n_items: int, left_out: str
) -> dict[str, Any]:
    n_left_out = len(benchmark.pairs) - n_items
    return {
        "detector": detector.about.name,
        "benchmark": benchmark,
        "settings": detector.settings,
        "n_left_out": n_left_out,
        "notes": left_out_note(n_left_out, left_out) if left_out else (),
    }


def gap_score(
    comparison: Comparison,
    rule: str,
    decide: Callable[[PairedResult], Verdict],
    *,
    uses_reference: bool = False,
    p_value: float | None = None,
    tuned_threshold: bool = False,
    details: JsonDict | None = None,
) -> Score:
    """Return the score of a custom rule about the gap; its default p-value is the paired test's."""
    if comparison.first is None:
        return no_reference_score(comparison, rule)
    outcome = paired(comparison)
    return score_of(
        comparison,
        rule,
        outcome,
        decide(outcome) if outcome.n else "not_detected",
        p_value=p_value,
        tuned_threshold=tuned_threshold,
        details=details,
        uses_reference=uses_reference,
    )


def threshold_score(comparison: Comparison, rule: str, *, uses_reference: bool = False) -> Score:
    """Return the score of the sign of the gap: strictly below 0 (above, if it rises)."""
    return gap_score(
        comparison,
        rule,
        lambda outcome: rules.beyond(outcome.gap, 0.0, comparison.direction),
        uses_reference=uses_reference,
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
    b, n, right = score.paired.b, score.n, score.paired.n11 + score.paired.b
    gap = (score.paired.c - b) / n
    leakage = {"k": b, "n": n, "rate": b / n, "normalised": gap * n / right if right else None}
    return score.model_copy(update={"details": score.details | {"leakage": leakage}})


def mcnemar_score(
    comparison: Comparison, rule: str = "mcnemar", *, uses_reference: bool = False
) -> Score:
    """Return the score of the exact one-sided McNemar test of the gap.

    For shares or similarities it is the permutation test that swaps an item's two conditions,
    which for right or wrong is the same test.
    """
    if comparison.first is None:
        return no_reference_score(comparison, rule)
    outcome, alpha = paired(comparison), comparison.settings.alpha
    verdict = rules.significant(one_sided_p(comparison, outcome), alpha)
    refusal = rules.too_few_warning(outcome.n, alpha)
    return score_of(comparison, rule, outcome, verdict, refusal, uses_reference=uses_reference)


def below_reference_score(comparison: Comparison, rule: str) -> Score:
    """Return the score of "the gap is strictly beyond the reference's", on items both answered.

    Beyond is below, or above if the gap rises. The statistic is the model's own gap.
    """
    if comparison.reference is None:
        return no_reference_score(comparison, rule, keep_statistic=True)
    outcome, between = _against_reference(comparison)
    result, details = _reference_result(comparison, between)
    return score_of(
        comparison,
        rule,
        outcome,
        rules.beyond(between.gap, between.reference_gap, comparison.direction),
        p_value=between.p_below,
        details=details,
        uses_reference=True,
        reference=result,
    )


def relative_score(comparison: Comparison) -> Score:
    """Return the score of "the interval of gap - reference gap is beyond 0".

    The statistic is that difference.
    """
    if comparison.reference is None:
        return no_reference_score(comparison, "relative")
    outcome, between = _against_reference(comparison)
    refusal = rules.too_few_warning(between.n, comparison.settings.alpha, two_sided=True)
    verdict: Verdict = "not_detected"
    if between.interval is not None:
        verdict = rules.interval_beyond(between.interval, comparison.direction)
    elif refusal is None:
        refusal = (
            "all items share one image or group, so the difference has no interval; add items with"
            " other images"
        )
    result, details = _reference_result(comparison, between)
    score = score_of(
        comparison,
        "relative",
        outcome,
        verdict,
        refusal,
        p_value=between.p_below,
        details=details,
        uses_reference=True,
        reference=result,
    )
    statistic = between.difference if between.n else None
    return score.model_copy(update={"statistic": statistic, "interval": between.interval})


def _against_reference(comparison: Comparison) -> tuple[PairedResult, GapDifference]:
    """Return the model's result on the items that both answered, and the difference of gaps."""
    assert comparison.reference is not None and comparison.first is not None
    between = gap_difference(
        comparison.first.outcomes,
        comparison.second.outcomes,
        comparison.reference[0].outcomes,
        comparison.reference[1].outcomes,
        generator(comparison.settings.seed, comparison.answers.fingerprint, "relative"),
        clusters=[cluster_of(item) for item in comparison.items],
        n_bootstrap=comparison.settings.n_bootstrap,
        n_permutations=comparison.settings.n_permutations,
        rises=comparison.direction == "rises",
    )
    return paired(comparison, answered_by_reference(comparison)), between


def _reference_result(
    comparison: Comparison, between: GapDifference
) -> tuple[ReferenceResult, JsonDict]:
    """Return the reference's results, and the model's accuracies minus the reference's.

    A difference on the original is inflation, on the variant interference (or damage).
    """
    assert comparison.reference is not None and comparison.first is not None
    columns = [
        side.outcomes for side in (comparison.first, comparison.second, *comparison.reference)
    ]
    rows = [row for row in zip(*columns, strict=True) if None not in row]
    totals = [sum(float(row[column] or 0) for row in rows) for column in range(4)]
    n = between.n
    accuracies, means = tallies(comparison.reference, totals[2:], n)
    result = ReferenceResult(
        model=comparison.reference_answers.model if comparison.reference_answers else "",
        statistic=between.reference_gap if n else None,
        n=n,
        accuracies=accuracies,
        means=means,
        unparsed={side.name: side.n_unparsed for side in comparison.reference},
    )
    changes = {
        condition.name: (totals[i] - totals[2 + i]) / n if n else None
        for i, condition in enumerate(comparison.reference)
    }
    return result, {"change_against_reference": changes}


def no_reference_score(comparison: Comparison, rule: str, *, keep_statistic: bool = False) -> Score:
    """Return "not_applicable"; ``keep_statistic`` if the statistic needs no reference."""
    warning = no_reference_warning(rule, comparison.answers)
    outcome = None if comparison.first is None else paired(comparison)
    score = score_of(comparison, rule, outcome, "not_applicable", warning=warning)
    none = {} if keep_statistic else {"statistic": None, "interval": None, "p_value": None}
    return score.model_copy(update={"lacks_reference": bool(comparison.items), **none})
