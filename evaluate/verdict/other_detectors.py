"""What the other detectors say of one model: each by its own default rule, none with a vote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flipbench.core.records import Interval, Score
from flipbench.reporting import formats

from ..detectors.registry import default_rule
from ..protocol.rules import Verdict
from ..report.tables import GAP, accuracies, as_header, is_gap, title
from ..statistics.paired import adjust_p_values

_ORDER: tuple[Verdict, ...] = ("contaminated", "not_detected", "inconclusive", "not_applicable")
_SURE: tuple[Verdict, ...] = ("not_detected", "inconclusive", "contaminated", "not_applicable")


@dataclass(frozen=True)
class OtherDetectorResult:
    """What one detector says.

    Attributes
    ----------
    score : Score or None
        By its default rule, against the reference that speaks least for contamination; None where
        the detector could not be put to the model.
    why : str
        Why there is no verdict; empty where there is one.
    p_adjusted : float or None
        Holm-corrected over all other detectors that have a p-value.
    fired_on : tuple of str
        Clean references on which the same rule is significant: then it measures something else.
    against : str
        The reference of ``score``, where it has one.
    """

    detector: str
    verdict: Verdict
    score: Score | None
    why: str = ""
    p_adjusted: float | None = None
    fired_on: tuple[str, ...] = ()
    against: str = ""

    @property
    def title(self) -> str:
        """The detector's name for people."""
        return as_header(title(self.detector))

    @property
    def is_doubtful(self) -> bool:
        """Whether a finding goes with the correction, or a clean reference shows it too."""
        return bool(self.fired_on) or self._is_lost_when_corrected

    @property
    def _is_lost_when_corrected(self) -> bool:
        if self.score is None or self.p_adjusted is None:
            return False
        return self.p_adjusted > self.score.alpha

    @property
    def measured(self) -> str:
        """Counts, statistic and interval on one line."""
        if self.score is None:
            return ""
        return measured(self.score) + (f", against {self.against}" if self.against else "")

    @property
    def remarks(self) -> list[str]:
        """What a reader should know beside the numbers."""
        found = [
            f"False alarm suspected: it is significant on the clean {name}, too."
            for name in self.fired_on
        ]
        if self.verdict == "contaminated" and self._is_lost_when_corrected:
            found.append("Not significant once corrected for the number of detectors.")
        if self.why:
            return [*found, _as_sentence(self.why)]
        return found + [_as_sentence(w) for w in (self.score.warnings if self.score else ())]


def opinions(
    scores: Sequence[Score],
    references: Mapping[str, Sequence[Score]],
    not_run: Mapping[str, str],
) -> tuple[OtherDetectorResult, ...]:
    """Return an opinion of every other detector, those that call it contaminated first."""
    said = [
        _result(name, scores, references)
        for name in dict.fromkeys(score.detector for score in scores)
        if name != GAP
    ]
    said += [
        OtherDetectorResult(name, "not_applicable", None, why) for name, why in not_run.items()
    ]
    tested = [one for one in said if one.score is not None and one.score.p_value is not None]
    p_values = [one.score.p_value or 0.0 for one in tested if one.score is not None]
    adjusted = dict(
        zip((one.detector for one in tested), adjust_p_values(p_values, "holm"), strict=True)
    )
    corrected = [replace(one, p_adjusted=adjusted.get(one.detector)) for one in said]
    return tuple(sorted(corrected, key=lambda one: _ORDER.index(one.verdict)))


def least_significant(scores: Sequence[Score]) -> Score:
    """Return the score of one rule, against several references, that speaks least for a finding."""
    return min(scores, key=lambda s: (_SURE.index(s.verdict), -(s.p_value or 0.0)))


def measured(score: Score) -> str:
    """Return what a score measured, on one line: k/n of each condition, statistic, interval."""
    parts = [f"{as_header(name).lower()} {k:,}/{n:,}" for name, (k, n) in accuracies(score).items()]
    if score.statistic is None:
        return ", ".join(parts)
    if is_gap(score):
        between = f" {formats.interval(score.interval)}" if score.interval else ""
        other = score.reference.statistic if score.reference else None
        name = "Δ" if other is None or score.rule != "relative" else "Δ − reference’s Δ"
        parts.append(f"{name} {formats.points(score.statistic)}{between}")
    elif score.unit == "fraction" and score.rule == "relative":
        between = f" {formats.interval(score.interval)}" if score.interval else ""
        shift = f"{formats.points(score.statistic)}{between} points"
        parts.append(f"share − reference’s share {shift}, {score.n:,} items")
    elif score.unit == "fraction":
        between = f" {_percents(score.interval)}" if score.interval else ""
        parts.append(f"{formats.percent(score.statistic)} % of {score.n:,} items{between}")
    else:
        between = f" {formats.interval(score.interval, formats.number)}" if score.interval else ""
        parts.append(f"{score.unit} {formats.number(score.statistic)}{between}, {score.n:,} items")
    return ", ".join(parts)


def _percents(between: Interval) -> str:
    scaled = {"low": 100 * between.low, "high": 100 * between.high}
    return formats.interval(between.model_copy(update=scaled), formats.number)


def _result(
    name: str, scores: Sequence[Score], references: Mapping[str, Sequence[Score]]
) -> OtherDetectorResult:
    mine = [score for score in scores if score.detector == name]
    rules = {score.rule for score in mine}
    rule = next(iter(rules)) if len(rules) == 1 else default_rule(name)
    score, why = least_significant([score for score in mine if score.rule == rule]), ""
    if score.verdict in ("inconclusive", "not_applicable") and score.warnings:
        why = score.warnings[-1]
        if "none was given" in why:
            why = f"rule {rule!r} compares with a clean model: give one with --reference"
    fired = tuple(
        reference
        for reference, own in references.items()
        if any((s.detector, s.rule) == (name, rule) and _fires(s) for s in own)
    )
    names = {s.model_fingerprint: other for other, own in references.items() for s in own}
    against = names.get(score.reference_fingerprint, "")
    return OtherDetectorResult(name, score.verdict, score, why, fired_on=fired, against=against)


def _fires(score: Score) -> bool:
    """Return whether a rule is significant, even where a guard keeps it from a verdict."""
    small = score.p_value is not None and score.p_value <= score.alpha
    return score.verdict == "contaminated" or (score.verdict == "inconclusive" and small)


def _as_sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".removesuffix(".") + "."
