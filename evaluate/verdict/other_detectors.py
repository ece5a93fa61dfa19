"""The other detectors' results for one model: each by its own default rule, none with a vote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flipbench.core.records import Score
from flipbench.reporting import formats

from ..detectors.registry import DETECTORS, default_rule
from ..protocol.rules import Verdict
from ..report.score_frame import is_gap
from ..report.titles import GAP, VERDICTS, as_header, title
from ..statistics.paired import adjust_p_values

_ORDER = tuple(VERDICTS)
_WEAKEST = ("not_detected", "inconclusive", "contaminated", "not_applicable")


@dataclass(frozen=True)
class OtherDetectorResult:
    """One detector's result.

    Attributes
    ----------
    score : Score or None
        By the default rule, against the reference that gives the weakest evidence of
        contamination; None if the detector could not be run on the model.
    why : str
        Why there is no verdict; empty if there is one.
    p_adjusted : float or None
        Holm-corrected over all other detectors that have a p-value.
    flagged_references : tuple of str
        Clean references on which the same rule is significant: it then measures something else.
    against : str
        The reference of ``score``, if any.
    """

    detector: str
    verdict: Verdict
    score: Score | None
    why: str = ""
    p_adjusted: float | None = None
    flagged_references: tuple[str, ...] = ()
    against: str = ""

    @property
    def title(self) -> str:
        """The detector's name for people."""
        return as_header(title(self.detector))

    @property
    def is_doubtful(self) -> bool:
        """Whether the result is lost when corrected, or a clean reference is flagged too."""
        return bool(self.flagged_references) or self._is_lost_when_corrected

    @property
    def _is_lost_when_corrected(self) -> bool:
        alpha = self.score.alpha if self.score else 1.0
        return self.p_adjusted is not None and self.p_adjusted > alpha

    @property
    def measured(self) -> str:
        """Counts, statistic and interval on one line."""
        against = f", against {self.against}" if self.against else ""
        return f"{measured(self.score)}{against}" if self.score else ""

    @property
    def remarks(self) -> list[str]:
        """What a reader should know besides the numbers."""
        lines = [
            f"False alarm suspected: also significant on the clean model {name}."
            for name in self.flagged_references
        ]
        if self.verdict == "contaminated" and self._is_lost_when_corrected:
            lines.append("Not significant once corrected for the number of detectors.")
        warnings = self.score.warnings if self.score else ()
        return lines + [
            formats.as_sentence(text) for text in ((self.why,) if self.why else warnings)
        ]


def other_results(
    scores: Sequence[Score],
    references: Mapping[str, Sequence[Score]],
    not_run: Mapping[str, str],
) -> tuple[OtherDetectorResult, ...]:
    """Return the result of every other detector, verdicts "contaminated" first."""
    results = [
        _result(name, scores, references)
        for name in dict.fromkeys(score.detector for score in scores)
        if name != GAP
    ]
    for name, reason in not_run.items():
        results.append(OtherDetectorResult(name, "not_applicable", None, reason))
    p_values = {
        result.detector: result.score.p_value
        for result in results
        if result.score is not None and result.score.p_value is not None
    }
    adjusted = dict(zip(p_values, adjust_p_values(list(p_values.values()), "holm"), strict=True))
    corrected = [replace(result, p_adjusted=adjusted.get(result.detector)) for result in results]
    return tuple(sorted(corrected, key=lambda result: _ORDER.index(result.verdict)))


def least_significant(scores: Sequence[Score]) -> Score:
    """Return the score with the weakest evidence of contamination, of one rule's scores."""
    return min(scores, key=lambda s: (_WEAKEST.index(s.verdict), -(s.p_value or 0.0)))


def measured(score: Score) -> str:
    """Return a score on one line: k/n of each condition, statistic, interval."""
    parts = [
        f"{as_header(name).lower()} {count.k:,}/{count.n:,}"
        for name, count in score.accuracies.items()
    ]
    if score.statistic is None:
        return ", ".join(parts)
    points = f"{formats.points(score.statistic)} {formats.interval(score.interval)}".rstrip()
    if is_gap(score):
        has_other = score.reference is not None and score.reference.statistic is not None
        relative = has_other and score.rule == "relative"
        parts.append(f"{'Δ − reference’s Δ' if relative else 'Δ'} {points}")
    elif score.unit == "fraction" and _is_against_clean(score):
        parts.append(f"share − reference’s share {points} points, {score.n:,} items")
    elif score.unit == "fraction":
        share = f"{formats.percent(score.statistic)} % of {score.n:,} items"
        parts.append(f"{share} {formats.share_interval(score.interval)}".rstrip())
    else:
        between = formats.interval(score.interval, formats.number)
        value = f"{score.unit} {formats.number(score.statistic)} {between}".rstrip()
        parts.append(f"{value}, {score.n:,} items")
    return ", ".join(parts)


def _result(
    name: str, scores: Sequence[Score], references: Mapping[str, Sequence[Score]]
) -> OtherDetectorResult:
    model_scores = [score for score in scores if score.detector == name]
    rules = {score.rule for score in model_scores}
    rule = next(iter(rules)) if len(rules) == 1 else default_rule(name)
    score, reason = least_significant([score for score in model_scores if score.rule == rule]), ""
    if score.lacks_reference:
        reason = f"rule {rule!r} compares with a clean model: pass one with --reference"
    elif score.verdict in ("inconclusive", "not_applicable") and score.warnings:
        reason = score.warnings[-1]
    flagged: list[str] = []
    against = ""
    for clean_name, clean_scores in references.items():
        if any((s.detector, s.rule) == (name, rule) and _is_significant(s) for s in clean_scores):
            flagged.append(clean_name)
        if score.reference_fingerprint in {s.model_fingerprint for s in clean_scores}:
            against = clean_name
    return OtherDetectorResult(
        name, score.verdict, score, reason, flagged_references=tuple(flagged), against=against
    )


def _is_against_clean(score: Score) -> bool:
    implementation = DETECTORS.get(score.detector)
    return implementation is not None and implementation.about.needs_clean_model(score.rule)


def _is_significant(score: Score) -> bool:
    """Return whether a rule is significant, even if a guard withholds the verdict."""
    small = score.p_value is not None and score.p_value <= score.alpha
    return score.verdict == "contaminated" or (score.verdict == "inconclusive" and small)
