"""The words of a verdict: its sentence, and the sentences that qualify it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flipbench.core.records import Count, Interval, Score
from flipbench.reporting import formats

from ..diagnosis.diagnosis import Diagnosis
from ..diagnosis.section import sentence as diagnosis_sentence
from ..report.titles import VERDICTS
from ..scoring.soundness import EASIER, attraction_sentence, attraction_text
from ..statistics.resampling import Array
from ..statistics.sequential import pairs_until
from .decision import BAD_EDITS, ENOUGH_REFERENCES, Decision, GapEvidence, Reference
from .other_detectors import OtherDetectorResult
from .sensitivity import Changes, detectable_gap


def sentence(benchmark: str, evidence: GapEvidence, decision: Decision, changes: Changes) -> str:
    """Return the verdict as a sentence or two, with the numbers that it rests on."""
    gap, leading, model = evidence.gap, decision.leading, evidence.gap.model
    measured = f"{_measured(gap)}{_comparison(leading, decision)}"
    if decision.evidence_by_pair is not None:
        measured = f"{measured}; {_sequential(decision.evidence_by_pair, evidence.alpha)}"
    if decision.doubts:
        if [doubt.kind for doubt in decision.doubts] == ["needs reference"]:
            head = (
                f"{model} fell more than chance on {benchmark}; a clean model is needed to say why"
            )
        else:
            head = f"There is no verdict on whether {model} was trained on {benchmark}"
        reasons = "; moreover, ".join(doubt.reason for doubt in decision.doubts)
        remedies = "; and ".join(doubt.remedy for doubt in decision.doubts)
        return f"{head}: {reasons}. What to do: {remedies}. Measured: {measured}."
    if decision.verdict == "contaminated" and decision.decides == "old_answer_attraction":
        assert evidence.attraction is not None
        allowed = ""
        if not evidence.exchangeable:
            allowed = (
                f", and still more than chance ({formats.p_equation(decision.p_value or 0.0)}) if"
                f" {100 * BAD_EDITS:g} % of the edits still show the old answer"
            )
        return (
            f"{model} behaves like a model that was trained on {benchmark}:"
            f" {attraction_text(evidence.attraction)}{allowed}. It gets {measured}."
        )
    if decision.verdict == "contaminated":
        return f"{model} behaves like a model that was trained on {benchmark}: it gets {measured}."
    if decision.verdict == "not_detected":
        limit = _limit(changes) if leading is gap and gap.n else ""
        return (
            f"No contamination of {model} with {benchmark} was detected, which does not show that"
            f" it is clean: it gets {measured}.{limit}"
        )
    if decision.verdict == "not_applicable" and evidence.exchangeable is False and gap.n:
        return (
            f"There is no verdict on {model}: the pairs of {benchmark} were found, not made, so one"
            " version may be harder for any model, and no clean model was given for comparison"
            f" (--reference). It gets {measured}, which a difference in difficulty alone may"
            " explain."
        )
    why = leading.warnings[-1] if leading.warnings else "its answers do not allow one"
    return (
        f"There is no verdict on whether {model} was trained on {benchmark}: {why}. Measured:"
        f" {measured}."
    )


def qualifiers(
    evidence: GapEvidence, decision: Decision, diagnosis: Diagnosis | None = None
) -> list[str]:
    """Return what the verdict assumes, and what supports or weakens it."""
    gap, leading = evidence.gap, decision.leading
    lines = [_assumption(evidence, decision)]
    if not decision.references and decision.verdict == "not_detected":
        lines.append(f"{EASIER} Only a clean model (--reference) can show whether these are.")
    if decision.decides != "old_answer_attraction":
        lines.append(attraction_sentence(leading.verdict, evidence.attraction))
    lines.append(memory_sentence(evidence.attraction))
    if diagnosis is not None:
        lines.append(diagnosis_sentence(diagnosis))
    if evidence.exchangeable is not False:
        lines.append(evidence.judged.text())
    if evidence.guessing:
        lines.append(f"{'; '.join(each.text() for each in evidence.guessing)}.")
    lines.append(_unknown_replies(evidence))
    if len(set(evidence.pairs.clusters)) == len(evidence.pairs.ids):
        lines.append("No two pairs are known to share an image: rows are counted as independent.")
    lines += [_reference_line(reference) for reference in decision.references]
    lines += [
        f"The reference {name} is left out: {why}." for name, why in decision.left_out.items()
    ]
    lines.append(_number_of_references(decision))
    if decision.references and evidence.exchangeable is not False:
        lines.append(_disagreement(gap, leading))
    return [line for line in lines if line]


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


def memory_sentence(attraction: Score | None) -> str:
    """Return the share of items answered from memory as a sentence; empty if it was not read."""
    memory = attraction.memory if attraction is not None else None
    if memory is None or memory.share is None or memory.interval is None:
        return ""
    return (
        f"Share of the {memory.n:,} items answered from memory, at least:"
        f" {formats.percent(memory.share)} %"
        f" {formats.interval(memory.interval, formats.percent)}, by the old answers beyond chance;"
        " edits that still show the old answer add to it. It says nothing about single items."
    )


def summary_of(others: Sequence[OtherDetectorResult]) -> list[str]:
    """Return a sentence on the detectors that have no vote; none if they have no results."""
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


def _sequential(running: Array, alpha: float) -> str:
    """Return how much evidence there is at the best look, for use in a sentence."""
    needed, at = 1 / alpha, pairs_until(running, alpha)
    if at is None:
        most = formats.number(float(running.max(initial=1.0)))
        return f"the evidence, valid at every look, is at most {most}, where {needed:.0f} is needed"
    return f"the evidence, valid at every look, reaches {needed:.0f} after {at:,} pairs"


def _comparison(leading: Score, decision: Decision) -> str:
    if not decision.references or leading.statistic is None or leading.reference is None:
        return ""
    name = leading.reference.model
    other_gap = f"the gap of {'' if len(decision.references) > 1 else 'the clean reference '}{name}"
    p = f"; {formats.p_equation(leading.p_value)}" if leading.p_value is not None else ""
    return f"; this is {_difference(leading, other_gap, p)}"


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


def _unknown_replies(evidence: GapEvidence) -> str:
    """Return how many replies were no help on each side, as a sentence."""
    replies, n = evidence.replies, len(evidence.pairs.ids)
    parts = []
    for version in ("original", "perturbed"):
        side = getattr(replies, version)
        parts += [
            f"{int(mask.sum()):,} of {n:,} to {version} versions {verb}"
            for mask, verb in ((side.unreadable, "name no option"), (side.missing, "are missing"))
            if mask.any()
        ]
    if not parts:
        return ""
    return (
        f"Replies: {', '.join(parts)}. The first count as wrong, pairs with a missing one are left"
        " out; a verdict must hold whichever way all of them are counted."
    )


def _assumption(evidence: GapEvidence, decision: Decision) -> str:
    if decision.references:
        return (
            "The verdict rests on the difference from the gaps of clean models on the same items,"
            " which allows for perturbed versions that are harder or easier than their originals,"
            " as long as they are so for all models alike."
        )
    if evidence.exchangeable is False:
        return (
            "The pairs were found, not made, so the two versions are not known to be equally hard,"
            " and only a comparison with a clean model is valid."
        )
    if evidence.exchangeable:
        return "By construction, neither version is harder, so a clean model's gap is 0 on average."
    return (
        "Edited versions may be harder or easier than their originals for a model that has seen"
        " neither, so without a clean model the gap alone proves nothing. Old answers may:"
        " without memory, a wrong answer to the perturbed version names the original's answer no"
        " more often than another."
    )


def _disagreement(gap: Score, leading: Score) -> str:
    """Return what it means that the model's own gap and the comparison differ, if they do."""
    alone, compared = gap.verdict == "contaminated", leading.verdict == "contaminated"
    if alone and leading.verdict == "not_detected":
        return (
            "The model's own gap is significant, but it does not lie significantly below that of"
            " clean models: the perturbed versions are harder than their originals, or the"
            " comparison has too few items."
        )
    if compared and gap.verdict == "not_detected":
        return (
            "The model's own gap is not significant, but it lies significantly below that of clean"
            " models: the perturbed versions are easier than their originals, which hides the gap."
        )
    return ""


