"""One model, one benchmark, one sentence: what the perturbation gap says, and what qualifies it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Interval, Score
from flipbench.reporting import formats

from ..protocol.rules import Verdict
from ..report.tables import GAP, TEST, accuracies
from .changes import Changes, changes, gap_found
from .other_detectors import OtherDetectorResult, least_significant, opinions

RELATIVE = "relative"


@dataclass(frozen=True)
class Evidence:
    """What a verdict is made of.

    Attributes
    ----------
    model : str
        What the page calls the model.
    scores : sequence of Score
        All of the model, against every reference where a rule takes one.
    references : mapping of str to sequence of Score
        What the detectors say of each clean reference model by itself, by its name.
    not_run : mapping of str to str
        Detectors that could not be put to the model, and why.
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
        The rule the verdict goes by: "mcnemar", or "relative" where the two versions of an item
        are not known to be equally hard.
    sentence : str
        The verdict. "not_detected" is never worded "clean".
    qualifiers : tuple of str
        What it rests on, what the references show, and what speaks for or against it.
    gap : Score
        The gap of the model itself: counts, interval, p-value where there is one.
    leading : Score
        The score that decides; the same as ``gap`` under rule "mcnemar".
    against : tuple of Score
        The model's gap against each reference.
    """

    model: str
    verdict: Verdict
    rule: str
    sentence: str
    qualifiers: tuple[str, ...]
    gap: Score
    leading: Score
    against: tuple[Score, ...]
    changes: Changes
    opinions: tuple[OtherDetectorResult, ...]


def find(evidence: Evidence) -> DetectionVerdict:
    """Return the verdict on a model.

    It goes by the exact McNemar test of the perturbation gap, chosen beforehand. It goes by rule
    "relative" where the pairs were found, or where a clean reference falls under that test itself:
    both show that one version may be harder. Of several references the one that speaks least for
    contamination decides.
    """
    gap = _rule(evidence.scores, TEST)[0]
    against = _rule(evidence.scores, RELATIVE)
    fallen = _fallen_references(evidence)
    is_relative = evidence.benchmark.exchangeable is False or bool(fallen)
    leading = least_significant(against) if is_relative else gap
    said = opinions(evidence.scores, evidence.references, evidence.not_run)
    return DetectionVerdict(
        model=evidence.model,
        verdict=leading.verdict,
        rule=leading.rule,
        sentence=_sentence(evidence.model, gap, leading),
        qualifiers=tuple(_qualifiers(evidence, gap, against, fallen, said)),
        gap=gap,
        leading=leading,
        against=tuple(s for s in against if s.reference_fingerprint),
        changes=changes(gap, leading, has_reference=bool(evidence.references)),
        opinions=said,
    )


def in_words(between: Interval) -> str:
    """Return an interval of a gap in words.

    >>> in_words(Interval(low=-0.142, high=0.006))
    '95 % interval −14.2 to +0.6'
    """
    low, high = formats.points(between.low), formats.points(between.high)
    return f"{100 * between.level:g} % interval {low} to {high}"


def p_in_words(p: float) -> str:
    """Return a p-value as "p = .032" or "p < .001"."""
    text = formats.p_value(p)
    return f"p {text[0]} {text[1:]}" if text[0] in "<>" else f"p = {text}"


def counted(k: int, n: int, what: str) -> str:
    """Return k of n in words: "7 of 10 originals (70.0 %)"."""
    return f"{k:,} of {n:,} {what} ({formats.percent(k / n)} %)"


def _rule(scores: Sequence[Score], rule: str) -> list[Score]:
    return [score for score in scores if (score.detector, score.rule) == (GAP, rule)]


def _fallen_references(evidence: Evidence) -> list[str]:
    """Return the clean references that the test itself calls contaminated."""
    return [
        name
        for name, scores in evidence.references.items()
        if any(score.verdict == "contaminated" for score in _rule(scores, TEST))
    ]


def _measured(gap: Score) -> str:
    """Return accuracies and gap in words."""
    right = accuracies(gap)
    if not gap.n or gap.statistic is None or gap.interval is None:
        return "no pair has an answer in both versions"
    test = f"; exact one-sided McNemar {p_in_words(gap.p_value)}" if gap.p_value is not None else ""
    return (
        f"{counted(*right['original'], 'originals')} and"
        f" {counted(*right['perturbed'], 'answer-flipped twins')} right, a gap of"
        f" {formats.points(gap.statistic)} points ({in_words(gap.interval)}{test})"
    )


def _difference(score: Score, whose: str) -> str:
    """Return how a gap lies against a reference's, in words."""
    assert score.statistic is not None
    side = "below" if score.statistic < 0 else "above"
    between = f" ({in_words(score.interval)})" if score.interval else ""
    return f"{abs(100 * score.statistic):.1f} points {side} {whose}{between}"


