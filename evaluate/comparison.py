"""Two conditions of the same items: the counts, the guards and the score of each decision rule.

The detectors that compare accuracies build one `Comparison` and pick rules from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flipbench.evaluate import rules
from flipbench.evaluate.detector import Answers
from flipbench.evaluate.rules import Direction, Verdict
from flipbench.evaluate.statistics import (
    GapDifference,
    Outcome,
    PairedOutcome,
    gap_difference,
    paired_comparison,
)
from flipbench.paired import PairedBenchmark
from flipbench.randomness import generator
from flipbench.records import Item, JsonDict, Probe, Score


@dataclass(frozen=True)
class Condition:
    """One model's outcomes in one condition, shape (N,), and how many replies named no option."""

    name: str
    outcomes: Sequence[Outcome]
    n_unparsed: int
    n_replies: int

    @classmethod
    def of(
        cls, name: str, answers: Answers, probes: Sequence[Probe], gold: Sequence[int]
    ) -> Condition:
        """Read the answers to one probe for each item."""
        n_replies = sum(answers.to(probe) is not None for probe in probes)
        return cls(name, answers.outcomes(probes, gold), answers.n_unparsed(probes), n_replies)


@dataclass(frozen=True)
class Settings:
    """What the rules are run with: test level, bootstrap and permutation sizes, seed."""

    alpha: float = rules.ALPHA
    n_bootstrap: int = 2_000
    n_permutations: int = 9_999
    seed: int = 0


@dataclass(frozen=True)
class Comparison:
    """A model in two conditions (N items each), and perhaps a reference model in the same two.

    Attributes
    ----------
    items : sequence of Item, shape (N,)
        The original items compared.
    first, second : Condition or None
        The statistic is accuracy in ``second`` - accuracy in ``first``; ``first`` is None where it
        would be the missing reference's.
    against : Answers or None
        The reference model.
    reference : (Condition, Condition) or None
        Its two conditions, for rules that compare gaps.
    direction : {"falls", "rises"}
        How a contaminated model's statistic moves.
    n_left_out : int
        Items of the benchmark that could not be put to a model at all.
    notes : tuple of str
        Warnings for every score.
    details : dict
        Added to every score's details.
    """

    detector: str
    benchmark: PairedBenchmark
    answers: Answers
    items: Sequence[Item]
    first: Condition | None
    second: Condition
    direction: Direction = "falls"
    against: Answers | None = None
    reference: tuple[Condition, Condition] | None = None
    n_left_out: int = 0
    notes: tuple[str, ...] = ()
    details: JsonDict = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)


def threshold_score(comparison: Comparison, rule: str, *, uses_reference: bool = False) -> Score:
    """Return the score of the sign of the gap: strictly below 0 (above, where it rises)."""
    if comparison.first is None:
        return _lacks_reference(comparison, rule)
    outcome = _paired(comparison)
    verdict = rules.beyond(outcome.gap, 0.0, comparison.direction)
    return _score(comparison, rule, outcome, verdict, uses_reference=uses_reference)


def mcnemar_score(comparison: Comparison, *, uses_reference: bool = False) -> Score:
    """Return the score of the exact one-sided McNemar test of the gap."""
    if comparison.first is None:
        return _lacks_reference(comparison, "mcnemar")
    outcome, alpha = _paired(comparison), comparison.settings.alpha
    verdict = rules.significant(_one_sided_p(comparison, outcome), alpha)
    refusal = rules.too_few_warning(outcome.n, alpha)
    return _score(comparison, "mcnemar", outcome, verdict, refusal, uses_reference=uses_reference)


def below_reference_score(comparison: Comparison, rule: str) -> Score:
    """Return the score of "the gap is strictly below the reference's", on items both answered.

    The statistic is the model's own gap.
    """
    if comparison.reference is None:
        return _lacks_reference(comparison, rule, keep_statistic=True)
    outcome, between = _against_reference(comparison)
    return _score(
        comparison,
        rule,
        outcome,
        rules.beyond(between.gap, between.reference_gap),
        p_value=between.p_below,
        details=_reference_details(comparison, between),
        uses_reference=True,
    )


def relative_score(comparison: Comparison) -> Score:
    """Return the score of "the interval of gap - reference gap lies below 0".

    The statistic is that difference.
    """
    if comparison.reference is None:
        return _lacks_reference(comparison, "relative")
    outcome, between = _against_reference(comparison)
    refusal = rules.too_few_warning(between.n, comparison.settings.alpha, two_sided=True)
    verdict: Verdict = "not_detected"
    if between.interval is not None:
        verdict = rules.interval_beyond(between.interval)
    elif refusal is None:
        refusal = (
            "all items share one image or group, so the difference has no interval; add others"
        )
    score = _score(
        comparison,
        "relative",
        outcome,
        verdict,
        refusal,
        p_value=between.p_below,
        details=_reference_details(comparison, between),
        uses_reference=True,
    )
    statistic = between.difference if between.n else None
    return score.model_copy(update={"statistic": statistic, "interval": between.interval})


def cluster_of(item: Item) -> str:
    """Return what an item shares with others: its group, else its images, else nothing."""
    return item.group or " ".join(image.sha256 for image in item.images) or item.id


def _one_sided_p(comparison: Comparison, outcome: PairedOutcome) -> float:
    return outcome.p_drop if comparison.direction == "falls" else outcome.p_rise


def _paired(comparison: Comparison, keep: Sequence[bool] | None = None) -> PairedOutcome:
    assert comparison.first is not None
    first: Sequence[Outcome] = comparison.first.outcomes
    if keep is not None:
        first = [o if kept else None for o, kept in zip(first, keep, strict=True)]
    return paired_comparison(
        first,
        comparison.second.outcomes,
        clusters=[cluster_of(item) for item in comparison.items],
        rng=generator(comparison.settings.seed, comparison.answers.fingerprint, "bootstrap"),
        n_bootstrap=comparison.settings.n_bootstrap,
    )