def _reference_line(reference: Reference) -> str:
    score, other = reference.score, reference.score.reference
    if other is None or other.statistic is None or score.statistic is None:
        return ""
    original, perturbed = (other.accuracies[side] for side in ("original", "perturbed"))
    decided = score.verdict in ("contaminated", "not_detected")
    verdict = VERDICTS[score.verdict] if decided else "no verdict"
    p = f", {formats.p_equation(score.p_value)}" if score.p_value is not None else ""
    return (
        f"The reference {other.model} gets {original.k:,}/{original.n:,} originals and"
        f" {perturbed.k:,}/{perturbed.n:,} perturbed versions right, a gap of"
        f" {formats.points(other.statistic)} points. The model's gap is"
        f" {_difference(score, 'that')}{p}: {verdict} by this reference alone."
    )


def _number_of_references(decision: Decision) -> str:
    """Return what the number of references is worth."""
    n = len(decision.references)
    if n == 0 or n >= ENOUGH_REFERENCES:
        return ""
    spread = ""
    if decision.difference is not None:
        points = formats.percent(decision.difference.spread)
        gaps = [float(np.nanmean(r.replies.changes())) for r in decision.references]
        listed = ", ".join(map(formats.points, gaps))
        spread = (
            f" The {n} gaps ({listed} points) differ by {points} points (standard deviation) more"
            " than items explain; the interval allows for it."
        )
    alone = (
        " One does not show how much clean models differ, which the interval ignores."
        if n == 1
        else ""
    )
    return (
        f"References: {n}.{spread}{alone} Ten are worth having: where perturbed images are much"
        " worse for strong models, fewer accuse clean models more often than the level says"
        " (docs/validation.md)."
    )