def _sentence(model: str, gap: Score, leading: Score) -> str:
    name, measured = gap.benchmark, _measured(gap)
    more, limit = "", _limit(gap) if leading is gap and gap.n else ""
    if leading is not gap and leading.statistic is not None:
        reference = leading.reference.model if leading.reference else ""
        more = f"; that lies {_difference(leading, f'the gap of the clean reference {reference}')}"
    if leading.verdict == "contaminated":
        return f"{model} behaves like a model that was trained on {name}: it gets {measured}{more}."
    if leading.verdict == "not_detected":
        return (
            f"No contamination of {model} with {name} was detected, which does not make it clean:"
            f" it gets {measured}{more}.{limit}"
        )
    if leading.verdict == "not_applicable" and not leading.reference_fingerprint and gap.n:
        return (
            f"There is no verdict on {model}: the pairs of {name} were found, not made, so one"
            f" version may be harder for any model, and no clean model was given to compare with."
            f" It gets {measured}, which difficulty alone may explain."
        )
    why = leading.warnings[-1] if leading.warnings else "its answers do not allow one"
    return f"There is no verdict on {model} and {name}: {why}. Measured: {measured}."


def _limit(gap: Score) -> str:
    """Return which gaps the test would have missed."""
    least = gap_found(gap)
    if least is None:
        return f" With {gap.n} pairs it would miss most gaps."
    return (
        f" With {gap.n:,} pairs the test finds a true gap of {formats.points(-least)} points four"
        " times in five; it misses smaller ones more often."
    )


def _qualifiers(
    evidence: Evidence,
    gap: Score,
    against: Sequence[Score],
    fallen: Sequence[str],
    said: Sequence[OtherDetectorResult],
) -> list[str]:
    lines = [_rests_on(evidence, fallen)]
    for score in against:
        if score.statistic is not None:
            lines.append(_beside(score))
    if len(evidence.references) == 1:
        lines.append(
            "One clean model does not tell how much clean models differ from each other: its own"
            " luck with these items is part of the difference. Give several if you can."
        )
    if gap.verdict == "not_detected" and any(s.verdict == "contaminated" for s in against):
        lines.append(
            "The two rules disagree. The gap alone is not significant, but it lies below that of a"
            " clean model; this happens where the twins are easier than their originals."
        )
    return [*lines, *_of_others(said)]


def _rests_on(evidence: Evidence, fallen: Sequence[str]) -> str:
    if evidence.benchmark.exchangeable is False:
        return (
            "The pairs were found, not made. Only a comparison with a clean model is sound on"
            " them, since neither version is known to be as hard as the other."
        )
    if fallen:
        return (
            f"The clean reference {' and '.join(fallen)} falls on this twin too, so the twin is"
            " harder than its original, and the verdict goes by the difference of the two gaps."
        )
    if evidence.benchmark.exchangeable:
        return "Neither version is harder by construction, so a clean model's gap is 0 on average."
    tested = "no clean model was given to test it"
    if evidence.references:
        tested = "no clean reference given here falls significantly"
    return (
        "This rests on twins that are no harder than their originals for a model that has seen"
        f" neither. That is assumed of edited images, as in the method's paper; {tested}."
    )


def _beside(score: Score) -> str:
    other = score.reference
    assert other is not None and other.statistic is not None
    original, perturbed = (other.accuracies[side] for side in ("original", "perturbed"))
    found = {"contaminated": "contaminated", "not_detected": "not detected"}
    says = found.get(score.verdict, "no verdict")
    p = f", {p_in_words(score.p_value)}" if score.p_value is not None else ""
    return (
        f"The reference {other.model} gets {original.k:,}/{original.n:,} originals and"
        f" {perturbed.k:,}/{perturbed.n:,} twins right, a gap of {formats.points(other.statistic)}"
        " points. The"
        f" model's gap lies {_difference(score, 'it')}{p}: {says}."
    )


def _of_others(said: Sequence[OtherDetectorResult]) -> list[str]:
    heard = [one for one in said if one.verdict in ("contaminated", "not_detected")]
    if not heard:
        return []
    fired = [one for one in heard if one.verdict == "contaminated"]
    kept = sum(not one.is_doubtful for one in fired)
    names = f" ({', '.join(one.title for one in fired)})" if fired else ""
    rest = ""
    if kept < len(fired):
        rest = (
            f"; {kept} {'does' if kept == 1 else 'do'} so without a suspected false alarm and"
            " corrected for their number"
        )
    return [
        f"Of {len(heard)} other detectors with a verdict, {len(fired)}"
        f" {'says' if len(fired) == 1 else 'say'} contaminated{names}{rest}. They have no vote: how"
        " often each errs on clean models of this kind is not known from this page."
    ]
