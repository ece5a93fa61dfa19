"""The words of a verdict: its sentence, and the sentences that qualify it."""

from __future__ import annotations

from collections.abc import Sequence

from flipbench.core.records import Count, Interval, Score
from flipbench.reporting import formats

from ..diagnosis.section import sentence as diagnosis_sentence
from ..report.tables import VERDICTS
from ..scoring.soundness import EASIER, attraction_sentence
from .basis import Facts
from .other_detectors import OtherDetectorResult
from .sensitivity import Changes, detectable_gap


def sentence(facts: Facts, changes: Changes) -> str:
    """Return the verdict as a sentence or two, with the numbers that it rests on."""
    gap, leading, model = facts.gap, facts.leading, facts.evidence.model
    name, measured = gap.benchmark, _measured(gap)
    comparison = ""
    if leading is not gap and leading.statistic is not None:
        reference = leading.reference.model if leading.reference else ""
        other_gap = f"the gap of the clean reference {reference}"
        p = f"; {formats.p_equation(leading.p_value)}" if leading.p_value is not None else ""
        comparison = f"; this is {_difference(leading, other_gap, p)}"
    if facts.doubts:
        reasons = "; moreover, ".join(doubt.reason for doubt in facts.doubts)
        remedies = "; and ".join(doubt.remedy for doubt in facts.doubts)
        return (
            f"There is no verdict on whether {model} was trained on {name}: {reasons}. What to do:"
            f" {remedies}. Measured: {measured}{comparison}."
        )
    if leading.verdict == "contaminated":
        return (
            f"{model} behaves like a model that was trained on {name}: it gets"
            f" {measured}{comparison}."
        )
    if leading.verdict == "not_detected":
        limit = _limit(changes) if leading is gap and gap.n else ""
        return (
            f"No contamination of {model} with {name} was detected, which does not show that it is"
            f" clean: it gets {measured}{comparison}.{limit}"
        )
    if leading.verdict == "not_applicable" and not leading.reference_fingerprint and gap.n:
        return (
            f"There is no verdict on {model}: the pairs of {name} were found, not made, so one"
            " version may be harder for any model, and no clean model was given for comparison"
            f" (--reference). It gets {measured}, which a difference in difficulty alone may"
            " explain."
        )
    why = leading.warnings[-1] if leading.warnings else "its answers do not allow one"
    return (
        f"There is no verdict on whether {model} was trained on {name}: {why}. Measured:"
        f" {measured}."
    )


def qualifiers(facts: Facts) -> list[str]:
    """Return what the verdict assumes, and what supports or weakens it."""
    benchmark, gap, leading = facts.evidence.benchmark, facts.gap, facts.leading
    lines = [_assumption(facts)]
    if not facts.against and leading is gap and leading.verdict == "not_detected":
        lines.append(f"{EASIER} Only a clean model (--reference) can show whether these are.")
    lines.append(attraction_sentence(leading.verdict, facts.evidence.attraction()))
    if (explained := facts.evidence.explained) is not None:
        lines.append(diagnosis_sentence(explained))
    if benchmark.exchangeable is not False:
        lines.append(facts.judged.text())
    if facts.guessing:
        lines.append(f"{'; '.join(one.text() for one in facts.guessing)}.{_unparsed(gap)}")
    lines += [_comparison(score) for score in facts.against if score.statistic is not None]
    if facts.panel is not None:
        lines.append(facts.panel.sentence)
    elif facts.against:
        lines.append(
            "The interval of the difference is over items: it ignores that clean models differ, and"
            " one clean model does not show how much they do. Pass several references if you can."
        )
    if facts.against and benchmark.exchangeable is not False:
        lines.append(_disagreement(gap, leading))
    return [line for line in (*lines, *_summary_of(facts.other_detectors)) if line]


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


def _difference(score: Score, other_gap: str, p: str = "") -> str:
    """Return how far a gap lies below or above ``other_gap``, a reference's."""
    assert score.statistic is not None
    side = "below" if score.statistic < 0 else "above"
    between = f" ({interval_text(score.interval)}{p})" if score.interval else ""
    return f"{abs(100 * score.statistic):.1f} points {side} {other_gap}{between}"


def _limit(changes: Changes) -> str:
    """Return the gaps that the test is likely to miss, as a sentence."""
    about, n = ("about ", changes.worth) if changes.is_shared else ("", changes.gap.n)
    pairs = f"{n:,.0f} pairs"
    if changes.is_shared:
        pairs = f"{changes.gap.n:,} pairs, worth about {n:,.0f} that share no image,"
    smallest = detectable_gap(changes)
    if smallest is None:
        return f" With {pairs} the test misses any gap more often than one time in five."
    return (
        f" With {pairs} the test detects a true gap of {about}{formats.points(-smallest)} points"
        " four times in five; it misses smaller gaps more often."
    )


def _unparsed(gap: Score) -> str:
    """Return how many replies on each side name no option, as a sentence."""
    counts = [
        f"{count:,}/{gap.n:,} ({side})" for side, count in gap.unparsed.items() if count is not None
    ]
    return f" Replies that name no option: {', '.join(counts)}." if counts else ""


def _assumption(facts: Facts) -> str:
    exchangeable = facts.evidence.benchmark.exchangeable
    if exchangeable is False:
        return (
            "The pairs were found, not made, so the two versions are not known to be equally hard,"
            " and only a comparison with a clean model is valid."
        )
    if facts.against:
        return (
            "The verdict is based on the difference from a clean model's gap on the same items,"
            " which allows for perturbed versions that are harder or easier than their originals,"
            " as long as they are so for both models. Of several references, the one with the"
            " weakest evidence of contamination decides."
        )
    if exchangeable:
        return "By construction, neither version is harder, so a clean model's gap is 0 on average."
    return (
        "The verdict assumes that the perturbed versions are as hard as their originals for a model"
        " that has seen neither. The method's paper assumes this of edited images; no clean model"
        " was given to test it."
    )


def _disagreement(gap: Score, leading: Score) -> str:
    """Return what it means that the model's own gap and the comparison differ, if they do."""
    alone, compared = gap.verdict == "contaminated", leading.verdict == "contaminated"
    if alone and leading.verdict == "not_detected":
        return (
            "The model's own gap is significant, but it does not lie significantly below a clean"
            " model's: the perturbed versions are harder than their originals, or the comparison"
            " has too few items."
        )
    if compared and gap.verdict == "not_detected":
        return (
            "The model's own gap is not significant, but it lies significantly below that of every"
            " clean model given: the perturbed versions are easier than their originals, which"
            " hides the gap."
        )
    return ""


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
