"""One model, one benchmark, one sentence: the perturbation gap's verdict and its qualifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Count, Interval, Score
from flipbench.reporting import formats

from ..protocol.rules import Verdict
from ..report.tables import GAP, TEST, VERDICTS
from .other_detectors import OtherDetectorResult, least_significant, other_results
from .sensitivity import Sensitivity, detectable_gap, sensitivity

RELATIVE = "relative"


@dataclass(frozen=True)
class Evidence:
    """What a verdict is based on.

    Attributes
    ----------
    model : str
        The model's name on the page.
    scores : sequence of Score
        All scores of the model, against every reference if a rule takes one.
    references : mapping of str to sequence of Score
        The clean reference models' own scores, by model name.
    not_run : mapping of str to str
        Detectors that could not be run on the model, and why.
    """

    benchmark: PairedBenchmark
    model: str
    scores: Sequence[Score]
    references: Mapping[str, Sequence[Score]]
    not_run: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DetectionVerdict:
    """A verdict in words and numbers.

    Attributes
    ----------
    rule : str
        The rule that decides: "mcnemar", or "relative" if the two versions of an item are not
        known to be equally hard.
    sentence : str
        The verdict. "not_detected" is never worded "clean".
    qualifiers : tuple of str
        What it assumes, what the references show, and what supports or weakens it.
    gap : Score
        The model's own gap: counts, interval, and p-value if any.
    leading : Score
        The score that decides; the same as ``gap`` under rule "mcnemar".
    against : tuple of Score
        The model's gap against each reference.
    other_detectors : tuple of OtherDetectorResult
        The results of all other detectors, which have no vote.
    """

    model: str
    verdict: Verdict
    rule: str
    sentence: str
    qualifiers: tuple[str, ...]
    gap: Score
    leading: Score
    against: tuple[Score, ...]
    sensitivity: Sensitivity
    other_detectors: tuple[OtherDetectorResult, ...]


def find(evidence: Evidence) -> DetectionVerdict:
    """Return the verdict on a model.

    It is based on the exact McNemar test of the perturbation gap, fixed in advance. Rule "relative"
    replaces it if the pairs were found, or if that test flags a clean reference: either means that
    one version may be harder. Of several references, the one with the weakest evidence of
    contamination decides.
    """
    gap = gap_scores(evidence.scores, TEST)[0]
    against = gap_scores(evidence.scores, RELATIVE)
    flagged = _flagged_references(evidence)
    is_relative = evidence.benchmark.exchangeable is False or bool(flagged)
    leading = least_significant(against) if is_relative else gap
    others = other_results(evidence.scores, evidence.references, evidence.not_run)
    return DetectionVerdict(
        model=evidence.model,
        verdict=leading.verdict,
        rule=leading.rule,
        sentence=_sentence(evidence.model, gap, leading),
        qualifiers=tuple(_qualifiers(evidence, gap, against, flagged, others)),
        gap=gap,
        leading=leading,
        against=tuple(s for s in against if s.reference_fingerprint),
        sensitivity=sensitivity(gap, leading, has_reference=bool(evidence.references)),
        other_detectors=others,
    )


def interval_text(between: Interval) -> str:
    """Return the interval of a gap for use in a sentence.

    >>> interval_text(Interval(low=-0.142, high=0.006))
    '95 % interval −14.2 to +0.6'
    """
    low, high = formats.points(between.low), formats.points(between.high)
    return f"{100 * between.level:g} % interval {low} to {high}"


def count_text(count: Count, noun: str) -> str:
    """Return k of n for use in a sentence.

    >>> count_text(Count(k=7, n=10), "originals")
    '7 of 10 originals (70.0 %)'
    """
    return f"{count.k:,} of {count.n:,} {noun} ({formats.percent(count.k / count.n)} %)"


def gap_scores(scores: Sequence[Score], rule: str) -> list[Score]:
    """Return the scores of one rule of the perturbation gap."""
    return [score for score in scores if (score.detector, score.rule) == (GAP, rule)]


def _flagged_references(evidence: Evidence) -> list[str]:
    """Return the clean references that the McNemar test calls contaminated."""
    return [
        name
        for name, scores in evidence.references.items()
        if any(score.verdict == "contaminated" for score in gap_scores(scores, TEST))
    ]


def _measured(gap: Score) -> str:
    """Return accuracies and gap for use in a sentence."""
    if not gap.n or gap.statistic is None or gap.interval is None:
        return "no pair has an answer in both versions"
    p = (
        ""
        if gap.p_value is None
        else f"; exact one-sided McNemar {formats.p_equation(gap.p_value)}"
    )
    return (
        f"{count_text(gap.accuracies['original'], 'originals')} and"
        f" {count_text(gap.accuracies['perturbed'], 'answer-flipped versions')} right, a gap of"
        f" {formats.points(gap.statistic)} points ({interval_text(gap.interval)}{p})"
    )


def _difference(score: Score, other_gap: str) -> str:
    """Return how far a gap lies below or above ``other_gap``, a reference's."""
    assert score.statistic is not None
    side = "below" if score.statistic < 0 else "above"
    between = f" ({interval_text(score.interval)})" if score.interval else ""
    return f"{abs(100 * score.statistic):.1f} points {side} {other_gap}{between}"