def _answered_by_reference(comparison: Comparison) -> list[bool]:
    assert comparison.reference is not None
    one, two = comparison.reference
    return [None not in pair for pair in zip(one.outcomes, two.outcomes, strict=True)]


def _against_reference(comparison: Comparison) -> tuple[PairedOutcome, GapDifference]:
    """Return the model's outcome on the items that both answered, and the difference of gaps."""
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
    )
    return _paired(comparison, _answered_by_reference(comparison)), between


def _reference_details(comparison: Comparison, between: GapDifference) -> JsonDict:
    """Return the reference's numbers, and how each accuracy differs from the reference's.

    Differing on the original is inflation, on the variant interference (or damage).
    """
    assert comparison.reference is not None and comparison.first is not None
    sides = (comparison.first, comparison.second, *comparison.reference)
    rows = [row for row in zip(*(side.outcomes for side in sides), strict=True) if None not in row]
    right = [sum(bool(row[side]) for row in rows) for side in range(4)]
    names = [condition.name for condition in comparison.reference]
    n = between.n
    return {
        "reference": {
            "model": comparison.against.model if comparison.against else "",
            "gap": between.reference_gap if n else None,
            "accuracies": {name: {"k": right[2 + i], "n": n} for i, name in enumerate(names)},
            "unparsed": {side.name: side.n_unparsed for side in comparison.reference},
        },
        "change_against_reference": {
            name: (right[i] - right[2 + i]) / n if n else None for i, name in enumerate(names)
        },
    }


def _lacks_reference(comparison: Comparison, rule: str, *, keep_statistic: bool = False) -> Score:
    """Return "not_applicable"; the statistic stays where it needs no reference."""
    why = (
        f"rule {rule!r} compares with a clean model and none was given for"
        f" {comparison.answers.model}: put the model it was trained from (dose 0) into the grid, or"
        " pass its answers as reference"
    )
    outcome = None if comparison.first is None else _paired(comparison)
    score = _score(comparison, rule, outcome, "not_applicable", warning=why)
    if keep_statistic:
        return score
    return score.model_copy(update={"statistic": None, "interval": None, "p_value": None})


def _score(
    comparison: Comparison,
    rule: str,
    outcome: PairedOutcome | None,
    verdict: Verdict,
    refusal: str | None = None,
    *,
    p_value: float | None = None,
    details: JsonDict | None = None,
    uses_reference: bool = False,
    warning: str = "",
) -> Score:
    """Return a score whose statistic is the gap; what forbids a verdict is added and said."""
    warnings = [*comparison.notes, *([warning] if warning else [])]
    refusals = [refusal, *_unparsed_refusals(comparison, uses_reference)]
    if not comparison.items:
        verdict = "not_applicable"
        refusals = ["no item of the benchmark can be put to a model this way"]
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
        p_value = _one_sided_p(comparison, outcome)
    against = comparison.against.fingerprint if comparison.against and uses_reference else ""
    keep = _answered_by_reference(comparison) if comparison.reference and uses_reference else None
    return Score(
        detector=comparison.detector,
        rule=rule,
        model=comparison.answers.model,
        model_fingerprint=comparison.answers.fingerprint,
        benchmark=comparison.benchmark.name,
        benchmark_id=comparison.benchmark.id,
        reference_fingerprint=against,
        statistic=outcome.gap if outcome is not None and compared else None,
        interval=outcome.interval if outcome else None,
        p_value=p_value if compared else None,
        verdict=verdict,
        n=outcome.n if outcome else sum(o is not None for o in comparison.second.outcomes),
        n_dropped=comparison.n_left_out + n_unanswered,
        details={
            **_counts(comparison, outcome),
            "n_left_out": comparison.n_left_out,
            "n_unanswered": n_unanswered,
            "direction": comparison.direction,
            "alpha": comparison.settings.alpha,
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


def _cautions(comparison: Comparison, outcome: PairedOutcome) -> list[str]:
    """Return what a reader should know though it forbids no verdict."""
    found = []
    if outcome.n_dropped:
        found.append(
            f"{outcome.n_dropped} of {len(comparison.items)} items are dropped: an answer is"
            " missing; run the same command again to ask anew"
        )
    n_clusters = len({cluster_of(item) for item in comparison.items})
    if n_clusters < len(comparison.items):
        found.append(
            f"{len(comparison.items)} items share {n_clusters} images or groups: the interval"
            " draws whole groups, but the exact McNemar test takes items for independent"
        )
    if outcome.n and outcome.b + outcome.c == 0:
        found.append(
            "no item differs between the two conditions: an interval of width 0 understates what"
            " is unknown"
        )
    return found


def _counts(comparison: Comparison, outcome: PairedOutcome | None) -> JsonDict:
    first, second = comparison.first, comparison.second
    if outcome is None or first is None:
        answered = [o for o in second.outcomes if o is not None]
        return {
            "accuracies": {second.name: {"k": sum(answered), "n": len(answered)}},
            "unparsed": {second.name: second.n_unparsed},
        }
    return {
        "accuracies": {
            first.name: {"k": outcome.k_original, "n": outcome.n},
            second.name: {"k": outcome.k_perturbed, "n": outcome.n},
        },
        "n11": outcome.n11,
        "b": outcome.b,
        "c": outcome.c,
        "n00": outcome.n00,
        "unparsed": {first.name: first.n_unparsed, second.name: second.n_unparsed},
    }


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