def _sentence(model: str, gap: Score, leading: Score) -> str:
    name, measured = gap.benchmark, _measured(gap)
    comparison, limit = "", _limit(gap) if leading is gap and gap.n else ""
    if leading is not gap and leading.statistic is not None:
        reference = leading.reference.model if leading.reference else ""
        other_gap = f"the gap of the clean reference {reference}"
        comparison = f"; this is {_difference(leading, other_gap)}"
    if leading.verdict == "contaminated":
        return (
            f"{model} behaves like a model that was trained on {name}: it gets"
            f" {measured}{comparison}."
        )
    if leading.verdict == "not_detected":
        return (
            f"No contamination of {model} with {name} was detected, which does not show that it is"
            f" clean: it gets {measured}{comparison}.{limit}"
        )
    if leading.verdict == "not_applicable" and not leading.reference_fingerprint and gap.n:
        return (
            f"There is no verdict on {model}: the pairs of {name} were found, not made, so one"
            " version may be harder for any model, and no clean model was given for comparison. It"
            f" gets {measured}, which a difference in difficulty alone may explain."
        )
    why = leading.warnings[-1] if leading.warnings else "its answers do not allow one"
    return (
        f"There is no verdict on whether {model} was trained on {name}: {why}. Measured:"
        f" {measured}."
    )


def _limit(gap: Score) -> str:
    """Return the gaps that the test is likely to miss, as a sentence."""
    smallest = detectable_gap(gap)
    if smallest is None:
        return f" With {gap.n:,} pairs, the test misses any gap more often than one time in five."
    return (
        f" With {gap.n:,} pairs, the test detects a true gap of {formats.points(-smallest)} points"
        " four times in five; it misses smaller gaps more often."
    )


def _qualifiers(
    evidence: Evidence,
    gap: Score,
    against: Sequence[Score],
    flagged: Sequence[str],
    others: Sequence[OtherDetectorResult],
) -> list[str]:
    lines = [_assumption(evidence, flagged)]
    lines += [_comparison(score) for score in against if score.statistic is not None]
    if len(evidence.references) == 1:
        lines.append(
            "One clean model does not show how much clean models vary: part of the difference may"
            " be that model's own luck with these items. Pass several references if you can."
        )
    if gap.verdict == "not_detected" and any(s.verdict == "contaminated" for s in against):
        lines.append(
            "The two rules disagree: the gap alone is not significant, but it lies significantly"
            " below that of a clean model. This happens when the perturbed versions are easier than"
            " their originals."
        )
    return [*lines, *_summary_of(others)]


def _assumption(evidence: Evidence, flagged: Sequence[str]) -> str:
    if evidence.benchmark.exchangeable is False:
        return (
            "The pairs were found, not made, so the two versions are not known to be equally hard,"
            " and only a comparison with a clean model is valid."
        )
    if flagged:
        who, do = ("reference", "does") if len(flagged) == 1 else ("references", "do")
        return (
            f"The clean {who} {' and '.join(flagged)} also {do} significantly worse on the"
            " perturbed versions. These are therefore harder than their originals, and the verdict"
            " is based on the difference between the gaps."
        )
    if evidence.benchmark.exchangeable:
        return "By construction, neither version is harder, so a clean model's gap is 0 on average."
    tested = "no clean model was given to test it"
    if evidence.references:
        tested = "no clean reference given here does significantly worse on the perturbed versions"
    return (
        "The verdict assumes that the perturbed versions are no harder than their originals for a"
        f" model that has seen neither. The method's paper assumes this of edited images; {tested}."
    )


def _comparison(score: Score) -> str:
    other = score.reference
    assert other is not None and other.statistic is not None
    original, perturbed = (other.accuracies[side] for side in ("original", "perturbed"))
    decided = score.verdict in ("contaminated", "not_detected")
    verdict = VERDICTS[score.verdict] if decided else "no verdict"
    p = f", {formats.p_equation(score.p_value)}" if score.p_value is not None else ""
    return (
        f"The reference {other.model} gets {original.k:,}/{original.n:,} originals and"
        f" {perturbed.k:,}/{perturbed.n:,} perturbed versions right, a gap of"
        f" {formats.points(other.statistic)} points. The model's gap is"
        f" {_difference(score, 'that')}{p}: {verdict}."
    )


def _summary_of(others: Sequence[OtherDetectorResult]) -> list[str]:
    decided = [r for r in others if r.verdict in ("contaminated", "not_detected")]
    if not decided:
        return []
    flagged = [result for result in decided if result.verdict == "contaminated"]
    n_sound = sum(not result.is_doubtful for result in flagged)
    names = f" ({', '.join(result.title for result in flagged)})" if flagged else ""
    doubt = ""
    if n_sound < len(flagged):
        doubt = (
            f"; {n_sound} {'does' if n_sound == 1 else 'do'} so after correction for their number"
            " and without a suspected false alarm"
        )
    return [
        f"Other detectors: {len(flagged)} of {len(decided)} with a verdict"
        f" {'calls' if len(flagged) == 1 else 'call'} the model contaminated{names}{doubt}. They"
        " have no vote: this page cannot show how often each errs on clean models of this kind."
    ]
